"""Serving half partitions: the worker threads, what they use, and who may have which."""
