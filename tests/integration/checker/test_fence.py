"""The checker's look at one database, when somebody else writes there at the worst moment."""

import os
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any, ClassVar, LiteralString

import psycopg
import pytest
from structlog.testing import capture_logs

from checker.fencing.fence import _BEGIN, _TRY_LOCKS, Fence
from checker.rules.verdicts import Verdict
from outbox._postgres.callback_table import CallbackTable
from outbox.protocol.check import CheckRequest
from outbox.protocol.half import Truth
from outbox.protocol.identifiers import lock_number, make_transaction_id
from outbox.protocol.positions import Positions
from tests.support.harness import Site, other_database

HALF_TOPIC = "6f1d7a52-3c04-4e7b-9d36-0a1c2b3d4e5f"
LEVELS = ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE")
every_level = pytest.mark.parametrize("level", LEVELS)


class _Meddler(psycopg.Connection[Any]):
    """A connection on which somebody else acts just before the checker says something."""

    statement: ClassVar[LiteralString] = ""
    before: ClassVar[Callable[[], object]]

    def execute(self, query: Any, *args: Any, **options: Any) -> psycopg.Cursor[Any]:
        if query is type(self).statement:
            type(self).before()
        return super().execute(query, *args, **options)


@pytest.fixture
def connection(site: Site) -> Iterator[psycopg.Connection[Any]]:
    """A connection of an application, to a database with callback tables."""
    with site.connect() as made:
        CallbackTable(site.tables).create(made)
        yield made


def _request(site: Site, connection: psycopg.Connection[Any], offset: int) -> CheckRequest:
    id_ = make_transaction_id(time.time_ns() // 1_000_000, os.urandom(10))
    incarnation = CallbackTable(site.tables).incarnation(connection)
    return CheckRequest(id_, "orders", Truth.ROW, HALF_TOPIC, 0, Positions.first(1), offset, offset, 1, incarnation)


def _requests(site: Site, connection: psycopg.Connection[Any], count: int) -> list[CheckRequest]:
    return [_request(site, connection, offset) for offset in range(count)]


def _insert(site: Site, end: LiteralString = "") -> bytes:
    return f"INSERT INTO {site.tables.transaction} VALUES (%s, 'orders', 'C', %s, %s, 0, %s, %s, '0') {end}".encode()


def _values(site: Site, request: CheckRequest) -> tuple[object, ...]:
    return (request.transaction_id, site.name, HALF_TOPIC, request.first_offset, request.last_offset)


def _commit_row(site: Site, connection: psycopg.Connection[Any], request: CheckRequest) -> None:
    connection.execute(_insert(site), _values(site, request))


def _lock(connection: psycopg.Connection[Any], request: CheckRequest) -> None:
    connection.execute("SELECT pg_advisory_xact_lock(%s)", (lock_number(request.transaction_id),))


@contextmanager
def _application(site: Site, level: str) -> Iterator[psycopg.Connection[Any]]:
    """A local transaction of an application, which has seen the database already; it is rolled back at the end."""
    with site.connect() as made:
        made.execute(f"BEGIN ISOLATION LEVEL {level}".encode())
        made.execute(f"SELECT count(*) FROM {site.tables.transaction}".encode())
        yield made
        if made.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
            made.execute("ROLLBACK")


def _verdicts(site: Site, connection: psycopg.Connection[Any], requests: Sequence[CheckRequest]) -> list[Verdict]:
    answers = Fence(CallbackTable(site.tables), site.name).check(connection, requests)
    return [answers[request.transaction_id][0] for request in requests]


def test_an_application_that_commits_while_the_checker_is_at_it_is_seen(
    site: Site, connection: psycopg.Connection[Any]
) -> None:
    """The checker reads after its rollback row, in a statement of its own (R8)."""
    request = _request(site, connection, 7)
    _Meddler.statement = _TRY_LOCKS
    _Meddler.before = lambda: _commit_row(site, connection, request)
    with _Meddler.connect(site.postgres_url, autocommit=True) as checker:
        assert _verdicts(site, checker, [request]) == [Verdict.COMMITTED]


def test_below_the_purge_watermark_nothing_is_fenced(site: Site, connection: psycopg.Connection[Any]) -> None:
    """The row may have been there, and purged (R11)."""
    below, there, above = (_request(site, connection, offset) for offset in (7, 8, 9))
    _commit_row(site, connection, there)
    query = f"INSERT INTO {site.tables.meta} VALUES (%s, '9')".encode()
    connection.execute(query, (f"purged/{HALF_TOPIC}/0",))
    expected = [Verdict.PURGED, Verdict.COMMITTED, Verdict.FENCED]
    assert _verdicts(site, connection, [below, there, above]) == expected
    assert site.rows() == {there.transaction_id: "C", above.transaction_id: "R"}


def test_another_incarnation_never_decides(site: Site, connection: psycopg.Connection[Any]) -> None:
    """A wrong database, or one without an incarnation, says nothing: neither by a row nor by its absence (R10)."""
    requests = _requests(site, connection, 2)
    _commit_row(site, connection, requests[0])
    fence = Fence(CallbackTable(site.tables), site.name)
    for change in ("UPDATE {} SET value = gen_random_uuid() WHERE key = %s", "DELETE FROM {} WHERE key = %s"):
        connection.execute(change.format(site.tables.meta).encode(), ("incarnation",))
        answers = fence.check(connection, requests)
        assert set(answers.values()) == {(Verdict.MISMATCH, None)}
    assert set(site.rows().values()) == {"C"}


def test_a_copy_of_the_database_never_decides(site: Site, connection: psycopg.Connection[Any]) -> None:
    """Its tables have the same value for the incarnation, and are in another database (R10)."""
    requests = _requests(site, connection, 2)
    query = f"SELECT value FROM {site.tables.meta} WHERE key = 'incarnation'".encode()
    ((value,),) = connection.execute(query).fetchall()
    with other_database(site) as url, psycopg.connect(url, autocommit=True) as copy:
        CallbackTable(site.tables).create(copy)
        copy.execute(f"UPDATE {site.tables.meta} SET value = %s WHERE key = 'incarnation'".encode(), (value,))
        _commit_row(site, copy, requests[0])
        answers = Fence(CallbackTable(site.tables), site.name).check(copy, requests)
        assert set(answers.values()) == {(Verdict.MISMATCH, None)}
        assert copy.execute(f"SELECT state FROM {site.tables.transaction}".encode()).fetchall() == [("C",)]


@every_level
def test_an_open_transaction_delays_only_its_own_id(
    site: Site, connection: psycopg.Connection[Any], level: str
) -> None:
    requests = _requests(site, connection, 4)
    with _application(site, level) as application:
        _lock(application, requests[1])
        _lock(application, requests[2])
        _commit_row(site, application, requests[2])
        found = _verdicts(site, connection, requests)
        assert found == [Verdict.FENCED, Verdict.IN_FLIGHT, Verdict.IN_FLIGHT, Verdict.FENCED]
        application.execute("COMMIT")
    found = _verdicts(site, connection, requests)
    assert found == [Verdict.FENCED, Verdict.FENCED, Verdict.COMMITTED, Verdict.FENCED]


@every_level
@pytest.mark.parametrize("end", ["", "ON CONFLICT DO NOTHING", "ON CONFLICT (transaction_id) DO NOTHING"])
def test_who_is_fenced_cannot_commit_his_row(
    site: Site, connection: psycopg.Connection[Any], level: str, end: LiteralString
) -> None:
    """Whatever its isolation level shows it, and also where it passes over conflicts: its row does not get in."""
    (request,) = _requests(site, connection, 1)
    with _application(site, level) as application:
        assert _verdicts(site, connection, [request]) == [Verdict.FENCED]
        inserted = 0
        try:
            inserted = application.execute(_insert(site, end), _values(site, request)).rowcount
            application.execute("COMMIT")
        except (psycopg.errors.UniqueViolation, psycopg.errors.SerializationFailure):
            application.execute("ROLLBACK")
        assert inserted == 0
    assert site.rows() == {request.transaction_id: "R"}
    assert _verdicts(site, connection, [request]) == [Verdict.FENCED]


@every_level
def test_a_row_that_a_savepoint_undid_is_fenced(site: Site, connection: psycopg.Connection[Any], level: str) -> None:
    """With the savepoint goes the lock that was taken in it."""
    (request,) = _requests(site, connection, 1)
    with _application(site, level) as application:
        application.execute("SAVEPOINT one")
        _lock(application, request)
        _commit_row(site, application, request)
        assert _verdicts(site, connection, [request]) == [Verdict.IN_FLIGHT]
        application.execute("ROLLBACK TO one")
        assert _verdicts(site, connection, [request]) == [Verdict.FENCED]
        with pytest.raises((psycopg.errors.UniqueViolation, psycopg.errors.SerializationFailure)):
            _commit_row(site, application, request)


@every_level
def test_writers_without_the_lock_delay_only_their_own_ids(
    site: Site, connection: psycopg.Connection[Any], level: str
) -> None:
    """An old client, or SQL by hand: its row shows only by the wait for its key."""
    requests = _requests(site, connection, 600)
    slow = {requests[place].transaction_id for place in (0, 250, 499, 599)}
    with ExitStack() as stack:
        for request in requests:
            if request.transaction_id in slow:
                _commit_row(site, stack.enter_context(_application(site, level)), request)
        found = dict(zip(requests, _verdicts(site, connection, requests), strict=True))
    assert {one.transaction_id for one, verdict in found.items() if verdict is Verdict.IN_FLIGHT} == slow
    assert Counter(found.values()) == {Verdict.FENCED: 596, Verdict.IN_FLIGHT: 4}
    assert _verdicts(site, connection, requests) == [Verdict.FENCED] * 600


def test_where_nobody_may_insert_everything_is_in_flight(site: Site, connection: psycopg.Connection[Any]) -> None:
    """Somebody builds an index, say: the patience of a batch has an end."""
    requests = _requests(site, connection, 300)
    with site.connect() as other, other.transaction():
        other.execute(f"LOCK TABLE {site.tables.transaction} IN SHARE MODE".encode())
        assert set(_verdicts(site, connection, requests)) == {Verdict.IN_FLIGHT}
    assert set(_verdicts(site, connection, requests)) == {Verdict.FENCED}


@every_level
def test_checkers_at_once_agree(site: Site, connection: psycopg.Connection[Any], level: str) -> None:
    """Whatever isolation level the role has by default; what one is at is in flight to the other."""
    requests = _requests(site, connection, 1_000)
    with connection.transaction():
        for request in requests[::2]:
            _commit_row(site, connection, request)
    barrier = threading.Barrier(3)

    def check() -> list[Verdict]:
        with site.connect() as checker:
            checker.execute("SELECT set_config('default_transaction_isolation', %s, false)", (level.lower(),))
            barrier.wait(10)
            return _verdicts(site, checker, requests)

    with ThreadPoolExecutor(3) as pool:
        found = [future.result() for future in [pool.submit(check) for _ in range(3)]]
    for number, verdicts in enumerate(zip(*found, strict=True)):
        decided = Verdict.COMMITTED if number % 2 == 0 else Verdict.FENCED
        assert decided in verdicts
        assert set(verdicts) <= {decided, Verdict.IN_FLIGHT}


def test_a_cancelled_statement_is_tried_again_in_halves(site: Site, connection: psycopg.Connection[Any]) -> None:
    requests = _requests(site, connection, 8)
    begun = 0
    with site.connect() as other:
        other.execute("BEGIN")
        other.execute(f"LOCK TABLE {site.tables.meta} IN ACCESS EXCLUSIVE MODE".encode())

        def release_at_the_third() -> None:
            nonlocal begun
            begun += 1
            if begun == 3:
                other.execute("ROLLBACK")

        _Meddler.statement = _BEGIN
        _Meddler.before = release_at_the_third
        with _Meddler.connect(site.postgres_url, autocommit=True, options="-c statement_timeout=100ms") as checker:
            assert _verdicts(site, checker, requests) == [Verdict.FENCED] * 8
    assert begun > 3


def test_a_table_that_is_locked_for_long_is_no_answer(site: Site, connection: psycopg.Connection[Any]) -> None:
    """The database did not answer in time; halves would wait as long."""
    requests = _requests(site, connection, 8)
    with site.connect() as other, other.transaction():
        other.execute(f"LOCK TABLE {site.tables.transaction} IN ACCESS EXCLUSIVE MODE".encode())
        with pytest.raises(psycopg.errors.LockNotAvailable):
            _verdicts(site, connection, requests)
    assert _verdicts(site, connection, requests) == [Verdict.FENCED] * 8


def test_a_full_lock_table_is_survived_and_told(site: Site, connection: psycopg.Connection[Any]) -> None:
    """`max_locks_per_transaction` is small: each of a batch takes a lock of the server's common table."""
    requests = _requests(site, connection, 500)
    with site.connect() as hoarder, hoarder.transaction(force_rollback=True), capture_logs() as logs:
        free = _take_all_locks(hoarder)
        assert free < 400
        fence = Fence(CallbackTable(site.tables), site.name)
        answers = fence.check(connection, requests)
        told = len(logs)
        fence.check(connection, _requests(site, connection, 500))
    assert {verdict for verdict, _ in answers.values()} == {Verdict.FENCED}
    assert "set max_locks_per_transaction higher" in logs[0]["reason"]
    assert told == len(logs)  # the size that did is kept


def _take_all_locks(connection: psycopg.Connection[Any]) -> int:
    """Take locks until the server has no room for more, then give some back; how many."""
    step, given_back, taken = 100, 2, 0
    for number in range(1_000):
        connection.execute(f"SAVEPOINT s{number}".encode())
        try:
            query = "SELECT count(pg_advisory_xact_lock(%s, number)) FROM generate_series(1, %s) AS number"
            connection.execute(query, (number, step))
        except psycopg.errors.OutOfMemory:
            connection.execute(f"ROLLBACK TO s{number - given_back}".encode())
            return (given_back + 1) * step
        taken += step
    raise AssertionError(f"{taken} locks do not fill the table")


def test_ids_that_share_a_lock_number_only_delay_each_other(site: Site, connection: psycopg.Connection[Any]) -> None:
    first = _request(site, connection, 1)
    twin = _request(site, connection, 2)
    object.__setattr__(twin, "transaction_id", str(uuid.UUID(int=uuid.UUID(first.transaction_id).int ^ 1 << 100)))
    with _application(site, "READ COMMITTED") as application:
        _lock(application, first)
        assert _verdicts(site, connection, [first, twin]) == [Verdict.IN_FLIGHT] * 2
    assert _verdicts(site, connection, [first, twin]) == [Verdict.FENCED] * 2
