"""Half mode: half partitions as owners of messages that were decided elsewhere."""
