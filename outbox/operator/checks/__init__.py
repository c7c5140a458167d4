"""What an examination finds: `outbox doctor`, and `--check` of the services."""
