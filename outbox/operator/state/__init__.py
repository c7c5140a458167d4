"""What operators see, and what may be decided on it. Pure."""
