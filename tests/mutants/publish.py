"""What an application publishes with: its half messages, its row, its marker, its process."""

from collections.abc import Collection, Sequence
from typing import Any

import psycopg
from confluent_kafka import Consumer, KafkaError, Message
from sqlalchemy.engine import Connection
from sqlalchemy.pool import PoolResetState

from outbox._consume import trial
from outbox._consume.consumer_loop import ConsumerLoop
from outbox._half.cluster_connection import Circuit
from outbox._half.seal import Seal
from outbox._half.sender import Acks, Sender
from outbox._publish import sqlalchemy_session
from outbox._publish.local_connection import LocalConnection
from outbox._publish.own_transaction import _abandon
from outbox._publish.publisher import Participant
from outbox._publish.sqlalchemy_session import PublishedTransaction, _refuse_end_in_sql
from outbox._publish.waiting import Budget
from outbox._rules.half_place import HalfPlace
from outbox.errors import TransactionFenced
from outbox.protocol.op import OpEntry
from tests.mutants.runner.catalogue import fails, mutant
from tests.mutants.runner.mutant import Harm


@mutant(Circuit.failed, "circuit", Harm.STUCK)
@fails("process/test_circuit.py::test_circuit_opens_at_the_first_silence")
def circuit_of_the_outbox(self: Circuit, since: float, cause: str) -> bool:
    """After a time-out, publications fail at once until a probe succeeds. Without it each local transaction of an
    outage holds its connection for the whole `publish_timeout_seconds`: the pool is empty for readers, too."""
    return False


@mutant(Acks._report, "R3", Harm.LOST)
@fails("unit/outbox/test_acks.py::test_an_acknowledgement_without_an_offset_does_not_count")
def r03_offset_of_the_acknowledgement(self: Acks, index: int, error: KafkaError | None, message: Message) -> None:
    """A half counts as stored only when it was acknowledged with an offset. librdkafka reports a duplicate sequence
    number as delivered, without one: with -1 in the row and the marker, the committed message is lost."""
    offset = message.offset()
    with self._lock:
        if error is not None:
            self.error = f"{error.name()}: {error.str()}"
        else:
            self._offsets[index] = -1 if offset is None else offset
        self._left -= 1
        notify = None
        if self._left == 0:
            notify, self._when_all = self._when_all, None
    if notify is not None:
        notify()


@mutant(Seal._acknowledged, "R4", Harm.STUCK)
@fails("integration/library/test_lock.py::test_it_is_taken_while_acknowledgements_are_late")
def r04_lock_before_the_halves(self: Seal, budget: Budget) -> list[int]:
    """While acknowledgements are late, the transaction's advisory lock says that it lives. Without the lock the checker
    fences each attempt of the application for as long as Kafka is slow."""
    return self._acks.offsets(budget)


_insert = Seal._insert


@mutant(Seal._insert, "R4", Harm.LOST)
@fails("integration/library/test_seal.py::test_the_checker_was_first")
def r04_row_against_the_rollback_row(self: Seal, entry: OpEntry) -> str | None:
    """The row is an INSERT whose COMMIT falls with it. An application that gets past the rollback row, by a SAVEPOINT
    or ON CONFLICT DO NOTHING, commits its business rows while that stands: its message is lost."""
    self._connection.execute("SAVEPOINT before_the_row")
    try:
        return _insert(self, entry)
    except TransactionFenced:
        self._connection.execute("ROLLBACK TO SAVEPOINT before_the_row")
        return None


@mutant(Seal._notice, "R5", Harm.PHANTOM)
@fails("integration/relay/test_restarts.py::test_a_commit_that_was_not_replicated_is_left_to_the_checker")
def r05_commit_that_was_not_replicated(self: Seal, diagnostic: psycopg.errors.Diagnostic) -> None:
    """A COMMIT whose wait for the standby was cancelled is not one that was seen to succeed. A marker has the message
    delivered at once; if the server is lost then, the standby never had the change: a phantom."""


@mutant(PublishedTransaction._has_rows, "R5", Harm.PHANTOM)
@fails("unit/outbox/test_commit_outcome.py::test_an_idle_connection_is_no_proof_of_a_commit")
def r05_commit_that_was_seen(self: PublishedTransaction, *, presumed: bool) -> bool | None:
    """Only a COMMIT that was seen to succeed sends an op marker. A connection is idle also after one that failed, of
    which a handler of the user's has kept the library from hearing: a phantom is delivered."""
    return True


@mutant(LocalConnection.require_healthy, "R5", Harm.PHANTOM)
@fails("unit/outbox/test_commit_outcome.py::test_what_is_outside_its_transaction_or_in_a_failed_one_is_not_sealed")
def r05_healthy_transaction(self: LocalConnection, *, begun: bool = True) -> None:
    """What is sealed must still be in its transaction, and that must be healthy. After a raw ROLLBACK the INSERT of the
    row begins another one, which commits without the business rows: a phantom."""


@mutant(sqlalchemy_session._reset, "R6", Harm.LOST)
@fails("integration/library/test_session_more.py::test_a_reset_of_another_connection_that_shares_the_drivers")
def r06_a_reset_is_no_rollback(dbapi_connection: Any, _record: Any, state: PoolResetState) -> None:
    """A connection that was reset says nothing of what was before. The pool may reset a later transaction, on another
    Connection with the same one of the driver: a rollback marker loses the committed message."""
    published = sqlalchemy_session._sealed_on(dbapi_connection)
    if published is None:
        return
    if state.transaction_was_reset:
        published.end(rolled_back=published.connection.roll_back())
    else:
        published.conclude()


@mutant(LocalConnection.commit_definitely_failed, "R6", Harm.LOST)
@fails("unit/outbox/test_commit_outcome.py::test_nothing_is_said_where_the_outcome_of_commit_is_not_known")
def r06_silence_where_the_outcome_is_not_known(self: LocalConnection, error: BaseException) -> bool:
    """A rollback marker leaves only where COMMIT was not sent, or definitely failed. Where its reply is lost it may
    have succeeded: the relay obeys the marker, and the message of a committed transaction is lost."""
    return True


@mutant(HalfPlace.holds, "R39", Harm.STUCK)
@fails("unit/outbox/test_half_place.py::test_low_offset_shows_a_new_topic")
def r39_offset_of_a_new_topic(self: HalfPlace, offsets: Sequence[int], topic_ids: Collection[str]) -> bool:
    """A half whose offset is lower than one that its partition had reached lies in a topic that was made again. Without
    it an application commits undelivered messages until it describes the topic anew."""
    return set(topic_ids) == {self.topic_id}


@mutant(Sender.require_same_topic, "R39", Harm.STUCK)
@fails("integration/library/test_recreated_channel.py::test_transaction_of_a_former_half_topic_is_rolled_back")
def r39_seal_of_a_former_topic(self: Sender, place: HalfPlace, offsets: Sequence[int]) -> None:
    """A transaction whose halves lie in a half topic that was made again is rolled back at its seal. Without it, an
    application that runs on after a channel was made again commits, and nothing is delivered until it is restarted."""


@mutant(Sender.start_afresh, "R46", Harm.STUCK)
@fails("process/test_forks.py::test_child_has_no_producer_of_its_parent_and_ends")
def r46_fresh_start_after_a_fork(self: Sender) -> None:
    """A forked child starts afresh. With the clients of its parent, whose threads do not exist in the child, `ping()`,
    `publish()` and the end of the process wait for ever."""


@mutant(Seal.rolled_back, "R46", Harm.LOST)
@fails("process/test_forks.py::test_rollback_marker_is_sent_by_the_process_that_began")
def r46_marker_of_the_parent(self: Seal) -> None:
    """A forked child neither marks nor goes on with what was begun before the fork. A child that collects its copy of a
    session would send ROLLBACK for what the parent is about to commit: lost."""
    self._end(self._outcome_without_commit)
    if self._sent:
        self._acks.when_all(self._send_rollback)


@mutant(_refuse_end_in_sql, "R47", Harm.PHANTOM)
@fails("integration/library/test_raw_ends.py::test_end_in_sql_of_a_session_is_refused")
def r47_end_in_sql(connection: Connection, _cursor: Any, statement: str, *_: Any) -> None:
    """A statement that would end a session's transaction with messages in it is refused. Without it, the change before
    a ROLLBACK in SQL is gone, and the message is published with the transaction that the next statement begins."""


@mutant(sqlalchemy_session._begin, "R47", Harm.LOST)
@fails("unit/outbox/test_in_memory.py::test_the_same_on_a_connection_that_is_used_again")
def r47_listener_that_raises_before_the_seal(connection: Connection, *_: Any) -> None:
    """What a listener of the application has kept from COMMIT ends before the next transaction. Without it, that one
    commits the change of a transaction whose messages were never sealed: they are lost."""


@mutant(_abandon, "R47", Harm.STUCK)
@fails("integration/library/test_raw_ends.py::test_exception_at_any_line_gives_both_or_neither")
def r47_exception_before_commit(connection: LocalConnection, part: Participant, *, sealed: bool) -> None:
    """An exception at any line leaves no connection in its transaction. After one of a signal handler between the seal
    and COMMIT, whoever takes the connection next commits what was given up."""
    if not sealed:
        connection.roll_back()
        part.rolled_back()


@mutant(ConsumerLoop._take_one, "R88", Harm.LOST)
@fails("integration/library/test_consumer_loop.py::test_error_without_a_dead_letter_topic_ends_the_call")
def r88_offset_after_the_transaction(self: ConsumerLoop, consumer: Consumer) -> None:
    """The offset of a message is stored once its transaction is committed, or its dead letter is acknowledged. Stored
    before, it is committed when the consumer is closed for the message's error: the message never comes again."""
    message = self._early.popleft() if self._early else self._polled(consumer, 0.5)
    if message is not None:
        consumer.store_offsets(message)
        self._is_done(consumer, message)


@mutant(ConsumerLoop._take_one, "R88", Harm.LOST)
@fails("unit/outbox/test_consumer_loop.py::test_nothing_behind_a_message_that_was_left_is_stored_before_it")
def r88_behind_one_that_was_left(self: ConsumerLoop, consumer: Consumer) -> None:
    """What came behind a message whose partition was lost is left with it. Handled all the same, its offset is stored
    first if the partition is back, and the earlier message never comes again."""
    message = self._early.popleft() if self._early else self._polled(consumer, 0.5)
    if message is not None and self._is_done(consumer, message):
        consumer.store_offsets(message)


@mutant(trial.passes_by_itself, "R88", Harm.STUCK)
@fails("integration/library/test_consumer_loop.py::test_outage_of_the_database_counts_as_no_attempt")
def r88_outage_of_the_database(error: BaseException) -> bool:
    """An outage is no fault of a message. Counted as one, it ends the consumer, or makes dead letters of all messages
    that come while it lasts."""
    return False
