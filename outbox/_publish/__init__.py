"""How a message gets into Kafka with a local transaction."""
