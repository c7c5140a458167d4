"""The ledger of one half partition: progress, pending transactions, decisions, and what may be handed out. Pure."""
