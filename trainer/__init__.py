"""A cache to a model: the resampler, the connectors and the language model learn from features.

This floor reads caches through `pipeline.cache` and imports neither Beam nor a decoder. It has no
command yet.
"""
