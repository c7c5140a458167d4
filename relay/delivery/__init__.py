"""The road of every message: the gate, pre-flight, and one Kafka transaction with the records and their progress."""
