"""The job land."""
