"""Unit tests: the flights demo."""
