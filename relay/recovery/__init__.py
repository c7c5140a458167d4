"""What a take-over restores, and which transactions it ends."""
