"""Integration tests: library."""
