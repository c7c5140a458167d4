"""Kafka records as columns."""
