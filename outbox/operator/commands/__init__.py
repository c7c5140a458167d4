"""The verbs of `outbox`: each reads a state, or decides, and prints it."""
