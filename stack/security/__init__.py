"""What the servers of a secured stack have besides: certificates, and tokens that Kafka accepts."""
