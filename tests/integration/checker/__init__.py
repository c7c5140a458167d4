"""Integration tests: checker."""
