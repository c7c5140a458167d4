"""A session that is lost while a window is read or worked on is followed by smaller windows (R34)."""

from collections.abc import Sequence
from typing import Any
from unittest.mock import MagicMock

import psycopg
import pytest
from structlog.testing import capture_logs

from outbox._rules.source_progress import Progress
from outbox._service.channels.channel_context import thread_pool
from outbox.errors import TableError
from relay.delivery.producer import DeliveryError
from relay.delivery.rules.volume import PATIENCE_MAX, BatchPolicy
from relay.delivery.sending import BatchFeedback
from relay.table import source_threads, table_source
from relay.table.owned_table import IDLE_SECONDS, Window
from relay.table.rows import Row
from relay.table.source_threads import _SourceThread
from relay.table.table_source import TableSource
from tests.unit.relay.test_partition_worker import Clock

POLICY = BatchPolicy(messages=5_000, bytes=16_000_000)


class Table:
    """A table whose session is lost after so many seconds: while it is read, or later."""

    name = origin = "shop"
    error: Exception = psycopg.OperationalError("server closed the connection unexpectedly")

    def __init__(self, clock: Clock, rows: Sequence[Row], seconds: float) -> None:
        self.clock, self.rows, self.seconds = clock, rows, seconds
        self.limits: list[int] = []

    def window(self, rows: int, _size: int, _skip: object) -> Window:
        self.limits.append(rows)
        self.clock.now += self.seconds
        if not self.rows:
            raise self.error
        return Window(self.rows, frozenset(), 0)

    def take(self, *_: object) -> None:
        """It is not read again."""

    def move(self, *_: object) -> Progress:
        raise self.error


def _rows(transactions: int, each: int) -> list[Row]:
    return [Row(n // each, n, 0, "shop", "t", -1, None, None, b"v") for n in range(transactions * each)]


@pytest.fixture
def feedback() -> BatchFeedback:
    return BatchFeedback(POLICY, "discard", 5.0)


def _turn(
    table: Table,
    feedback: BatchFeedback,
    monkeypatch: pytest.MonkeyPatch,
    delivery: Any = MagicMock(timed_out=False),  # noqa: B008
) -> None:
    monkeypatch.setattr(table_source, "time", table.clock)
    admission: Any = MagicMock()
    admission.waiting.return_value = []
    admission.take_released.return_value = None
    admission.take.return_value = MagicMock(rows=table.rows, refused=())
    lookup: Any = MagicMock()
    lookup.describe_unknown.return_value = False
    with thread_pool(1) as session:
        source = TableSource(table, delivery, MagicMock(), admission, lookup, feedback, MagicMock(), session)  # type: ignore[arg-type]
        source._progress = Progress("a", 0, 0, ())
        with pytest.raises(type(table.error)):
            source._turn()


@pytest.mark.parametrize("error", [Table.error, TableError("a row cannot be read")])
def test_a_window_that_loses_its_session_is_halved(
    feedback: BatchFeedback, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Down to one row, with a session that may be idle for longer: else a slow line never gets anything through."""
    table = Table(Clock(), (), 1.0)
    table.error = error
    for _ in range(20):
        _turn(table, feedback, monkeypatch)
    assert table.limits[:3] == [5_000, 2_500, 1_250]
    assert table.limits[-1] == 1
    assert feedback.volume.patience == PATIENCE_MAX


def test_ten_times_too_long_is_a_tenth_at_once(feedback: BatchFeedback, monkeypatch: pytest.MonkeyPatch) -> None:
    _turn(Table(Clock(), (), 10.0 * IDLE_SECONDS), feedback, monkeypatch)
    assert (feedback.volume.limit.messages, feedback.volume.limit.bytes) == (250, 800_000)


@pytest.mark.parametrize(("rows", "patience"), [(_rows(1, 60), 2), (_rows(30, 2), 1)])
def test_the_work_on_one_transaction_gets_more_time(
    feedback: BatchFeedback, monkeypatch: pytest.MonkeyPatch, rows: list[Row], patience: int
) -> None:
    _turn(Table(Clock(), rows, 1.0), feedback, monkeypatch)
    assert (feedback.volume.limit.messages, feedback.volume.patience) == (30, patience)


def test_a_step_that_fails_ends_the_owner(feedback: BatchFeedback, monkeypatch: pytest.MonkeyPatch) -> None:
    """It fails beside the delivery, whose own failure is not the one that counts."""
    delivery = MagicMock(timed_out=False)
    _turn(Table(Clock(), _rows(2, 1), 0.0), feedback, monkeypatch, delivery)
    with pytest.raises(psycopg.OperationalError):
        delivery.commit.call_args.args[3]()
    delivery.commit.side_effect = DeliveryError("no coordinator")
    _turn(Table(Clock(), _rows(2, 1), 0.0), feedback, monkeypatch, delivery)


def test_longer_time_outs_that_kafka_refuses_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """`transaction.max.timeout.ms` of the brokers may be below them."""
    thread = _SourceThread("shop", MagicMock(), MagicMock())
    thread._feedback.volume.patience = PATIENCE_MAX
    monkeypatch.setattr(source_threads, "TransactionalDelivery", MagicMock(side_effect=DeliveryError("refused")))
    with pytest.raises(DeliveryError), capture_logs() as logs:
        thread._delivery(MagicMock())
    assert (thread._feedback.volume.patience, [line["source"] for line in logs]) == (1, ["shop"])
