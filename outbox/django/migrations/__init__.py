"""The migration of the tables."""
