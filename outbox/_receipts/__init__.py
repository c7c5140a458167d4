"""Wait until a message is visible on its real topic."""
