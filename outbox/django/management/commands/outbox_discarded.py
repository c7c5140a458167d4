"""`manage.py outbox_discarded`: what could not be delivered."""

from collections.abc import Iterator
from typing import Any

from outbox._postgres.ddl import identifier
from outbox._postgres.publish_function import STARTED_US
from outbox.django import table_names
from outbox.django.management.commands import outbox_pending
from outbox.protocol.identifiers import table_transaction_id

_DISCARDED = (
    "SELECT CAST(CAST(xid AS text) AS bigint), {started}, topic, reason, detail, discarded_at FROM {table}"
    " ORDER BY discarded_at, id"
)


class Command(outbox_pending.Command):
    """Show the discarded messages, and why."""

    help = "Show the messages that could not be delivered, and why; `outbox discarded --table` delivers or drops them."
    nothing = "No message is discarded."

    def lines(self, cursor: Any) -> Iterator[str]:
        """Yield a line for each message, which begins with the id of its transaction."""
        names = table_names()
        cursor.execute(_DISCARDED.format(started=STARTED_US, table=identifier(names.schema, names.discarded)))
        for xid, started, topic, reason, detail, since in cursor:
            transaction = table_transaction_id(xid, int(started))
            yield f"{transaction} {topic} {reason}: {detail}, since {since:%Y-%m-%d %H:%M:%S %Z}"
