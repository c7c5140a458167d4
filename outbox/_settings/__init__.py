"""The settings: each is declared once, for the library, the services, the jobs and the commands."""
