"""Annotations and a cache to batches, in an order that is a pure function of seed and step."""
