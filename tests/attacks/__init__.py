"""What an application of one team tries against another team on the same servers, and what stops it."""
