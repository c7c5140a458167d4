"""Unit tests: checker."""
