"""Unit tests: outbox."""
