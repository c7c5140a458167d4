"""Answer check-backs in the application."""
