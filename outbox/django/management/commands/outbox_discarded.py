"""`manage.py outbox_discarded`: what could not be delivered."""

from typing import Any

from outbox.django.management.commands import outbox_pending
from outbox.django.models import DiscardedMessage


class Command(outbox_pending.Command):
    """Show the discarded messages, and why."""

    help = "Show the messages that could not be delivered, and why; `outbox discarded` delivers or drops them."

    def handle(self, *_: Any, database: str, **_options: Any) -> None:
        """Print a line for each message."""
        for row in DiscardedMessage.objects.using(database).order_by("discarded_at", "id"):
            self.stdout.write(f"{row.id} {row.topic} {row.reason}: {row.detail}")
