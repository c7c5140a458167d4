"""Unit tests: spark."""
