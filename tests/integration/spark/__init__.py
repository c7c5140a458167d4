"""Integration tests: spark."""
