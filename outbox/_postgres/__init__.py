"""The tables in Postgres."""
