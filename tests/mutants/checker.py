"""The checker: the fence, verdicts, the purge and the audit."""

import time
from collections.abc import Iterable, Sequence
from typing import Any

import psycopg
from confluent_kafka import Consumer, Message

from checker.database import Database
from checker.fencing import callback_rows
from checker.fencing.callback_rows import _INSERT, _columns, _insert, _look_again, foreign, read_rows
from checker.fencing.fence import Fence
from checker.rules.breaker import Breaker, Event, Evidence
from checker.rules.settlement import (
    ChannelProgress,
    CommittedRow,
    Delay,
    _why_unsettled,
    settled_below,
    why_undelivered,
)
from checker.rules.verdicts import CONSEQUENCES, Verdict, of_row, op_entry
from checker.upkeep.delivery_progress import DeliveryReader, DiscardIndex
from outbox._kafka.admin import end_offsets
from outbox._kafka.consumed_records import seek_to_end
from outbox._postgres.callback_table import _OPEN, CallbackTable
from outbox._postgres.dsn import server_limits
from outbox._rules.broker_clock import STALE_MS, RequestAges
from outbox._rules.callback_row import Row, answer, read_row
from outbox.protocol.check import CheckRequest
from outbox.protocol.op import OpEntry, OpKind
from outbox.protocol.positions import Positions
from outbox.settings import TableNames
from tests.mutants.runner.catalogue import fails, mutant
from tests.mutants.runner.mutant import Harm


@mutant(read_rows, "R8", Harm.STUCK)
@fails("integration/checker/test_fence.py::test_an_application_that_commits_while_the_checker_is_at_it_is_seen")
def r08_read_after_the_rollback_row(
    connection: psycopg.Connection[Any], table: CallbackTable, ids: Sequence[str]
) -> dict[str, Row]:
    """The checker reads after it has placed the rollback row, in a statement of its own. Read before, the row of who
    commits meanwhile is not seen, and meets the rollback row: PURGED, which only an operator ends."""
    return {}


@mutant(Fence._write, "R9", Harm.PHANTOM)
@fails("integration/checker/test_fence_durability.py::test_a_row_that_is_not_replicated_is_not_told")
def r09_synchronous_write(self: Fence, connection: psycopg.Connection[Any]) -> None:
    """A COMMITTED verdict leaves only after a synchronous write of the checker's own. A row is visible before it is
    durable: if the server is lost then, what was delivered says what the database does not."""


@mutant(Breaker.judge, "R10", Harm.LOST)
@fails("unit/checker/test_breaker.py::test_it_opens_before_the_rollback_rows_are_placed")
@fails("unit/checker/test_breaker.py::test_an_old_commit_shows_nothing_of_what_came_after_it")
@fails("unit/checker/test_breaker.py::test_a_checker_that_starts_anew_counts_the_rollback_rows_that_are_there")
def r10_circuit_breaker(self: Breaker, ids: Sequence[str], evidence: Evidence, now: float) -> bool:
    """Of a service that commits nothing any more, no more is fenced than a crash can explain. In a copy of the
    database, which has the right incarnation, what is asked about has no row: all is rolled back, and lost."""
    self._move(Event.EXPLAINED)
    return True


@mutant(foreign, "R10", Harm.LOST)
@fails("integration/checker/test_fence.py::test_another_incarnation_never_decides")
def r10_incarnation(batch: Iterable[CheckRequest], incarnation: str | None) -> set[str]:
    """A half names the incarnation of its database, and another one never decides. A staging database has no rows:
    everything that is asked there would be fenced, and messages of committed transactions rolled back."""
    return set()


_INIT = CallbackTable.__init__


@mutant(CallbackTable.__init__, "R10", Harm.LOST)
@fails("integration/checker/test_fence.py::test_a_copy_of_the_database_never_decides")
@fails("integration/checker/test_fence_durability.py::test_a_standby_is_the_same_database_and_another_server_is_not")
def r10_identity_of_the_server(self: CallbackTable, names: TableNames) -> None:
    """The incarnation is bound to the server and the database. A dump that is restored elsewhere has the same value in
    its table. Bound to that value alone, a checker that is pointed at it fences what commits in the original."""
    _INIT(self, names)
    self._names["incarnation"] = self.compose("(SELECT value FROM {meta} WHERE key = 'incarnation')")
    self.open_statement = self.compose(_OPEN)


_BLIND = _INSERT.replace("value::bigint > asked.last", "false")


@mutant(_insert, "R11", Harm.LOST)
@fails("integration/checker/test_fence.py::test_below_the_purge_watermark_nothing_is_fenced")
def r11_below_the_watermark(
    connection: psycopg.Connection[Any],
    table: CallbackTable,
    channel: str,
    requests: Sequence[CheckRequest],
    *,
    in_discard_topic: bool,
) -> bool:
    """Rows leave by settlement and age; below the purge watermark nothing is fenced. Rows below it may have been
    purged: a rollback row there decides ROLLBACK for a transaction that committed: its message is lost."""
    connection.execute(table.compose(_BLIND), (channel, *_columns(requests), []))
    return True


@mutant(DeliveryReader.read, "R11", Harm.LOST)
@fails("integration/checker/test_purge.py::test_what_moves_to_the_discard_topic_between_the_looks_stays")
def r11_checkpoint_before_the_discard_topic(self: DeliveryReader) -> ChannelProgress:
    """The purge reads the checkpoint first, and the discard topic after it. The other way round, what moves to the
    discard topic in between is seen in neither place: its row is purged, and its decision is lost with it."""
    discards = self._read_discards()
    checkpoints = self._read_checkpoints()
    return self._progress(checkpoints, discards)


@mutant(DiscardIndex.read_on, "R11", Harm.LOST)
@fails("integration/checker/test_purge.py::test_nothing_goes_while_the_discard_topic_is_held_back")
def r11_discard_topic_to_its_end(self: DiscardIndex) -> frozenset[int]:
    """The purge reads the discard topic to the end that readers do not see yet. A checkpoint may be visible before the
    discard records of its Kafka transaction: what lies there is taken for delivered, and its row purged."""
    ends = end_offsets(self._admin, {self._topic: len(self._next)}, stable=True)[self._topic]
    if self._behind(ends):
        self._read(ends)
    return frozenset(range(len(ends)))


@mutant(settled_below, "R11", Harm.LOST)
@fails("unit/checker/test_settled.py::test_a_partition_whose_discard_topic_is_held_back_keeps_its_rows")
@fails("unit/checker/test_settled.py::test_without_a_checkpoint_nothing_is_known_and_nothing_may_go")
@fails("integration/checker/test_purge.py::test_without_a_checkpoint_that_proves_itself_nothing_goes")
def r11_purge_by_settlement(progress: ChannelProgress) -> dict[int, int]:
    """Rows leave by settlement and age, never by age alone. Only its row says that a transaction committed: if it is
    deleted because it is old, the next check takes its absence for a rollback, and its message is lost."""
    return {number: partition.end + 2**40 for number, partition in progress.partitions.items()}


@mutant(_look_again, "R11", Harm.DOUBLED)
@fails("integration/checker/test_purge.py::test_a_fence_that_meets_a_purge_is_no_rollback_row")
def r11_second_look_at_the_watermark(
    connection: psycopg.Connection[Any], table: CallbackTable, placed: Sequence[str]
) -> None:
    """A fence that meets a purge leaves no rollback row. Its INSERT waits for the purge's DELETE of the same row, and
    finds its key free: to its application a committed transaction is rolled back, and done once more."""


@mutant(RequestAges.is_stale, "R25", Harm.STUCK)
@fails("unit/outbox/test_request_age.py::test_request_age_of_first_record_is_zero")
@fails("unit/outbox/test_request_age.py::test_request_age_behind_newest_record_ignores_it")
@fails("unit/checker/test_check_intake.py::test_intake_with_a_wrong_wall_clock_reads_as_usual")
@fails("integration/checker/test_checker.py::test_checker_with_a_wrong_clock_decides_and_ends")
def r25_age_of_check_requests(self: RequestAges, partition: int, offset: int, append_time: int, monotonic: int) -> bool:
    """The age of a check request is one of append times and monotonic time. With a wall clock that is ahead, the
    checker drops all requests as stale ones: what has no op marker is stuck."""
    return append_time < time.time_ns() // 1_000_000 - STALE_MS


@mutant(op_entry, "R26", Harm.OUT_OF_ORDER)
@fails("unit/checker/test_verdicts.py::test_without_a_decision_there_is_silence")
def r26_outages_do_not_count(request: CheckRequest, verdict: Verdict, row: Row | None) -> OpEntry | None:
    """A check that could not be asked never counts. Counted as an answer UNKNOWN, an outage of a database uses up the
    checks of all that waits: it is given up undecided, out of its order, though its rows say COMMIT."""
    if CONSEQUENCES[verdict] is None:
        return answer(request, OpKind.UNKNOWN, request.positions, request.first_offset, request.last_offset)
    return op_entry(request, verdict, row)


@mutant(why_undelivered, "R27", Harm.LOST)
@fails("unit/checker/test_settled.py::test_why_a_committed_transaction_is_not_delivered")
@fails("integration/checker/test_settlement.py::test_each_reason_is_told")
def r27_what_lies_in_the_discard_topic(row: CommittedRow, progress: ChannelProgress) -> Delay | None:
    """Committed transactions that are not delivered are reported, those in the discard topic among them. To the
    checkpoint they are settled. If the audit believes that alone, nobody misses a message that lies there."""
    if row.topic_id != progress.topic_id:
        return Delay.DELETED_TOPIC
    return _why_unsettled(row, progress.partitions.get(row.partition)) if row.last_offset >= 0 else None


@mutant(of_row, "R39", Harm.STUCK)
@fails("integration/library/test_recreated_channel.py::test_row_of_a_former_half_topic_needs_somebody")
def r39_row_of_another_topic(row: Row, topic_id: str) -> Verdict:
    """A committed row that names another half topic than its halves is never called COMMITTED. Without it the checker
    counts the transaction as committed and sends no op marker: it is asked about for ever and never delivered."""
    return Verdict.COMMITTED if row.committed else Verdict.FENCED


@mutant(server_limits, "R41", Harm.STUCK)
@fails("integration/checker/test_checker.py::test_stopped_checker_is_replaced_and_does_no_harm")
def r41_limits_of_the_server(idle_seconds: int) -> str:
    """The server ends the session of a client that stands still inside a transaction. Without it a checker that is
    frozen inside a fence keeps its locks: no other one decides these transactions, and their keys wait."""
    return ""


_insert = callback_rows._insert


@mutant(callback_rows._insert, "R41", Harm.STUCK)
@fails("integration/checker/test_checker.py::test_stopped_checker_is_replaced_and_does_no_harm")
def r41_pipeline_in_the_fence(
    connection: psycopg.Connection[Any],
    table: CallbackTable,
    channel: str,
    requests: Sequence[CheckRequest],
    *,
    in_discard_topic: bool,
) -> bool:
    """The checker sends no statement in a pipeline. Between two commands of one a session is active, not idle, and no
    limit of the server applies: a checker that is frozen there keeps its locks."""
    with connection.pipeline():
        return _insert(connection, table, channel, requests, in_discard_topic=in_discard_topic)


@mutant(read_row, "R53", Harm.STUCK)
@fails("unit/checker/test_verdicts.py::test_row_whose_offsets_do_not_fit_is_damaged")
def r53_row_that_cannot_be_read(
    state: str, topic_id: str, partition: int, first_offset: int, last_offset: int, positions: str
) -> Row:
    """A row that cannot be read decides nothing and stops nobody. Without it the checker copies offsets that do not fit
    into an op record. To the relay the record is malformed: all other answers in it are lost."""
    return Row(state == "C", topic_id, partition, first_offset, last_offset, Positions.parse(positions))


@mutant(seek_to_end, "R54", Harm.STUCK)
@fails("unit/checker/test_check_intake.py::test_intake_unreadable_batch_is_passed_to_the_log_end")
@fails("integration/operator/test_unreadable_records.py::test_check_back_goes_on_behind_an_unreadable_batch")
@fails("integration/operator/test_unreadable_records.py::test_check_server_goes_on_behind_an_unreadable_batch")
def r54_unreadable_check_requests(consumer: Consumer, message: Message) -> None:
    """An unreadable record in the check topic stops no check-back. Without it checkers and listeners read the same
    offset for ever. What has no op marker is never decided."""


@mutant(CallbackTable.__init__, "R68", Harm.STUCK)
@fails("integration/checker/test_callback_bounds.py::test_a_row_beyond_the_bounds_is_refused")
def r68_rows_of_callback_tables(self: CallbackTable, names: TableNames) -> None:
    """What a row of a callback table unpacks to is bounded. An application may insert into it. Postgres keeps 250 MB of
    one letter in 3 MB, and the checker, which serves other teams, too, reads it whole."""
    _INIT(self, names)
    self._names["bounds"] = "true"


@mutant(Database._run, "R81", Harm.STUCK)
@fails("unit/checker/test_database_thread.py::test_a_batch_that_fails_unforeseen_leaves_the_next_one")
def r81_checks_of_a_database(self: Database) -> None:
    """An unforeseen error leaves the other batches of a database of the checker. Without it the first one ends the
    thread, and no check of this database is answered any more: undecided transactions stay undecided."""
    try:
        while not self._stopping.is_set():
            self._turn()
    except Exception as error:  # noqa: BLE001 - it ends the thread
        self.failing = repr(error)
