"""`outbox console`: pages that show what the commands show, for a browser."""
