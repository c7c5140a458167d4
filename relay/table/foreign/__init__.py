"""Foreign tables: outbox tables that an application made for itself (R59, R60)."""
