"""What `audit` proves with: evidence as frames of one form, judged by one `groupBy`. Pure."""
