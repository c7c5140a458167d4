"""Auto mode: half messages while Kafka answers, otherwise rows of the message table in the same local transaction."""
