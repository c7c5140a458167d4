"""What an examination finds: `outbox doctor`, `--check` of the services, and `verify`."""
