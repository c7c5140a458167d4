"""Decisions that library and services share, without I/O or clock."""
