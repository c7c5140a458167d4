"""`manage.py outbox_pending`: what waits."""

from typing import Any

from django.core.management.base import BaseCommand
from django.db.models import Count, Min

from outbox.django.models import WaitingMessage


class Command(BaseCommand):  # type: ignore[misc]  # Django has no types
    """Show how many messages wait, by topic."""

    help = "Show how many messages wait for the relay, by topic, and since when."

    def add_arguments(self, parser: Any) -> None:
        """Add the alias of the database."""
        parser.add_argument("--database", default="default", help="Alias of the database.")

    def handle(self, *_: Any, database: str, **_options: Any) -> None:
        """Print a line for each topic."""
        rows = WaitingMessage.objects.using(database).values_list("topic")
        waiting = rows.annotate(Count("id"), Min("created_at")).order_by("topic")
        lines = [f"{topic}: {count} since {oldest:%Y-%m-%d %H:%M:%S %Z}" for topic, count, oldest in waiting]
        self.stdout.write("\n".join(lines) or "No message waits.")
