"""Unit tests: torture."""
