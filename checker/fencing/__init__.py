"""The fencing check-back."""
