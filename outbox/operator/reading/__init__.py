"""Reads what operators look at, from Kafka and the databases. Nothing here writes, but for one decision of a row."""
