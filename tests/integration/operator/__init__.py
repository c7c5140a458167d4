"""Integration tests: operator."""
