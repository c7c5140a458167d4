"""Tables that jobs write and read."""
