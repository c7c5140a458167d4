"""What the operator's commands have in common: options, settings, the channel."""

import re
import time
from collections.abc import Collection
from datetime import UTC, datetime

from outbox._kafka.admin import FIRST_ANSWER_SECONDS, admin_client
from outbox._kafka.channel import ChannelDescription, find_channel
from outbox._kafka.groups import count_members
from outbox._settings.declared import NO_TABLES
from outbox.errors import UsageError
from outbox.operator.reading.channel_reader import ChannelReader
from outbox.operator.reading.source_report import refusing
from outbox.operator.settings import OperatorSettings
from outbox.operator.state.coverage import Gap
from outbox.operator.state.unsettled_transactions import Choice, Gathering
from outbox.operator.state.waiting_rows import TopicState
from outbox.operator.words import UNITS
from outbox.protocol.errors import ProtocolError
from outbox.protocol.fields import parse_number
from outbox.protocol.identifiers import check_uuid

HALVES = 500_000
"""Halves that are looked at, over all partitions; each takes about 200 bytes of memory."""


class OperatorContext:
    """The databases of the settings, and the channel as it is: with halves, rows, or something `elsewhere`."""

    def __init__(self, settings: OperatorSettings, operator: str = "", *, elsewhere: bool = False) -> None:
        self.kafka = settings.client_properties()
        self.operator = operator
        self._admin = admin_client(self.kafka)
        names = settings.channel_names()
        self.channel: ChannelDescription = find_channel(self._admin, names, FIRST_ANSWER_SECONDS)
        if self.channel.channel.tables_only and not (settings.tables or elsewhere):
            raise UsageError(f"Nothing was looked at: channel {settings.channel} has no half mode, and {NO_TABLES}.")
        self.databases = settings.all_databases()

    def members(self) -> dict[str, int | None]:
        """Return how many relays and checkers serve half mode, by service; None: that cannot be seen."""
        return {} if self.channel.channel.tables_only else count_members(self._admin, self.channel.channel)

    def refusing(self, topics: Collection[str]) -> list[TopicState]:
        return refusing(self._admin, topics)

    def gather(self, choice: Choice, keep: int, *only: int) -> tuple[Gathering, list[Gap]]:
        """Read what is unsettled, of all half partitions or only some, and return it with what was not read."""
        gathering = Gathering(-(-HALVES // max(self.channel.partitions, 1)), choice, keep)
        return gathering, ChannelReader(self.kafka, self.channel, gathering).gather(*only)


def parse_id(text: str) -> tuple[str, int | None]:
    """Parse a transaction id, or a message id into its transaction id and position.

    In table mode that is a row's id, below 0 for a message that waits for its time.
    """
    id_, slash, position = text.strip().lower().partition("/")
    try:
        if not slash:
            return check_uuid(id_), None
        number = parse_number(position.removeprefix("-"), "the position")
        return check_uuid(id_), -number if position.startswith("-") else number
    except ProtocolError as error:
        raise UsageError(f"{text!r} is not a valid transaction or message id: {error}") from None


def parse_since(text: str) -> int:
    """Parse a time, or a duration before now, into ms since 1970."""
    if text[-1:] in {"s", "m", "h", "d"}:
        return time.time_ns() // 1_000_000 - parse_duration(text)
    try:
        given = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"{text!r} is not a valid time. Write it as 2026-11-22T06:00Z, or as 2h.") from None
    return int((given if given.tzinfo else given.replace(tzinfo=UTC)).timestamp() * 1000)


def parse_duration(text: str) -> int:
    match = re.fullmatch(r"(\d{1,9})(ms|s|m|h|d)", text.strip())
    if match is None:
        raise UsageError(f"{text!r} is not a valid duration. Write a whole number and ms, s, m, h or d, such as 15m.")
    return int(match[1]) * UNITS[match[2]]
