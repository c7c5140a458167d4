"""The driver of `outbox land` is killed again and again; each record must be in the table once."""
