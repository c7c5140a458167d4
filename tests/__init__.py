"""Tests: `unit` (no servers), `integration` (real Kafka, Postgres, Spark), `torture` (everything killed at random)."""
