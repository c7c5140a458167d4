"""Waiting until a message is visible."""
