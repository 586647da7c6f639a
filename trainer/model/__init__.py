"""Features to tokens to text: fusing, resampling, and a causal language model of transformers."""
