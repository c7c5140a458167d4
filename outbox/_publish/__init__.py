"""Publish messages to Kafka with a local transaction."""
