"""What is said of a COMMIT whose end nobody saw: nothing. Case by case, on a connection that fails as it is told."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import psycopg
import pytest
from psycopg.pq import TransactionStatus

from outbox import Message, Receipt
from outbox._half.draft import Draft
from outbox._publish.local_connection import LocalConnection, NoticeHandler, Result
from outbox._publish.sqlalchemy_session import PublishedTransaction
from outbox._publish.waiting import BLOCKING
from outbox.errors import CommitOutcomeUnknown, UsageError

LOST = psycopg.OperationalError("the connection is lost")


class Connection(LocalConnection):
    """In a transaction, until told otherwise."""

    waiting = BLOCKING
    status = TransactionStatus.INTRANS
    closed = False

    def __init__(self) -> None:
        self.driver = object()

    def execute(self, _statement: str, _parameters: Sequence[object] = ()) -> Result:
        raise NotImplementedError

    def rollback(self) -> None:
        self.status = TransactionStatus.IDLE

    def close(self) -> None:
        self.closed = True

    def listen(self, _handler: NoticeHandler) -> None:
        """There are no notices."""

    def unlisten(self, _handler: NoticeHandler) -> None:
        """There are no notices."""

    @contextmanager
    def autocommit(self, *, on: bool) -> Iterator[None]:
        del on
        yield


class Part:
    transaction_id = "0190b8c2-0000-7000-8000-000000000001"

    def __init__(self, row: bool | None) -> None:  # noqa: FBT001 - three values
        self._draft = Draft(self.transaction_id)
        self.told: list[str] = []
        self.has_ended = False
        self._row = row

    def __len__(self) -> int:
        return len(self._draft)

    def strike(self, keep: int) -> None:
        self._draft.strike(keep)

    def publish(self, messages: Sequence[Message], *, eager: bool) -> list[Receipt]:
        del eager
        return self._draft.add(messages)

    def seal(self, *, marked: bool = False) -> None:
        del marked

    def has_row(self, *, presumed: bool) -> bool | None:
        del presumed
        return self._row

    def committed(self) -> bool:
        self.told.append("committed")
        return True

    def rolled_back(self) -> None:
        self.told.append("rolled back")

    def unknown(self) -> None:
        self.told.append("unknown")


class Starter:
    two_phases = False

    def __init__(self, row: bool | None) -> None:  # noqa: FBT001 - three values
        self.part = Part(row)

    def connection(self, driver: object) -> LocalConnection:
        raise NotImplementedError(driver)

    def start(self, _connection: LocalConnection) -> Part:
        return self.part


def sealed(connection: Connection, row: bool | None = None) -> tuple[PublishedTransaction, Part]:  # noqa: FBT001 - three values
    starter, published = Starter(row), PublishedTransaction(connection)
    published.publish(starter, [Message("orders", b"v")], 0, eager=False)
    published.seal()
    return published, starter.part


def of_state(sqlstate: str) -> psycopg.Error:
    return psycopg.errors.lookup(sqlstate)("told by the server")


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (LOST, TransactionStatus.UNKNOWN),
        (LOST, TransactionStatus.IDLE),
        (of_state("08006"), TransactionStatus.IDLE),  # connection_failure
        (of_state("57P01"), TransactionStatus.IDLE),  # admin_shutdown: the row may be committed and visible
        (of_state("40003"), TransactionStatus.IDLE),  # statement_completion_unknown, as poolers say it
        (of_state("23505"), TransactionStatus.UNKNOWN),  # the server is gone all the same
    ],
)
def test_nothing_is_said_where_the_outcome_of_commit_is_not_known(
    error: psycopg.Error, status: TransactionStatus
) -> None:
    """A rollback marker would be obeyed, whatever the row says (R6)."""
    connection = Connection()
    published, part = sealed(connection)
    connection.status = status
    assert isinstance(published.commit_failed(error), CommitOutcomeUnknown)
    assert part.told == ["unknown"]


@pytest.mark.parametrize("sqlstate", ["23505", "40001", "P0001"])
def test_what_the_server_refused_is_rolled_back(sqlstate: str) -> None:
    connection = Connection()
    published, part = sealed(connection)
    connection.status = TransactionStatus.IDLE
    assert published.commit_failed(of_state(sqlstate)) is None
    assert part.told == ["rolled back"]


@pytest.mark.parametrize(("row", "told"), [(True, "committed"), (False, "rolled back"), (None, "unknown")])
def test_an_idle_connection_is_no_proof_of_a_commit(row: bool | None, told: str) -> None:  # noqa: FBT001 - a parameter
    """COMMIT may have failed, and somebody else's handler may have been first: the row says it (R5)."""
    connection = Connection()
    published, part = sealed(connection, row)
    connection.status = TransactionStatus.IDLE
    published.conclude()
    assert part.told == [told]


def test_a_connection_that_is_not_idle_was_not_seen_to_commit() -> None:
    connection = Connection()
    published, part = sealed(connection, row=True)
    connection.status = TransactionStatus.INERROR
    published.conclude(reported=True)
    assert part.told == ["unknown"]


@pytest.mark.parametrize("status", [TransactionStatus.IDLE, TransactionStatus.INERROR])
def test_what_is_outside_its_transaction_or_in_a_failed_one_is_not_sealed(status: TransactionStatus) -> None:
    """The row would begin another transaction, and commit without what belongs to it (R5)."""
    connection = Connection()
    starter, published = Starter(row=None), PublishedTransaction(connection)
    published.publish(starter, [Message("orders", b"v")], 0, eager=False)
    connection.status = status
    with pytest.raises(UsageError):
        published.seal()
    assert starter.part.told == ["rolled back"]
