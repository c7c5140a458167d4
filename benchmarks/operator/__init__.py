"""What operators' commands and the pages of the console take on a large site."""
