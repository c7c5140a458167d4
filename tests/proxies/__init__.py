"""Proxies between clients and Kafka or Postgres that understand enough of the protocol to hurt one request alone."""
