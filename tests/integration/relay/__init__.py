"""Integration tests: relay."""
