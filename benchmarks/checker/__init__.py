"""Benchmarks of the checker."""
