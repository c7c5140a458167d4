"""What others use: Debezium's outbox router, RocketMQ and a polling relay, started and measured beside the relay.

All of them are the real thing, from Maven coordinates in lock files with checksums. A peer that cannot start is
reported as not measured, with the reason.
"""
