"""A cache to a model: the resampler, the connectors and the language model learn from features.

This floor reads caches through `pipeline.cache`. It imports neither Beam nor a decoder, but to
answer about a raw video, which is encoded by the functions of the pipeline.
"""
