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
    from django.db import connections

from outbox.message import Message
from outbox.outbox import Outbox
from outbox.settings import TableNames
from outbox.transaction import Receipt


def publish(message: Message, using: str = "default") -> Receipt:
    """Publish a message with the open `transaction.atomic()` of a database.

    Args:
        using: Alias of the database, as in `atomic(using=…)`.

    Raises:
        OutboxError: As `Outbox.publish()`; `UsageError` outside `atomic()`.

    Example:
        with transaction.atomic():
            order.save()
            publish(Message("orders", value=b"...", key=str(order.pk)))
    """
    return current().publish(connections[using], message)


def publish_many(messages: Iterable[Message], using: str = "default") -> list[Receipt]:
    """Publish several messages in order; as `publish()`."""
    return current().publish_many(connections[using], messages)


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
