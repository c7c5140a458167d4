"""An operator's decisions, on their way into databases and Kafka."""
