"""Sending landed records again: what is selected, in which order, and what of it is written."""
