"""A second channel in the tortured processes, whose application is hostile."""
