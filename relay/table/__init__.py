"""Table sources: committed rows of message tables to their real topics, exactly once and in order."""
