"""What operators ask, for commands and console alike: what waits, where a key is, and what became of a transaction."""

import re
import time
from collections.abc import Collection, Sequence
from datetime import UTC, datetime

from outbox._kafka.admin import FIRST_ANSWER_SECONDS, admin_client
from outbox._kafka.channel import ChannelDescription, find_channel
from outbox._kafka.groups import NOT_SEEN, count_members
from outbox._rules.callback_row import Row
from outbox._settings.declared import NO_TABLES
from outbox.errors import ConfigurationError, KafkaUnreachable, UsageError
from outbox.operator.reading.channel_reader import ChannelReader
from outbox.operator.reading.delivered_search import SKEW_MS
from outbox.operator.reading.search import KeySearch, LocalSearch, TopicSearch, search_databases, search_tables
from outbox.operator.reading.source_report import refusing, report_tables
from outbox.operator.settings import OperatorSettings
from outbox.operator.state.channel_state import ChannelState
from outbox.operator.state.coverage import Gap
from outbox.operator.state.story import EventKind, Findings, born_ms
from outbox.operator.state.unsettled_transactions import Choice, Gathering
from outbox.operator.words import UNITS
from outbox.protocol.errors import ProtocolError
from outbox.protocol.fields import parse_number
from outbox.protocol.identifiers import check_uuid

HALVES = 500_000  # halves that are looked at, over all partitions; each takes about 200 bytes of memory


class OperatorContext:
    """The databases of the settings, and the channel as it is: with halves, rows, or something `elsewhere`."""

    def __init__(self, settings: OperatorSettings, operator: str = "", *, elsewhere: bool = False) -> None:
        self.kafka = settings.client_properties()
        self.operator = operator
        self.admin = admin_client(self.kafka)
        names = settings.channel_names()
        self.channel: ChannelDescription = find_channel(self.admin, names, FIRST_ANSWER_SECONDS)
        if self.channel.channel.tables_only and not (settings.tables or elsewhere):
            raise UsageError(f"Nothing was looked at: channel {settings.channel} has no half mode, and {NO_TABLES}.")
        self.databases = settings.all_databases()

    def members(self) -> dict[str, int | None]:
        return {} if self.channel.channel.tables_only else count_members(self.admin, self.channel.channel)

    def gather(self, choice: Choice, keep: int, *only: int) -> tuple[Gathering, list[Gap]]:
        """Read what is unsettled, of all half partitions or only some, and return it with what was not read."""
        gathering = Gathering(-(-HALVES // max(self.channel.partitions, 1)), choice, keep)
        return gathering, ChannelReader(self.kafka, self.channel, gathering).gather(*only)


def parse_id(text: str) -> tuple[str, int | None]:
    """Parse a transaction id, or a message id, whose position is a row's id in table mode: below 0, it is not due."""
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


def overview(
    settings: OperatorSettings, service: str | None, youngest_ms: int, limit: int, *, tables: bool = True
) -> ChannelState:
    """Return what a channel holds that is not delivered, but for what is younger, and up to so many transactions."""
    now = time.time_ns() // 1_000_000
    state = ChannelState(settings.channel, now)
    try:
        desk = OperatorContext(settings)
    except KafkaUnreachable as error:
        state.members, state.silence = NOT_SEEN, error
        state.not_read = [Gap(f"channel {settings.channel}", str(error))]
    else:
        state.tables_only = desk.channel.channel.tables_only
        gathering, state.not_read = desk.gather(Choice(None, service, now - youngest_ms), limit)
        state.members, state.refusing = desk.members(), refusing(desk.admin, gathering.targets)
        state.take(gathering, limit)
    state.tables = report_tables(settings, is_unreachable=state.silence is not None) if tables else []
    return state


def find(
    settings: OperatorSettings, key: bytes, topics: Collection[str], service: str | None, start_ms: int | None
) -> KeySearch:
    """Return where the messages of a key are; without Kafka what the tables have.

    Real topics are read from a time on, each in the partition that the key chooses; without a time they are not read.
    """
    search = KeySearch(key, topics, service)
    search_tables(settings.tables, search, search.look_into_table)
    if not settings.tables:
        search.miss("rows of table mode", NO_TABLES)
    try:
        desk = OperatorContext(settings, elsewhere=bool(topics) and start_ms is not None)
        search.search(desk.kafka, desk.channel, start_ms)
    except ConfigurationError as error:
        search.miss("Kafka", str(error), is_fault=True)
    if start_ms is None or not topics:
        search.miss("what was delivered", "no record of a real topic was looked at; `outbox find --topic` does")
    search.found.sort(key=lambda message: message.time_ms)
    return search


def story(
    settings: OperatorSettings, id_: tuple[str, int | None], start_ms: int | None, topics: Sequence[str] = ()
) -> Findings:
    """Return what became of a transaction, or of one message of it.

    Topics are searched from a time on, by default that in the id. When its halves are gone, only `topics` names them.
    """
    since = _start(id_[0]) if start_ms is None else start_ms
    found, desk = Findings(*id_, channel=settings.channel, since_ms=since, members=NOT_SEEN), None
    try:
        desk = OperatorContext(settings, elsewhere=bool(topics))
        found.members = desk.members()
    except KafkaUnreachable as error:
        found.miss("Kafka", str(error))
        found.silence = error
    databases, channel = settings.all_databases(), desk.channel.channel if desk else settings.channel_names()
    local = LocalSearch(found, desk.kafka if desk else None, channel)
    search_tables(settings.tables, found, local.look_into_table)
    own: Sequence[Row] = ()
    if not found.is_of_rows:
        if not (databases or channel.tables_only):
            found.miss("callback tables", "no database is configured: OUTBOX_POSTGRES_URL or OUTBOX_CONFIG")
        own = search_databases(databases, settings.channel, found)
    elif desk is None or not channel.tables_only:
        found.miss("halves", "the id carries the xid of a local transaction: it is one of table mode")
    if desk is not None:
        TopicSearch(desk.kafka, desk.channel, found, since).search(own, topics)
    if not settings.tables and len(found.of(EventKind.VISIBLE)) == len(found.events):
        found.miss("rows of table mode", NO_TABLES)
    if desk is not None and found.needs_services:
        found.refusing = refusing(desk.admin, found.topics)
    return found


def _start(transaction_id: str) -> int:
    if (born := born_ms(transaction_id)) is None:
        raise UsageError(f"{transaction_id} is not a UUIDv7, so it contains no time. Give --since.")
    # An id of the future comes from a wrong clock: then it may have been made at any time.
    return max(born - SKEW_MS, 0) if born < time.time() * 1000 + SKEW_MS else 0
