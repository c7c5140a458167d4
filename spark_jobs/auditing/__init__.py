"""What `audit` proves with: evidence as frames of one form, judged after one shuffle. Pure."""
