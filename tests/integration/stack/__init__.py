"""Integration tests: stack."""
