"""The half partitions of this process: owned, halted, stalled. Pure."""
