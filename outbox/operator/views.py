"""What operators ask, for commands and console alike: what waits, where a key is, and what became of a transaction."""

import time
from collections.abc import Callable, Collection, Sequence

from outbox._kafka.admin import FIRST_ANSWER_SECONDS, admin_client
from outbox._kafka.channel import find_channel
from outbox._kafka.groups import NOT_SEEN
from outbox._rules.callback_row import Row
from outbox._settings.declared import NO_TABLES
from outbox.errors import ConfigurationError, KafkaUnreachable, UsageError
from outbox.operator.context import OperatorContext
from outbox.operator.reading.delivered_search import SKEW_MS
from outbox.operator.reading.search import KeySearch, LocalSearch, TopicSearch, search_databases, search_tables
from outbox.operator.reading.source_report import report_tables
from outbox.operator.settings import OperatorSettings, TableCommandSettings
from outbox.operator.state.channel_state import ChannelState
from outbox.operator.state.coverage import Gap
from outbox.operator.state.story import Findings, Story, born_ms
from outbox.operator.state.unsettled_transactions import Choice
from outbox.operator.words import MOST_LISTED
from outbox.protocol.names import Channel

_OF_ROWS = "the id carries the xid of a local transaction: it is one of table mode"

Passed = Callable[[int], None]
"""Is called with the number of records that were read, from time to time."""


def overview(
    settings: OperatorSettings,
    service: str | None = None,
    youngest_ms: int = 0,
    limit: int = MOST_LISTED,
    *,
    tables: bool = True,
    passed: Passed = lambda _: None,
) -> tuple[ChannelState, KafkaUnreachable | None]:
    """Return what a channel holds that is not delivered, and why Kafka was not asked; None: it was.

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
        state.members = NOT_SEEN
        state.not_read = [Gap(f"channel {settings.channel}", str(error))]
        return state, error
    state.tables_only = desk.channel.channel.tables_only
    gathering, state.not_read = desk.gather(Choice(None, service, now - youngest_ms), limit, passed)
    state.members, state.tables = desk.members(), report_tables(settings) if tables else []
    state.take(gathering, limit)
    state.refusing = desk.refusing(gathering.targets)
    return state, None


def find(
    settings: TableCommandSettings,
    key: bytes,
    topics: Collection[str],
    service: str | None,
    start_ms: int | None,
    passed: Passed = lambda _: None,
) -> KeySearch:
    """Return where the messages of a key are; without Kafka what the tables have.

    Args:
        topics: Real topics that are searched for what was delivered, each in the partition that the key chooses.
        start_ms: Real topics are read from here on, ms since 1970; None: they are not read.
    """
    search = KeySearch(key, topics, service, passed)
    search_tables(settings.tables, search, search.look_into_table)
    if not settings.tables:
        search.miss("rows of table mode", NO_TABLES)
    try:
        kafka, names = settings.client_properties(), settings.channel_names()
        search.channel_topics(kafka, find_channel(admin_client(kafka), names, FIRST_ANSWER_SECONDS))
        if start_ms is not None:
            search.real_topics(kafka, names.relay_group, start_ms)
    except ConfigurationError as error:
        search.miss("Kafka", str(error), is_fault=True)
    if not topics:
        search.miss("what was delivered", "without --topic no record of a real topic is looked at")
    search.found.sort(key=lambda message: message.time_ms)
    return search


def story(
    settings: OperatorSettings,
    id_: tuple[str, int | None],
    start_ms: int | None,
    topics: Sequence[str] = (),
    passed: Passed = lambda _: None,
) -> tuple[Story, KafkaUnreachable | None]:
    """Return what became of a transaction, and why Kafka was not asked; None: it was.

    Args:
        id_: The transaction, and the message that is of interest; None: all.
        start_ms: Topics are searched from here on, ms since 1970; None: from the time in the id.
        topics: Real topics that are searched, too: when the halves are gone, nothing else names them.
    """
    found = Findings(*id_)
    since = _start(found.transaction_id) if start_ms is None else start_ms
    history = Story(settings.channel, found, since, NOT_SEEN)
    desk, silence = None, None
    try:
        desk = OperatorContext(settings)
        history.members = desk.members()
    except KafkaUnreachable as error:
        found.miss("Kafka", str(error))
        silence = error
    own = _search_databases(settings, found, None if desk is None else desk.channel.channel)
    if desk is not None:
        search = TopicSearch(desk.kafka, desk.channel, found, history.since_ms, passed)
        if found.is_of_rows:
            search.real_topics(topics)
        else:
            search.topics(own, topics)
    if not settings.tables and not found.events:
        found.miss("rows of table mode", NO_TABLES)
    if desk is not None and history.needs_services:
        history.refusing = desk.refusing(found.topics)
    return history, silence


def _search_databases(settings: OperatorSettings, found: Findings, channel: Channel | None) -> Sequence[Row]:
    """Note what tables hold of a transaction; return its callback rows. Without a channel Kafka does not answer."""
    databases = settings.all_databases()
    if not databases and not settings.tables:
        found.miss("databases", "none is configured: OUTBOX_POSTGRES_URL or OUTBOX_CONFIG")
    kafka = settings.client_properties() if channel else None
    local = LocalSearch(found, kafka, channel or settings.channel_names())
    search_tables(settings.tables, found, local.look_into_table)
    if found.is_of_rows:
        if channel is None or not channel.tables_only:
            found.miss("halves", _OF_ROWS)
        return ()
    return search_databases(databases, settings.channel, found)


def _start(transaction_id: str) -> int:
    """Return where the search begins, ms since 1970."""
    born = born_ms(transaction_id)
    if born is None:
        raise UsageError(f"{transaction_id} is not a UUIDv7, so it contains no time. Give --since.")
    # An id of the future comes from a wrong clock: then it may have been made at any time.
    return max(born - SKEW_MS, 0) if born < time.time() * 1000 + SKEW_MS else 0
