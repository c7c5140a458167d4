"""Integration tests: repository."""
