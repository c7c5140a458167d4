"""The demo: real flights, written to Postgres and told to Kafka, while everything is killed; then reconciled."""
