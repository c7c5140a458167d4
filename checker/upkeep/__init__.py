"""Purge and settlement audit."""
