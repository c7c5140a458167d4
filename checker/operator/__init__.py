"""What operators look at and decide by hand: `outbox pending`, `outbox trace`, `outbox resolve`.

`unsettled_transactions`, `rulings` and `timeline` are pure; `channel_reader`, `rows` and `search` ask Kafka and the
databases.
"""
