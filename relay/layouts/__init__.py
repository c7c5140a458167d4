"""Layouts of foreign tables. Pure."""
