"""Check-back in the application."""
