"""Unit tests: relay."""
