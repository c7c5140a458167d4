"""Access to the Kafka cluster."""
