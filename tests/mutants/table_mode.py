"""Table mode: the message table, and the table sources of the relay."""

import re
import uuid
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, LiteralString, TypeVar

import psycopg
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from psycopg import sql

from outbox import Message
from outbox._kafka.admin import REQUEST_TIMEOUT, describe_topics
from outbox._kafka.channel import as_created
from outbox._postgres import dsn, publish_function, table_contract
from outbox._postgres.message_table import MessageTable
from outbox._postgres.table_contract import Breach, Facts, Table
from outbox._rules import row_order
from outbox._rules.row_order import KeyedRows, Some
from outbox._rules.source_progress import Committed, Progress, is_of_a_copy
from outbox._rules.topic_description import TopicDescription
from outbox._service.exit_codes import UnsafeError
from outbox._table import table_publisher
from outbox._table.insert_connection import InsertConnection
from outbox._table.message_insert import MessageInsert, Statement
from outbox._table.row_writer import OwnerLook, RowWriter
from outbox.inbox import Inbox
from outbox.operator.reading.delivered_search import unprovable
from outbox.operator.state.coverage import Gap
from outbox.protocol.names import Channel
from outbox.protocol.record import Record
from outbox.settings import TableNames
from relay.delivery.transactional_delivery import Ready, TransactionalDelivery, at_once
from relay.recovery.author import Found, Own
from relay.table import named_rows, plain_window, read_cursor, source_table
from relay.table.admission import Admitted
from relay.table.foreign.foreign_rows import ForeignRow, RowReader, deliverable
from relay.table.foreign.foreign_table import ForeignTable
from relay.table.kafka_progress import RowAuthor
from relay.table.owned_table import OwnedTable, Window, was_delivered
from relay.table.plain_window import Judge
from relay.table.read_cursor import Place
from relay.table.row_transactions import Refused, RowMessage, RowTransaction, _message, transactions
from relay.table.rows import Local, Row, local_of, transaction_id, which, whole
from relay.table.source_table import PURGE_ROWS, WAKE_ROWS, SourceTable
from relay.table.source_threads import _SourceThread
from relay.table.table_source import TableSource
from tests.mutants.runner.catalogue import fails, mutant
from tests.mutants.runner.mutant import Harm


@mutant(as_created, "R23", Harm.LOST)
@fails("integration/relay/test_tables_only.py::test_neither_kind_of_channel_becomes_the_other")
def r23_deleted_channel(admin: AdminClient, channel: Channel, timeout: float = REQUEST_TIMEOUT) -> Channel:
    """Only a topic of its own makes a channel one of message tables only. Without that rule the relay of a channel
    whose topics were deleted serves its tables and is ready, and no one serves half mode."""
    return replace(channel, tables_only=not describe_topics(admin, channel.topics, timeout))


@mutant(RowAuthor.last_own, "R31", Harm.DOUBLED)
@fails("unit/relay/test_row_author.py::test_rows_of_a_batch_that_hangs_are_owed")
def r31_rows_of_a_source(self: RowAuthor, found: Sequence[Found], in_hand: Collection[int]) -> Own | None:
    """A table source ends what its aborted transactions left open on a real topic. A broker without a leader for the
    partition has skipped the end of an aborted batch. Without this, the next commit commits it, too: doubled."""
    return None


@mutant(was_delivered, "R55", Harm.DOUBLED)
@fails("unit/relay/test_table_progress.py::test_every_row_is_delivered_once_wherever_owners_die")
@fails("integration/relay/test_table_source.py::test_a_relay_killed_after_its_commit_delivers_nothing_twice")
def r55_batch_of_a_dead_owner(source: str, progress: Progress, committed: Committed | None) -> bool:
    """Kafka proves whether the batch that an owner of a table source left behind was delivered. Without it the next
    owner reads the rows of a delivered batch again, because they are not deleted yet, and delivers them twice."""
    return progress.batch == progress.delivered


@mutant(unprovable, "R55", Harm.DOUBLED)
@fails("unit/outbox/test_source_repair.py::test_only_a_topic_that_keeps_its_records_proves_that_one_is_not_there")
@fails("integration/operator/test_table_resume.py::test_what_is_not_read_is_not_taken_for_undelivered")
def r55_compacted_topic_as_proof(name: str, topic: TopicDescription | None) -> Gap | None:
    """Only a topic that keeps its records proves that a row was not delivered. After a restore, `--skip-delivered`
    would deliver messages again whose records were compacted away."""
    return unprovable(name, topic) if topic is None else None


@mutant(row_order.behind_those, "R55", Harm.OUT_OF_ORDER)
@fails("unit/relay/test_table_admission.py::test_what_begins_earlier_does_not_overtake_with_its_later_rows")
def r55_rows_behind_those_that_stay(
    window: Collection[Some], stopped: Iterable[Some], keyed_rows: KeyedRows[Some]
) -> set[Some]:
    """A local transaction waits behind each row that stays and has one of its keys. Without it a local transaction with
    a later row of the same key is delivered first, and a consumer applies the two changes in the wrong order."""
    return set(stopped)


@mutant(whole, "R55", Harm.OUT_OF_ORDER)
@fails("unit/relay/test_table_admission.py::test_a_transaction_that_goes_on_behind_the_window_is_not_delivered_in_part")
def r55_rows_between_those_of_a_cut_transaction(rows: Sequence[Row], cut: Collection[Local]) -> int:
    """Where a window cuts a local transaction, all transactions stay that have a row behind one of it. Without it the
    first rows of such a transaction are delivered, and the others with a later batch: readers see half of a change."""
    return next((index for index, row in enumerate(rows) if local_of(which(row)) in cut), len(rows))


@mutant(plain_window.is_plain, "R24", Harm.STUCK)
@fails("unit/relay/test_table_admission.py::test_before_a_dead_letter_the_topic_is_described_once_more")
@fails("unit/relay/test_table_admission.py::test_a_row_that_makes_no_message_is_refused")
def r24_targets_of_a_window(rows: Sequence[Row], judge: Judge, now: int, more: int) -> bool:
    """A window that is delivered as it is has no row that pre-flight would refuse: for its size, headers or time.
    Judged by its targets alone, one row that Kafka refuses fails its batch for ever, and all behind it wait."""
    return plain_window._topics(rows, judge) is not None


@mutant(ForeignTable.try_own, "R59", Harm.DOUBLED)
@fails("integration/relay/test_foreign_table.py::test_two_sources_never_deliver_one_table")
def r59_lock_of_the_table(self: ForeignTable) -> bool:
    """The owner of a source holds a lock of the foreign table, too. Without it two sources of different names and
    prefixes deliver the same rows, and consumers read each message twice."""
    return OwnedTable.try_own(self)


@mutant(RowReader.message, "R59", Harm.DOUBLED)
@fails("unit/relay/test_foreign_rows.py::test_message_id_is_that_of_the_row_alone")
def r59_message_id_of_a_row(self: RowReader, id_: str) -> str:
    """The message id of a foreign row is made of the row's id alone. Without it a row that comes again, in another
    local transaction or behind other rows, has another message id. Consumers that deduplicate process it twice."""
    return str(uuid.uuid4())


@mutant(RowReader.rows, "R59", Harm.OUT_OF_ORDER)
@fails("unit/relay/test_foreign_rows.py::test_order_is_that_of_the_rows_whatever_their_ids_are")
def r59_order_of_the_table(self: RowReader, found: Iterable[ForeignRow]) -> Iterator[Row]:
    """Rows of a foreign table have the order of its order column, whatever their ids are. Without it messages of one
    key are written in the order of random UUIDs, and a consumer applies changes in the wrong order."""
    return (self._row(place, row) for place, row in enumerate(sorted(found, key=lambda row: row.id)))


@mutant(deliverable, "R60", Harm.LOST)
@fails("unit/relay/test_foreign_rows.py::test_row_too_large_stays_with_its_local_transaction")
def r60_content_that_was_not_read(
    found: Sequence[ForeignRow], left_writers: Collection[int] = ()
) -> tuple[list[ForeignRow], list[ForeignRow]]:
    """A row whose content is too large to be read stays in its table. Without it the row is delivered without its
    content, and deleted: consumers read a tombstone, and the content of the message is lost."""
    return list(found), []


_FILL = TransactionalDelivery._fill
_MOVE = SourceTable.move
_ALONE = source_table._MOVE.replace("{evidence}", "recorded AS (SELECT count(*) AS recorded FROM gone)")


@mutant(SourceTable.move, "R61", Harm.PHANTOM)
@fails("integration/relay/test_table_evidence.py::test_a_relay_that_dies_after_it_deleted_rows_leaves_their_evidence")
def r61_evidence_apart(
    self: SourceTable, before: Progress, after: Progress, ready: Sequence[Row] = (), refused: Refused = ()
) -> Progress:
    """The statement that deletes delivered rows also inserts their evidence. With a statement of its own for the
    evidence, a relay that dies between the two leaves none, and an audit takes their messages for made up."""
    self._move = self._table.compose(_ALONE)
    return _MOVE(self, before, after, ready, refused)


@mutant(SourceTable.move, "R71", Harm.DOUBLED)
@fails("integration/relay/test_table_counts.py::test_a_trigger_that_empties_a_batch_halts_the_source_afterwards")
def r71_rows_that_the_owner_named(
    self: SourceTable, before: Progress, after: Progress, ready: Sequence[Row] = (), refused: Refused = ()
) -> Progress:
    """A step settles as many rows as its owner has named. Without it a trigger that empties the list of a batch keeps
    its rows in the table, and they are delivered again and again."""
    self._move = self._table.compose(source_table._MOVE.replace(" AND %(named)s IN (0, cardinality(xids))", ""))
    return _MOVE(self, before, after, ready, refused)


@mutant(SourceTable._purge, "R61", Harm.PHANTOM)
@fails("integration/relay/test_table_evidence.py::test_old_evidence_is_purged_and_its_time_is_kept")
@fails("integration/spark/test_table_snapshot.py::test_a_purge_is_known_by_its_time")
def r61_time_of_the_purge(self: SourceTable) -> bool:
    """The statement that purges evidence also notes its time. Without it an audit takes a record whose evidence was
    purged for one that was made up, as the absence of evidence proves something only for what began after that."""
    statement = (
        "DELETE FROM {delivered} WHERE ctid = ANY (ARRAY(SELECT ctid FROM {delivered} WHERE delivered_at"
        " < now() - %s * interval '1 millisecond' ORDER BY delivered_at LIMIT %s))"
    )
    return self._connection.execute(self._table.compose(statement), (self._keep_ms, PURGE_ROWS)).rowcount == PURGE_ROWS


T = TypeVar("T")


@mutant(OwnedTable._keep_up, "R61", Harm.STUCK)
@fails("integration/relay/test_table_counts.py::test_upkeep_that_fails_stops_no_delivery")
@fails("integration/relay/test_table_counts.py::test_figures_that_cannot_be_read_stop_no_delivery")
def r61_upkeep_that_fails(self: OwnedTable, work: str, do: Callable[[], T]) -> T | None:
    """Upkeep that fails is logged, counted, and tried again. Without it a purge or figures that fail, or wait for a
    lock, end the turn of the owner: its table stands still for as long as they do."""
    return do()


@mutant(OwnedTable.expire, "R91", Harm.LOST)
@fails("integration/relay/test_table_counts.py::test_transactions_are_deleted_by_age_and_whole")
@fails("integration/relay/test_table_counts.py::test_old_dead_letters_of_which_one_stays_all_stay")
def r91_part_of_a_transaction(self: OwnedTable) -> bool:
    """Dead letters are deleted by age with all that was discarded in the same moment, or not at all. Without it the
    limit of a statement, or a row that stays, leaves a part of a transaction, which an operator then delivers."""
    statement: LiteralString = "DELETE FROM {0} WHERE ctid = ANY (ARRAY(SELECT ctid FROM {0} ORDER BY id LIMIT 2))"
    first = sql.SQL(statement).format(sql.Identifier(self._names.schema, self._names.discarded))
    return self._connection.execute(first).rowcount == 2


@mutant(read_cursor.behind, "R62", Harm.LOST)
@fails("unit/relay/test_read_cursor.py::test_a_place_has_what_its_snapshot_does_not_show")
@fails("integration/relay/test_table_source.py::test_row_that_commits_long_after_higher_ids_is_delivered")
def r62_transactions_in_progress(last: int, snapshot: str) -> Place:
    """A table source reads forward, and besides the rows of transactions that were in progress when it read before.
    Without it, a row that was given its id early and committed late is below the id from which the source reads."""
    return Place(last, (), snapshot.split(":")[1])


@mutant(read_cursor.behind, "R62", Harm.OUT_OF_ORDER)
@fails("unit/relay/test_read_cursor.py::test_a_place_has_what_its_snapshot_does_not_show")
def r62_transactions_that_began_later(last: int, snapshot: str) -> Place:
    """A snapshot lists what is in progress only below its xmax. A transaction from there on may have a lower row, too,
    which commits later. Without it that row is read when the source is taken over next, behind others of its key."""
    open_ = snapshot.split(":")[2]
    return Place(last, open_.split(",") if open_ else ())


@mutant(SourceTable._beyond, "R55", Harm.OUT_OF_ORDER)
@fails("integration/relay/test_cut_windows.py::test_what_the_bytes_of_a_window_cut_is_behind_it")
@fails("integration/relay/test_table_source.py::test_a_large_transaction_stays_whole_and_keeps_the_order_of_its_keys")
def r55_transactions_that_a_window_cuts(self: SourceTable, found: Sequence[Any]) -> frozenset[Local]:
    """A window that was cut is looked over for local transactions that go on behind it. Without it their first rows are
    delivered without the others: readers see half of a change."""
    return frozenset()


@mutant(named_rows.ranges, "R71", Harm.STUCK)
@fails("unit/relay/test_named_rows.py::test_ranges_name_nothing_but_their_ids")
@fails("integration/relay/test_table_source.py::test_a_large_transaction_stays_whole_and_keeps_the_order_of_its_keys")
def r71_range_that_names_too_much(ids: Sequence[int]) -> str:
    """The ranges of a batch name its rows and no others. A range with a foreign row in it deletes fewer rows than it
    names, and the source halts: without that count it would delete a row that was never delivered."""
    return f"{{[{ids[0]},{ids[-1]}]}}" if ids else "{}"


@mutant(TransactionalDelivery._fill, "R55", Harm.DOUBLED)
@fails("unit/relay/test_delivery.py::test_nothing_is_committed_before_what_must_be_durable")
def r55_commit_before_the_name(
    self: TransactionalDelivery,
    records: Iterable[Record],
    offsets: Sequence[TopicPartition],
    group_metadata: bytes,
    ready: Ready = at_once,
) -> None:
    """Kafka commits a batch only when the database has named it. Without it a relay that dies in between leaves
    records that the database does not know, and the next owner delivers their rows once more."""
    _FILL(self, records, offsets, group_metadata)


_ADVANCE = TableSource._advance


@mutant(TableSource._advance, "R55", Harm.DOUBLED)
@fails("unit/relay/test_lost_sessions.py::test_a_step_that_fails_ends_the_owner")
def r55_lost_naming(self: TableSource, admitted: Admitted) -> bool:
    """An owner whose batch could not be named ends. Without it the failure of the statement is lost in its thread: the
    owner goes on from a batch that the database does not have, and Kafka has records of rows that are never settled."""
    with suppress(psycopg.Error):
        return _ADVANCE(self, admitted)
    return True


_UNBOUNDED = source_table._WINDOW.replace("{bounded}", "true")
_READ = SourceTable.window


@mutant(SourceTable.window, "R68", Harm.STUCK)
@fails(
    "integration/relay/test_table_evidence.py::test_nothing_is_read_of_rows_beyond_the_bounds_and_they_stop_no_other"
)
def r68_rows_beyond_the_bounds(self: SourceTable, rows: int, size: int, skip: Sequence[int]) -> Window:
    """What is read of a row of a message table is bounded. Postgres keeps large values compressed: half a megabyte of
    headers unpacks to fifty in the relay, and a row of a gigabyte ends it, again and again."""
    self._window = self._table.compose(_UNBOUNDED)
    return _READ(self, rows, size, skip)


_UNCOUNTED = source_table._MOVE.replace("{counted}", "SELECT batch FROM moved")


@mutant(SourceTable.move, "R71", Harm.DOUBLED)
@fails("integration/relay/test_table_counts.py::test_a_trigger_that_suppresses_what_is_settled_halts_the_source")
def r71_rows_that_stay(
    self: SourceTable, before: Progress, after: Progress, ready: Sequence[Row] = (), refused: Refused = ()
) -> Progress:
    """The statement that settles a batch counts what it has done, and fails unless that is all of it. Without it a
    trigger that suppresses a DELETE brings the same messages again and again: the batch is settled, its rows stay."""
    self._move = self._table.compose(_UNCOUNTED)
    return _MOVE(self, before, after, ready, refused)


_INIT = MessageTable.__init__


@mutant(MessageTable.__init__, "R72", Harm.LOST)
@fails("integration/relay/test_table_identity.py::test_rows_that_got_the_ids_of_delivered_ones_are_not_deleted")
def r72_id_alone(self: MessageTable, names: TableNames) -> None:
    """A row is settled by its local transaction and its id. By the id alone, rows that were given the ids of a
    delivered batch, because the ids were restarted, are deleted as delivered, and nobody has ever read them."""
    _INIT(self, names)
    self._names["gone"] = re.sub(r"m\.(xid|created_at) = b\.\w+\[m\.id \+ shift\]", "true", self._names["gone"])
    self._names["missing"] = "0"


_TRUSTING = source_table._WINDOW.replace("last_value - CAST(NOT is_called AS integer) < %(newest)s", "false").replace(
    "<> CAST(%(ids_file)s AS oid)", "IS NULL"
)


@mutant(SourceTable.window, "R72", Harm.OUT_OF_ORDER)
@fails(
    "integration/relay/test_table_identity.py::test_ids_that_were_set_back_and_have_passed_the_highest_reorder_nothing"
)
def r72_ids_that_were_set_back(self: SourceTable, rows: int, size: int, skip: Sequence[int]) -> Window:
    """A window is read only if the sequence goes on from the ids that were seen. Without it a source reads on from
    above the ids that are given out again, and the messages that have them are overtaken by later ones of their key."""
    self._window = self._table.compose(_TRUSTING)
    return _READ(self, rows, size, skip)


@mutant(transactions, "R72", Harm.LOST)
@fails("unit/relay/test_table_admission.py::test_rows_with_one_xid_and_two_starts_are_two_transactions")
@fails(
    "integration/relay/test_table_identity.py::test_rows_of_an_old_transaction_with_the_same_xid_are_another_transaction"
)
def r72_xid_alone(rows: Iterable[Row]) -> list[RowTransaction]:
    """Rows are of one local transaction if they have its xid and its start. By the xid alone, rows of a restored dump
    join new ones with the same xid, and one that cannot be delivered takes a stranger's transaction with it."""
    grouped: defaultdict[tuple[int, str], list[RowMessage]] = defaultdict(list)
    for row in rows:
        grouped[row.xid, row.service].append(_message(row))
    return [RowTransaction(transaction_id(some[0].row), which(some[0].row), some) for some in grouped.values()]


@mutant(SourceTable._require_new, "R72", Harm.DOUBLED)
@fails("integration/relay/test_table_identity.py::test_a_row_that_comes_back_is_never_delivered_again")
@fails("integration/relay/test_table_identity.py::test_a_dead_letter_whose_row_comes_back_stays_one")
def r72_rows_that_come_back(self: SourceTable, found: Sequence[Row]) -> None:
    """A source keeps the highest id that ever left its table, and looks below it for rows that have come back. Without
    it a message table that is restored alone, as from a backup of it, is delivered once more."""


@mutant(is_of_a_copy, "R73", Harm.LOST)
@fails("unit/relay/test_table_progress.py::test_copies_delete_nothing_unread_and_a_conflict_halts_both")
@fails("integration/relay/test_table_copies.py::test_two_copies_halt_and_delete_nothing_unread")
def r73_batch_of_a_copy(progress: Progress, committed: Committed) -> bool:
    """An equal number proves a batch only together with its nonce. Without it a copy of a database, served under the
    same name, takes the batch of another copy for its own, and deletes rows as delivered that nobody delivered."""
    return False


_STATEMENT = table_publisher._statement


@mutant(table_publisher._statement, "R74", Harm.LOST)
@fails("integration/library/test_outcome_after_crash.py::test_a_transaction_whose_xid_another_one_got_is_not_committed")
@fails("integration/library/test_table_mode.py::test_the_outcome_is_that_of_the_start_too")
def r74_proof_by_row(names: TableNames, transaction_id: str, *, numbered: bool) -> Statement:
    """`outcome()` of table mode says COMMITTED only for a row of the same xid and start. By its xid alone, a
    transaction that a crash or failover has taken is called committed once another one has its xid."""
    text, parameters = _STATEMENT(names, transaction_id, numbered=numbered)
    before, _, rest = text.partition("WHEN EXISTS")
    _, then, after = rest.partition(" THEN 'committed'")
    return Statement(f"{before}WHEN ahead < 0 AND pg_xact_status(xid) = 'committed'{then}{after}", parameters)


Opened = psycopg.Connection[Any]
TableName = tuple[str, str]
_BREACHES = table_contract._breaches


@mutant(table_contract._breaches, "R75", Harm.OUT_OF_ORDER)
@fails("integration/library/test_table_contract.py::test_the_commands_refuse_tables_that_break_it")
def r75_cache_of_ids(connection: Opened, table: Table, place: TableName, facts: Facts) -> Iterator[Breach]:
    """The sequence of a message table has no cache. With one, each session gives out ids of its own range, and rows of
    one key are not read in the order of the changes."""
    yield from _BREACHES(connection, table, place, facts._replace(ids=table_contract._way(table)))


@mutant(table_contract._breaches, "R75", Harm.OUT_OF_ORDER)
@fails("integration/library/test_table_contract.py::test_a_breach_is_found")
def r75_defaults_and_identity(connection: Opened, table: Table, place: TableName, facts: Facts) -> Iterator[Breach]:
    """What a row gets that leaves a column out is part of the contract. With ids that a writer may choose, or with a
    start that is the time of the row, the rows of one local transaction are delivered as several, in another order."""
    return (one for one in _BREACHES(connection, table, place, facts) if "has other defaults" not in one.what)


@mutant(table_contract._breaches, "R75", Harm.STUCK)
@fails("integration/library/test_table_contract.py::test_a_breach_is_found")
def r75_checks(connection: Opened, table: Table, place: TableName, facts: Facts) -> Iterator[Breach]:
    """The checks that bound a row are part of the contract, and are validated. Without them one row takes all the
    memory of a checker, again after each restart."""
    return (one for one in _BREACHES(connection, table, place, facts) if "has not validated" not in one.what)


@mutant(table_contract._breaches, "R75", Harm.LOST)
@fails("integration/library/test_table_contract.py::test_a_breach_is_found")
def r75_primary_keys(connection: Opened, table: Table, place: TableName, facts: Facts) -> Iterator[Breach]:
    """The primary key of each table is part of the contract. Without that of the callback table a rollback row and the
    row of the application are there both, and a committed message is rolled back."""
    return (one for one in _BREACHES(connection, table, place, facts) if "primary key" not in one.what)


@mutant(table_contract._breaches, "R75", Harm.LOST)
@fails("integration/library/test_table_contract.py::test_a_breach_is_found")
def r75_constraints_of_others(connection: Opened, table: Table, place: TableName, facts: Facts) -> Iterator[Breach]:
    """A table has no constraints but its own. Without it the message of a committed transaction is deleted with the
    row of another table that it refers to."""
    return (one for one in _BREACHES(connection, table, place, facts) if "not its own" not in one.what)


@mutant(publish_function.is_altered, "R75", Harm.LOST)
@fails("integration/library/test_table_contract.py::test_a_breach_is_found")
def r75_source_of_the_function(connection: psycopg.Connection[Any], names: TableNames) -> bool:
    """The source of `outbox_publish()` is part of the contract. Without it a function that was altered, or declared
    STRICT, loses a message whose transaction commits."""
    return False


@mutant(OwnedTable.verify, "R75", Harm.DOUBLED)
@fails("integration/relay/test_altered_tables.py::test_a_table_with_a_trigger_is_not_taken_over_until_it_is_dropped")
def r75_contract_at_take_over(self: OwnedTable) -> None:
    """A source whose tables break their contract is halted at its take-over. Without it a trigger that keeps rows lets
    the relay deliver them again and again, for as long as it runs."""


@mutant(TableSource._verify, "R75", Harm.OUT_OF_ORDER)
@fails(
    "integration/relay/test_altered_tables.py::test_a_table_that_is_altered_while_it_is_served_halts_within_the_minute"
)
def r75_contract_while_serving(self: TableSource) -> None:
    """A source whose tables are altered while it serves them is halted. Without it a cache that a tuner gives the
    sequence breaks the order of each key until the next take-over."""


@mutant(OwnedTable.require_session, "R76", Harm.STUCK)
@fails("integration/relay/test_altered_tables.py::test_a_lock_in_another_session_is_told")
def r76_session_of_the_lock(self: OwnedTable) -> None:
    """An owner runs its statements in the session that holds its lock. Behind a pooler in transaction mode the lock
    stays in a session that others use, and two relays take the table for theirs."""


_OF = MessageInsert.of
_SPLIT = "CAST(string_to_array(CAST(%s AS text), ',', '-') AS bytea[])"


@mutant(MessageInsert.of, "R77", Harm.OUT_OF_ORDER)
@fails("integration/library/test_table_mode.py::test_no_setting_of_a_session_decides_what_a_row_has")
def r77_arrays_of_bytes(
    self: MessageInsert, messages: Sequence[Message], *, numbered: bool, more: str = ""
) -> Statement:
    """No setting of the application's session decides what a published row has. Arrays of bytes are written by
    `standard_conforming_strings`: with it off, other keys and bodies are stored than were published."""
    text, parameters = _OF(self, messages, numbered=numbered, more=more)
    if len(messages) == 1 or numbered:
        return Statement(text, parameters)
    contents = [message.key_bytes() for message in messages], [message.value_bytes() for message in messages]
    return Statement(text.replace(_SPLIT, "CAST(%s AS bytea[])"), (*parameters[:4], *contents, *parameters[6:]))


@mutant(dsn._session_parameters, "R77", Harm.OUT_OF_ORDER)
@fails("integration/relay/test_session_settings.py::test_each_connection_has_the_settings_that_decide_text")
@fails("integration/relay/test_session_settings.py::test_settings_of_a_role_decide_no_byte_of_a_foreign_table")
def r77_settings_of_our_sessions(options: str) -> dict[str, str]:
    """Each session of relay, checker and operators has the settings that decide text. Without them those of a role, a
    database or an environment decide the key of a row of a foreign table, and so its partition."""
    return {"options": options}


@mutant(RowWriter._require, "R78", Harm.LOST)
@fails("integration/library/test_table_copy.py::test_a_trigger_that_drops_or_adds_rows_ends_the_transaction")
def r78_rows_that_are_counted(self: RowWriter, connection: InsertConnection, messages: int, *counts: int) -> None:
    """The rows that a publication has written are counted. Without it a trigger that drops rows makes the transaction
    commit without some of its messages, silently."""


_BODY = publish_function._body


@mutant(publish_function._body, "R78", Harm.LOST)
@fails("integration/library/test_table_mode.py::test_the_sql_function_counts_its_row")
def r78_row_of_the_function(names: TableNames) -> str:
    """`outbox_publish()` fails unless its row was inserted. Without it a trigger that keeps the row out makes the
    transaction commit without its message, and NULL is all that its caller sees."""
    return _BODY(names).replace("IF NOT FOUND", "IF false")


@mutant(Inbox._was_handled, "R78", Harm.LOST)
@fails(
    "integration/library/test_inbox.py::test_a_row_that_a_trigger_keeps_out_is_not_taken_for_a_message_that_was_handled"
)
def r78_row_of_the_inbox(self: Inbox, id_: str, rows: Sequence[object]) -> bool:
    """A consumer that has stored no id looks whether it is there. Without it a trigger that keeps rows out makes each
    message one that was handled: its offset is committed, and nothing is done for it."""
    return False


_original = _SourceThread._halt


@mutant(_SourceThread._halt, "R81", Harm.STUCK)
@fails("integration/relay/test_unforeseen.py::test_an_unforeseen_error_halts_its_table_source_alone")
def r81_table_source(self: _SourceThread, error: Exception) -> None:
    """An unforeseen error halts the table source that it is about. Without it one row that meets a bug ends the relay,
    again after each restart: all tables and half partitions stand still."""
    if not isinstance(error, UnsafeError):
        raise error
    _original(self, error)


@mutant(OwnedTable.note_halt, "R81", Harm.STUCK)
@fails("integration/operator/test_pending_tables.py::test_a_source_that_its_owner_halted_is_shown_with_the_cause")
def r81_cause_of_a_halt(self: OwnedTable, reason: str | None) -> None:
    """Why a table source is halted stays beside its progress. Without it only the log of one relay has the cause:
    `outbox pending` and doctor show no owner, and an operator starts another relay, which halts, too."""


@mutant(OwnerLook.column, "R82", Harm.STUCK)
@fails("integration/library/test_owner_look.py::test_the_metric_begins_at_zero")
def r82_table_without_a_relay(self: OwnerLook) -> str:
    """An application looks whether a relay delivers its message table. Without it a table that no relay names has rows
    that wait for ever, and no log, metric or alert of any process says so."""
    return ""


def _woken(self: SourceTable, before: str, after: str) -> bool:
    """Move messages by a statement in which some text is another one."""
    statement = self._table.compose(source_table._WAKE).replace(before, after)
    self._connection.execute(statement.encode(), {"rows": WAKE_ROWS})
    return False


@mutant(SourceTable._wake, "R89", Harm.LOST)
@fails("integration/relay/test_scheduled.py::test_due_message_that_is_wrong_concerns_no_other")
def r89_transactions_of_their_own(self: SourceTable) -> bool:
    """Messages of several local transactions that are moved together stay several. As one transaction they are
    discarded together, because of one that cannot be delivered."""
    return _woken(self, "dense_rank() OVER (ORDER BY not_before, xid, created_at)", "1")


@mutant(SourceTable._wake, "R89", Harm.STUCK)
@fails("integration/relay/test_scheduled.py::test_open_cancellation_holds_up_no_other_message")
def r89_cancellation_that_is_open(self: SourceTable) -> bool:
    """The statement passes by a row that an open transaction deletes. Without it no message comes while any application
    that has cancelled one leaves its transaction open."""
    return _woken(self, " SKIP LOCKED", "")


@mutant(SourceTable._wake, "R89", Harm.LOST)
@fails("integration/relay/test_scheduled.py::test_messages_of_one_transaction_and_time_come_together_or_not_at_all")
def r89_part_of_a_transaction(self: SourceTable) -> bool:
    """What a local transaction has of one time moves together. Without it what another transaction cancels comes later,
    if that is rolled back, as a transaction of its own: half of it may be discarded, and the other half delivered."""
    return _woken(self, "WHERE cardinality(ids) = (SELECT", "WHERE 0 < (SELECT")


@mutant(SourceTable.move, "R90", Harm.STUCK)
@fails("integration/operator/test_erase.py::test_rows_that_an_owner_has_read_or_named_do_not_halt_it")
def r90_erasure_that_is_not_counted(
    self: SourceTable, before: Progress, after: Progress, ready: Sequence[Row] = (), refused: Refused = ()
) -> Progress:
    """The owner's next step fails if rows were erased since it read them. Without it the step names a row that is gone,
    and when it is to delete that, the source halts; the operator was answered that the row will not be delivered."""
    self._move = self._table.compose(source_table._MOVE.replace(" AND erasures = %(erasures)s", ""))
    return _MOVE(self, before, after, ready, refused)
