"""Benchmarks: each is a module, `python -m benchmarks.NAME`."""
