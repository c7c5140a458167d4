"""How half mode publishes: halves go to Kafka before COMMIT, and a row decides on them."""
