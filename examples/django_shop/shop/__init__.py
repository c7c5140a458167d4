"""The shop's only app."""
