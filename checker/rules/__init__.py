"""Verdicts and rules."""
