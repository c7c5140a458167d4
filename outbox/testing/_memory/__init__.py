"""An outbox in memory."""
