"""Unit tests: protocol."""
