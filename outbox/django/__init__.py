"""An app of Django: put `outbox.django` into INSTALLED_APPS, set `OUTBOX = {"name": "shop"}`, and migrate.

`publish()` publishes with the open `transaction.atomic()`. `OUTBOX` may also have `schema`, `prefix` and `channel`.
"""

from collections.abc import Iterable
from functools import cache
from typing import Any

from outbox._postgres.optional_packages import extra

with extra("django", "outbox.django"):
    from django.conf import settings
    from django.core.exceptions import ImproperlyConfigured
    from django.db import DEFAULT_DB_ALIAS, connections

from outbox._table.insert_connection import DjangoConnection
from outbox.errors import UsageError
from outbox.message import Message
from outbox.outbox import Outbox
from outbox.settings import TableNames
from outbox.transaction import Receipt


def publish(message: Message, using: str | None = None) -> Receipt:
    """Publish a message with the open `transaction.atomic()` of a database.

    Args:
        using: Alias of the database, as in `atomic(using=…)`; None: `default`, unless blocks of several are open.

    Raises:
        OutboxError: As `Outbox.publish()`; `UsageError` outside `atomic()`, and inside several without `using`.

    Example:
        with transaction.atomic():
            order.save()
            publish(Message("orders", value=b"...", key=str(order.pk)))
    """
    return current().publish(_connection(using), message)


def publish_many(messages: Iterable[Message], using: str | None = None) -> list[Receipt]:
    """Publish several messages in order; as `publish()`."""
    return current().publish_many(_connection(using), messages)


def _connection(using: str | None) -> Any:
    if using is None:
        there = (one for one in connections.all(initialized_only=True) if one.in_atomic_block)
        found = [one.alias for one in there if not DjangoConnection(one).autocommits]  # as in a test's own block
        if len(found) > 1:
            raise UsageError(f"Transactions are open on {' and '.join(found)}. Give one of them as `using`.")
    return connections[using or DEFAULT_DB_ALIAS]


@cache
def current() -> Outbox:
    """Return the outbox of this process, as the setting `OUTBOX` has it."""
    given = configured()
    return Outbox(given["name"], channel=given.get("channel", "outbox"), tables=table_names())


def table_names() -> TableNames:
    """Return the names of the tables."""
    given = configured()
    return TableNames(given.get("schema", "public"), given.get("prefix", "outbox"))


def configured() -> dict[str, Any]:
    """Return the setting `OUTBOX`.

    Raises:
        ImproperlyConfigured: It is missing, or has another shape.
    """
    given = getattr(settings, "OUTBOX", None)
    if not isinstance(given, dict) or not given.get("name") or given.keys() - {"name", "schema", "prefix", "channel"}:
        raise ImproperlyConfigured(
            f'The setting OUTBOX is {given!r}. Set OUTBOX = {{"name": "shop"}}, with the name of your service; '
            '"schema", "prefix" and "channel" are optional.'
        )
    return given
