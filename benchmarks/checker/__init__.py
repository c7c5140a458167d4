"""How fast the checker purges, and what that costs an application."""
