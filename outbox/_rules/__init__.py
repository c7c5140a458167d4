"""Decisions that library and services share. Pure."""
