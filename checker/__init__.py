"""The checker: consults the producers' callback tables in Postgres and decides what was left open."""
