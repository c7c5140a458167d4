"""What `publish()` returns."""
