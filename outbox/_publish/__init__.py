"""What both modes publish with: connections, sessions and transactions of the application."""
