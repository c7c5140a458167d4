"""What goes into one Kafka transaction."""
