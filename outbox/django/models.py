"""The rows that wait and those that were discarded, to look at: the migration makes the tables with the library's DDL.

Keys, values and headers are no fields: what Django shows is not the place for them.
"""

from django.db import models

from outbox.django import table_names


def table(name: str) -> str:
    """Return a table's name as Django quotes it."""
    schema = table_names().schema
    return name if schema == "public" else f'{schema}"."{name}'


class _Row(models.Model):  # type: ignore[misc]  # Django has no types
    id = models.BigIntegerField(primary_key=True)
    created_at = models.DateTimeField()
    service = models.TextField()
    topic = models.TextField()

    class Meta:
        abstract = True

    def __str__(self) -> str:
        return f"{self.topic} {self.id}"


class WaitingMessage(_Row):
    """A message that the relay has not delivered yet."""

    class Meta:  # noqa: D106 - of Django
        managed = False
        db_table = table(table_names().message)


class DiscardedMessage(_Row):
    """A message that could not be delivered."""

    reason = models.TextField()
    detail = models.TextField()
    discarded_at = models.DateTimeField()

    class Meta:  # noqa: D106 - of Django
        managed = False
        db_table = table(table_names().discarded)
