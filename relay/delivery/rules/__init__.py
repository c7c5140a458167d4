"""What may be delivered, and how much at once. Pure."""
