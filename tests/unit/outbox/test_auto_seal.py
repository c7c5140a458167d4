"""Which way a transaction of auto mode takes, and that it takes only one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from psycopg.pq import TransactionStatus

from outbox import Message, MessageRefused, PublishFailed, UsageError
from outbox._auto.auto_draft import AutoDraft
from outbox._auto.auto_seal import AutoSeal, why_behind_rows
from outbox._auto.auto_sender import AutoSender
from outbox._auto.fallback_rows import FallbackRows, Inserted, Look, require_mark
from outbox._postgres.callback_table import CallbackTable
from outbox._publish.acks import Acks
from outbox._publish.local_connection import LocalConnection, NoticeHandler, Result, Statement
from outbox._publish.seal import Sealer
from outbox._publish.waiting import BLOCKING, Budget
from outbox._rules.circuit_states import CircuitState
from outbox._rules.half_place import HalfPlace
from outbox._table.message_insert import LaneInsert
from outbox.protocol.identifiers import auto_transaction_id, is_table_id, make_transaction_id, table_transaction_id
from outbox.protocol.op import OpEntry, OpKind, OpSource
from outbox.protocol.partitioner import half_partition, lane_number
from outbox.protocol.record import Record
from outbox.recorder import FallbackReason, NoRecorder
from outbox.settings import Settings, TableNames

SETTINGS = Settings("orders", {"bootstrap.servers": "localhost:1"}, mode="auto", fallback_after_ms=10)
HALF_ID = auto_transaction_id(1_700_000_000_000, bytes(10))
ROW_ID = table_transaction_id(77, 1_700_000_000_000_000)
TOPIC_ID = "0190b8c2-0000-4000-8000-000000000001"


class Reasons(NoRecorder):
    """Keeps why messages fell back."""

    def __init__(self) -> None:
        self.kept: list[tuple[int, FallbackReason]] = []

    def messages_fell_back(self, group: str, count: int, reason: FallbackReason) -> None:
        """Keep it."""
        del group
        self.kept.append((count, reason))


class Scripted(AutoSender):
    """A sender that keeps what it is given. A test decides whether halves are acknowledged."""

    def __init__(self) -> None:
        self.reasons = Reasons()
        super().__init__(SETTINGS, self.reasons)
        self.halves: list[Callable[[], None]] = []
        self.ops: list[OpEntry] = []
        self.acknowledges = True

    def connect(self, budget: Budget) -> None:
        """Be connected."""

    def half_place(self, ordering_key: bytes | None, transaction_id: str) -> HalfPlace:
        """Return partition 0."""
        del ordering_key, transaction_id
        return HalfPlace(TOPIC_ID, 0, 0)

    def require_same_topic(self, place: HalfPlace, offsets: Sequence[int]) -> None:
        """Accept it."""

    def produce_half(self, half: Record, acks: Acks, budget: Budget) -> None:
        """Keep the half."""
        del half, budget
        report, offset = acks.expect(), len(self.halves)
        answer: Any = type("Report", (), {"offset": lambda _: offset})()
        self.halves.append(lambda: report(None, answer))
        if self.acknowledges:
            self.halves[-1]()

    def send_op(self, entry: OpEntry, source: OpSource = OpSource.PRODUCER, *, connect: bool = True) -> None:
        """Keep the op marker."""
        del source, connect
        self.ops.append(entry)

    def _takes_halves(self) -> bool:
        return False


class Rows(FallbackRows):
    """A message table that is looked at, and written to, in memory."""

    def __init__(self) -> None:
        super().__init__(SETTINGS)
        self.found = Look(in_doubt=False, rows_wait=False)
        self.looks: list[int] = []
        self.kept: list[tuple[bytes | None, int | None]] = []

    def look(self, connection: LocalConnection, lane: int) -> Look:
        """Return what the test has set."""
        del connection
        self.looks.append(lane)
        return self.found

    def insert(self, connection: LocalConnection, messages: Sequence[Message], lane: int | None) -> Inserted:
        """Keep keys and lane."""
        del connection
        self.kept += [(message.key_bytes(), lane) for message in messages]
        return Inserted(ROW_ID, [100 + number for number in range(len(messages))], "")


class Connection(LocalConnection):
    """In a transaction whose callback row is accepted."""

    waiting = BLOCKING
    status = TransactionStatus.INTRANS
    driver = type("Driver", (), {})()
    closed = False

    def __init__(self) -> None:
        self.statements = 0

    def execute(self, _statement: Statement, _parameters: Sequence[object] = ()) -> Result:
        """Answer the INSERT of the callback row, and the statement before it that takes the lock."""
        self.statements += 1
        return (
            Result((None, "incarnation"), None) if self.statements == 1 else Result((None, "on", "incarnation"), None)
        )

    def rollback(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""

    def listen(self, _handler: NoticeHandler) -> None:
        """There are no notices."""

    def unlisten(self, _handler: NoticeHandler) -> None:
        """There are no notices."""

    @contextmanager
    def autocommit(self, *, on: bool) -> Iterator[None]:
        """Makes no difference."""
        del on
        yield


class Transaction:
    """One transaction of auto mode with two messages."""

    def __init__(self, sender: Scripted | None = None, key: str | None = "k") -> None:
        self.sender, self.rows, self.connection = sender or Scripted(), Rows(), Connection()
        draft = AutoDraft(HALF_ID)
        self.receipts = [draft.add(Message("orders", "1", key)), draft.add(Message("orders", "2", "other"))]
        sealer = Sealer(SETTINGS, self.sender, CallbackTable(SETTINGS.tables))
        self.seal = AutoSeal(sealer, self.connection, draft, self.sender, self.rows)

    def commit(self) -> None:
        """Seal, and mark it as committed."""
        self.seal.seal()
        self.seal.committed()

    @property
    def ops(self) -> list[OpKind]:
        """The op markers that were sent."""
        return [entry.kind for entry in self.sender.ops]


@pytest.fixture
def sender() -> Iterator[Scripted]:
    made = Scripted()
    yield made
    made.close()


def test_transaction_goes_to_kafka_while_it_answers(sender: Scripted) -> None:
    transaction = Transaction(sender)
    transaction.commit()
    assert (transaction.rows.kept, transaction.ops) == ([], [OpKind.COMMIT])
    assert [receipt.message_id for receipt in transaction.receipts] == [f"{HALF_ID}/0", f"{HALF_ID}/1"]
    assert transaction.rows.looks == [lane_number("orders", b"k")]


def test_transaction_that_gets_no_answer_becomes_rows(sender: Scripted) -> None:
    """Halves that were sent are named by no row and no COMMIT marker; a late acknowledgement strikes them."""
    sender.acknowledges = False
    transaction = Transaction(sender)
    transaction.commit()
    lane = lane_number("orders", b"k")
    assert transaction.rows.kept == [(b"k", lane), (b"other", lane)]
    assert [receipt.message_id for receipt in transaction.receipts] == [f"{ROW_ID}/100", f"{ROW_ID}/101"]
    assert sender.reasons.kept == [(2, FallbackReason.NO_ANSWER)]
    assert transaction.seal.writes_rows
    assert (len(sender.halves), transaction.ops) == (2, [])
    assert transaction.connection.statements == 1, "the lock was taken, and no callback row inserted"
    for acknowledge in sender.halves:
        acknowledge()
    ((kind, id_),) = [(entry.kind, entry.transaction_id) for entry in sender.ops]
    assert (kind, id_) == (OpKind.ROLLBACK, HALF_ID)


def test_fallback_that_is_rolled_back_strikes_its_halves_once(sender: Scripted) -> None:
    sender.acknowledges = False
    transaction = Transaction(sender)
    transaction.seal.seal()
    transaction.seal.rolled_back("the COMMIT failed")
    for acknowledge in sender.halves:
        acknowledge()
    assert transaction.ops == [OpKind.ROLLBACK]


def test_no_half_is_sent_while_the_circuit_is_open(sender: Scripted) -> None:
    sender.unanswered(0.0, "no ack")
    transaction = Transaction(sender)
    transaction.commit()
    assert sender.reasons.kept == [(2, FallbackReason.CIRCUIT_OPEN)]
    assert (sender.halves, transaction.rows.looks, transaction.connection.statements) == ([], [], 0)


def test_transaction_behind_a_row_of_its_lane_becomes_rows(sender: Scripted) -> None:
    transaction = Transaction(sender)
    transaction.rows.found = Look(in_doubt=False, rows_wait=True)
    transaction.commit()
    assert (len(transaction.rows.kept), sender.halves) == (2, [])
    assert sender.reasons.kept == [(2, FallbackReason.EARLIER_ROWS)]


def test_transaction_without_a_lane_looks_for_nothing(sender: Scripted) -> None:
    transaction = Transaction(sender, key=None)
    transaction.rows.found = Look(in_doubt=True, rows_wait=True)
    transaction.commit()
    assert (transaction.rows.looks, transaction.ops) == ([], [OpKind.COMMIT])


@pytest.mark.parametrize(
    ("look", "reason"),
    [
        (None, None),
        (Look(in_doubt=False, rows_wait=False), None),
        (Look(in_doubt=True, rows_wait=False), FallbackReason.ISOLATION),
        (Look(in_doubt=False, rows_wait=True), FallbackReason.EARLIER_ROWS),
        (Look(in_doubt=True, rows_wait=True), FallbackReason.EARLIER_ROWS),
    ],
)
def test_what_is_found_decides_the_way(look: Look | None, reason: FallbackReason | None) -> None:
    assert why_behind_rows(look) is reason


@pytest.mark.parametrize("acknowledges", [True, False])
def test_trial_closes_the_circuit_or_opens_it_again(sender: Scripted, *, acknowledges: bool) -> None:
    sender.unanswered(0.0, "no ack")
    sender._half_open()
    sender.acknowledges = acknowledges
    first = Transaction(sender)
    first.commit()
    assert sender._circuit.state is (CircuitState.CLOSED if acknowledges else CircuitState.OPEN)
    assert bool(first.rows.kept) is not acknowledges


def test_trial_without_a_result_is_left_to_another(sender: Scripted) -> None:
    sender.unanswered(0.0, "no ack")
    sender._half_open()
    behind = Transaction(sender)
    behind.rows.found = Look(in_doubt=False, rows_wait=True)
    behind.commit()
    assert sender._circuit.state is CircuitState.HALF_OPEN
    Transaction(sender).commit()
    assert sender.answers


def test_topics_are_checked_only_while_kafka_answers(sender: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(error: Exception) -> Callable[..., None]:
        def raise_it(*_: object) -> None:
            raise error

        return raise_it

    message, transaction = Message("orders", "x"), Transaction(sender)
    monkeypatch.setattr(sender, "real_topic", refuse(MessageRefused("no such topic")))
    with pytest.raises(MessageRefused):
        transaction.seal.publish(message, eager=False)
    monkeypatch.setattr(sender, "real_topic", refuse(PublishFailed("no answer")))
    transaction.seal.publish(message, eager=False)
    sender.unanswered(0.0, "no ack")
    monkeypatch.setattr(sender, "real_topic", refuse(AssertionError("it was asked")))
    transaction.seal.publish(message, eager=False)


def test_ids_are_known_after_the_seal(sender: Scripted) -> None:
    transaction = Transaction(sender)
    receipt = transaction.receipts[0]
    for name in ("transaction_id", "position", "message_id"):
        with pytest.raises(UsageError, match="no ids before COMMIT"):
            getattr(receipt, name)
    assert repr(receipt) == "Receipt(not committed, topic='orders')"
    assert receipt == Transaction(sender).receipts[0]
    transaction.commit()
    assert repr(receipt) == f"Receipt(transaction_id={HALF_ID!r}, position=0, topic='orders')"


def test_ids_of_both_kinds_are_told_apart() -> None:
    for random in (bytes(10), b"\xff" * 10):
        assert not is_table_id(auto_transaction_id(1_700_000_000_000, random))
    assert is_table_id(ROW_ID)
    assert is_table_id(table_transaction_id((1 << 48) - 1, 0))
    assert make_transaction_id(5, b"\xff" * 10) == auto_transaction_id(5, b"\xff" * 10)


def test_lane_number_gives_the_half_partition() -> None:
    for key in (b"", b"k", b"\xff" * 50):
        assert 0 <= lane_number("orders", key) < 2**31
        assert lane_number("orders", key) % 12 == half_partition("orders", key, bytes(16), 12)


def test_rows_of_a_lane_have_one_text() -> None:
    insert = LaneInsert(TableNames("app-1", "box"), "orders")
    one, many = (insert.of([Message("t", str(n)) for n in range(count)], 7) for count in (1, 1_000))
    assert one.text == many.text
    assert one.text.count("%s") == len(one.parameters) == 9
    assert one.parameters[:2] == ("orders", 7)


def test_mark_of_another_transaction_is_refused() -> None:
    require_mark(HALF_ID, HALF_ID)
    for mark in (None, "", ROW_ID):
        with pytest.raises(UsageError, match="ended inside the block"):
            require_mark(mark, HALF_ID)


def test_status_of_a_transaction_that_postgres_does_not_keep_is_unknown() -> None:
    class Answering(Connection):
        def __init__(self, status: str | None) -> None:
            super().__init__()
            self.answer = status

        def execute(self, _statement: Statement, _parameters: Sequence[object] = ()) -> Result:
            return Result((self.answer,), None)

    rows = FallbackRows(SETTINGS)
    found = [rows.committed(Answering(one), ROW_ID) for one in ("committed", "aborted", "in progress", None)]
    assert found == [True, False, None, None]
