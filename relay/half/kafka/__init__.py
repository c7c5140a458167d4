"""Kafka clients of the relay."""
