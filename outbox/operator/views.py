"""What operators ask, for commands and console alike: what waits, where a key is, and what became of a transaction."""

import time
from collections.abc import Collection, Sequence

from outbox._kafka.groups import NOT_SEEN
from outbox._rules.callback_row import Row
from outbox._settings.declared import NO_TABLES
from outbox.errors import ConfigurationError, KafkaUnreachable, UsageError
from outbox.operator.context import OperatorContext
from outbox.operator.reading.delivered_search import SKEW_MS
from outbox.operator.reading.search import KeySearch, LocalSearch, TopicSearch, search_databases, search_tables
from outbox.operator.reading.source_report import report_tables
from outbox.operator.settings import OperatorSettings
from outbox.operator.state.channel_state import ChannelState
from outbox.operator.state.coverage import Gap
from outbox.operator.state.story import EventKind, Findings, born_ms
from outbox.operator.state.unsettled_transactions import Choice
from outbox.operator.words import MOST_LISTED


def overview(
    settings: OperatorSettings,
    service: str | None = None,
    youngest_ms: int = 0,
    limit: int = MOST_LISTED,
    *,
    tables: bool = True,
) -> ChannelState:
    """Return what a channel holds that is not delivered.

    Args:
        youngest_ms: What is younger is left out.
        limit: Transactions that are listed.
        tables: Whether the table sources are looked at.
    """
    now = time.time_ns() // 1_000_000
    state = ChannelState(settings.channel, now)
    try:
        desk = OperatorContext(settings)
    except KafkaUnreachable as error:
        state.tables = report_tables(settings, is_unreachable=True) if tables else []
        state.members, state.silence = NOT_SEEN, error
        state.not_read = [Gap(f"channel {settings.channel}", str(error))]
        return state
    state.tables_only = desk.channel.channel.tables_only
    gathering, state.not_read = desk.gather(Choice(None, service, now - youngest_ms), limit)
    state.members, state.tables = desk.members(), report_tables(settings) if tables else []
    state.take(gathering, limit)
    state.refusing = desk.refusing(gathering.targets)
    return state


def find(
    settings: OperatorSettings, key: bytes, topics: Collection[str], service: str | None, start_ms: int | None
) -> KeySearch:
    """Return where the messages of a key are; without Kafka what the tables have.

    Args:
        topics: Real topics that are searched for what was delivered, each in the partition that the key chooses.
        start_ms: Real topics are read from here on, ms since 1970; None: they are not read.
    """
    search = KeySearch(key, topics, service)
    search_tables(settings.tables, search, search.look_into_table)
    if not settings.tables:
        search.miss("rows of table mode", NO_TABLES)
    try:
        desk = OperatorContext(settings, elsewhere=bool(topics) and start_ms is not None)
        search.channel_topics(desk.kafka, desk.channel)
        if start_ms is not None:
            search.real_topics(desk.kafka, desk.channel.channel.relay_group, start_ms)
    except ConfigurationError as error:
        search.miss("Kafka", str(error), is_fault=True)
    if start_ms is None or not topics:
        search.miss("what was delivered", "no record of a real topic was looked at; `outbox find --topic` does")
    search.found.sort(key=lambda message: message.time_ms)
    return search


def story(
    settings: OperatorSettings, id_: tuple[str, int | None], start_ms: int | None, topics: Sequence[str] = ()
) -> Findings:
    """Return what became of a transaction.

    Args:
        id_: The transaction, and the message that is of interest; None: all.
        start_ms: Topics are searched from here on, ms since 1970; None: from the time in the id.
        topics: Real topics that are searched, too: when the halves are gone, nothing else names them.
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
        found.refusing = desk.refusing(found.topics)
    return found


def _start(transaction_id: str) -> int:
    """Return where the search begins, ms since 1970."""
    born = born_ms(transaction_id)
    if born is None:
        raise UsageError(f"{transaction_id} is not a UUIDv7, so it contains no time. Give --since.")
    # An id of the future comes from a wrong clock: then it may have been made at any time.
    return max(born - SKEW_MS, 0) if born < time.time() * 1000 + SKEW_MS else 0
