"""`format("outbox")`: a channel's internal topics as tables, for SQL and notebooks, without any jar."""

from spark_jobs.sql.data_source import OutboxDataSource, register

__all__ = ["OutboxDataSource", "register"]
