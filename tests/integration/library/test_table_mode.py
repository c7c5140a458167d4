"""In table mode a message is a row of the caller's transaction, through any driver, and nothing needs Kafka."""

import re
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import asyncpg
import pg8000.dbapi
import psycopg
import psycopg2
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from psycopg.rows import dict_row
from sqlalchemy import Engine, NullPool, Table, create_engine, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, create_async_engine
from sqlalchemy.orm import Session, registry
from sqlalchemy.schema import MetaData

from outbox import AsyncOutbox, Message, MessageRefused, Outbox, Receipt, TableNames
from outbox._postgres.message_table import MessageTable
from outbox._postgres.publish_function import STARTED_US
from outbox._settings.declared import TableSettings
from outbox.errors import TableError, UsageError
from outbox.message import HeadersInput
from outbox.operator.deciding.discarded_rows import DiscardedRows
from outbox.protocol.identifiers import make_transaction_id, started_us_of, table_transaction_id, xid_of
from outbox.protocol.op import OpKind
from outbox.recorder import NoRecorder
from outbox.testing import InMemoryHalfOutbox, InMemoryOutbox
from outbox.transaction import Outcome
from tests.support.doors import DOORS, Opened, pg8000_arguments, session_on, sqlalchemy_url
from tests.support.harness import Site
from tests.support.servers import Servers

ODD = [
    Message("orders"),
    Message("orders", b"a\0b\xff", b"\0'\\", [("é", b"\xff\0"), ("x", None), ("x", b""), ('q"\\ {},', "NULL")], 2, 5),
    Message("stock", b"", b"", {"only": None}, timestamp=1 << 40),
    Message("stock", "text", "key", [("a", None), ("b", None)]),
]
"""Messages with all that a driver may get wrong."""


@dataclass(frozen=True)
class Row:
    message_id: str
    service: str
    topic: str
    partition: int
    timestamp: int | None
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


class Place:
    """A database with a message table, and an outbox that has no Kafka."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.url = site.postgres_url
        self.outbox = Outbox("orders", tables=site.tables)
        site.create_tables(MessageTable)
        site.sql(f"CREATE TABLE {self.business} (id integer PRIMARY KEY, state text)")

    @property
    def business(self) -> str:
        return f"{self.site.name}_orders"

    def rows(self, *, service: str | None = None) -> list[Row]:
        """Take away all committed rows, in the order of their ids."""
        found = self.site.sql(
            f"WITH taken AS (DELETE FROM {self.site.tables.message} RETURNING *, {STARTED_US} AS started) "
            "SELECT xid::text, started, id, service, topic, partition, timestamp, key, value, "
            "header_names, header_values FROM taken ORDER BY id"
        )
        return [
            Row(*(f"{table_transaction_id(int(xid), started)}/{id_}", *columns, _headers(names, values)))
            for xid, started, id_, *columns, names, values in found
            if service is None or columns[0] == service
        ]


def _headers(names: list[str] | None, values: list[bytes | None] | None) -> list[tuple[str, bytes | None]]:
    return list(zip(names or (), values or (), strict=True))


@pytest.fixture(scope="module")
def place(servers: Servers) -> Iterator[Place]:
    with Site(servers.bootstrap_servers, servers.postgres_url) as site:
        made = Place(site)
        yield made
        made.outbox.close()


@pytest.fixture(autouse=True)
def _no_rows(place: Place) -> None:
    place.rows()


@pytest.fixture(params=DOORS)
def opened(place: Place, request: pytest.FixtureRequest) -> Iterator[Opened]:
    with DOORS[request.param](place.url) as made:
        yield made


def as_row(message: Message, receipt: Receipt) -> Row:
    place = ("orders", message.topic, message.partition, message.timestamp)
    return Row(receipt.message_id, *place, message.key_bytes(), message.value_bytes(), message.header_list())


async def _fail_after_async(call: Callable[..., Awaitable[object]], *arguments: object) -> None:
    await call(*arguments)
    raise ZeroDivisionError


def test_many_messages_are_inserted_in_their_order(place: Place, opened: Opened) -> None:
    messages = [*ODD, *(Message("orders", str(number)) for number in range(1_100)), *ODD]
    receipts = [place.outbox.publish(opened.target, message) for message in ODD]
    receipts += place.outbox.publish_many(opened.target, iter(messages))
    assert place.rows() == []
    opened.commit()
    assert place.rows() == [as_row(*pair) for pair in zip([*ODD, *messages], receipts, strict=True)]
    assert len({receipt.transaction_id for receipt in receipts}) == 1


DECIDING = {"standard_conforming_strings": "off", "array_nulls": "off", "bytea_output": "escape"}
DECIDING |= {"DateStyle": "German", "TimeZone": "Asia/Tokyo", "extra_float_digits": "-15"}
"""Settings of a session that decide how text is written or read."""


def test_no_setting_of_a_session_decides_what_a_row_has(place: Place, opened: Opened) -> None:
    """R77: with `standard_conforming_strings` off, lists of bytes came as the text of their hexadecimal form."""
    for name, value in DECIDING.items():
        opened.execute(f"SET {name} = '{value}'")
    receipts = [place.outbox.publish(opened.target, message) for message in ODD]
    receipts += place.outbox.publish_many(opened.target, ODD)
    receipts += place.outbox.publish_many(opened.target, ODD * 25)
    opened.commit()
    assert place.rows() == [as_row(*pair) for pair in zip(ODD * 27, receipts, strict=True)]


def test_loaders_of_an_application_do_not_fail_after_the_row_is_there(place: Place) -> None:
    """An application may have ids of its own types loaded as text."""
    with psycopg.connect(place.url) as connection:
        for name in ("int8", "timestamptz"):
            connection.adapters.register_loader(name, psycopg.types.string.TextLoader)
        receipts = place.outbox.publish_many(connection, ODD)
        receipts += place.outbox.publish_many(connection, ODD * 25)
    assert place.rows() == [as_row(*pair) for pair in zip(ODD * 26, receipts, strict=True)]


def test_outcome_is_whether_the_rows_are_there(place: Place, opened: Opened) -> None:
    committed = place.outbox.publish(opened.target, Message("orders", b"v")).transaction_id
    opened.commit()
    aborted = place.outbox.publish(opened.target, Message("orders", b"v")).transaction_id
    opened.rollback()
    unknown = table_transaction_id((1 << 40) + 7, 1)
    database = opened.target
    if not isinstance(database, Session) and not hasattr(database, "registry"):
        assert place.outbox.outcome(committed, database) is Outcome.COMMITTED
        assert place.outbox.outcome(aborted, database) is Outcome.ROLLED_BACK
        place.rows()
        assert place.outbox.outcome(committed, database) is Outcome.TOO_OLD, "its rows are gone by hand"
        with pytest.raises(UsageError, match="no transaction has the xid 1099511627783"):
            place.outbox.outcome(unknown, database)
        opened.execute("SELECT 1")
        with pytest.raises(UsageError, match="is in a transaction"):
            place.outbox.outcome(committed, database)


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2", "pg8000"])
def test_outcome_takes_an_engine(place: Place, driver: str) -> None:
    engine = create_engine(sqlalchemy_url(place.url, driver), poolclass=NullPool)
    with Session(engine) as session:
        receipt = place.outbox.publish(session, Message("orders", b"v"))
        assert place.outbox.outcome(receipt.transaction_id, engine) is Outcome.OPEN
    assert place.outbox.outcome(receipt.transaction_id, engine) is Outcome.ROLLED_BACK
    with pytest.raises(UsageError, match="not a transaction of this database"):
        place.outbox.outcome(make_transaction_id(1, bytes([255] * 10)), engine)
    with pytest.raises(UsageError, match="is not a transaction id"):
        place.outbox.outcome("1", engine)


@pytest.mark.parametrize("xid", [1 << 32, (1 << 32) + 2])
def test_outcome_of_an_xid_that_no_transaction_has_is_refused(place: Place, xid: int) -> None:
    with place.site.connect() as connection, pytest.raises(UsageError, match=f"has the xid {xid}"):
        place.outbox.outcome(table_transaction_id(xid, 1), connection)


@pytest.mark.parametrize("xid", [0, 1, 2])
def test_what_postgres_calls_committed_without_a_row_is_not(place: Place, xid: int) -> None:
    """Postgres has these xids itself."""
    with place.site.connect() as connection:
        assert place.outbox.outcome(table_transaction_id(xid, 1), connection) is Outcome.TOO_OLD


@pytest.mark.parametrize("how", ["DELETE FROM {}", "TRUNCATE {}"])
def test_a_commit_whose_row_was_deleted_by_hand_is_never_rolled_back(lone: Place, engine: Engine, how: str) -> None:
    with lone.site.connect() as connection:
        id_ = _published(lone, connection)
        _deliver(lone, connection, id_)
        assert lone.outbox.outcome(id_, connection) is Outcome.COMMITTED
        connection.execute(how.format(lone.site.tables.delivered).encode())
        assert lone.outbox.outcome(id_, connection) is Outcome.TOO_OLD
    assert lone.outbox.outcome(id_, engine) is Outcome.TOO_OLD


def test_an_xid_that_a_crash_may_have_lost_is_not_committed(place: Place) -> None:
    with place.site.connect() as connection:
        (last,) = connection.execute("SELECT pg_current_xact_id()::text::bigint").fetchone() or (0,)
        assert place.outbox.outcome(table_transaction_id(last + 10_000, 1), connection) is Outcome.ROLLED_BACK


def test_the_outcome_is_that_of_the_start_too(place: Place, engine: Engine) -> None:
    """A committed transaction of the same xid is another one."""
    with Session(engine) as session, session.begin():
        id_ = place.outbox.publish(session, Message("orders", b"v")).transaction_id
    with place.site.connect() as connection:
        assert place.outbox.outcome(id_, connection) is Outcome.COMMITTED
        for start in (started_us_of(id_) - 1, started_us_of(id_) + 1):
            other = table_transaction_id(xid_of(id_), start)
            assert place.outbox.outcome(other, connection) is Outcome.TOO_OLD


@pytest.fixture
def lone(site: Site) -> Iterator[Place]:
    made = Place(site)
    yield made
    made.outbox.close()


def _published(place: Place, connection: psycopg.Connection[Any]) -> str:
    with connection.transaction():
        return place.outbox.publish(connection, Message("orders", b"v")).transaction_id


_EVIDENCE = (
    "(first_id, batch, ids, xids, starts, xid_range, targets, services, topics, partitions, earliest)"
    " SELECT id, 1, '{}', ARRAY[xid], ARRAY[created_at], int8range(xid::text::bigint, xid::text::bigint, '[]'),"
    " '{}', ARRAY[service], ARRAY[topic], ARRAY[partition], ARRAY[timestamp]"
)


def _deliver(place: Place, connection: psycopg.Connection[Any], id_: str) -> None:
    """Delete the rows of a transaction and leave their evidence, as the relay does."""
    connection.execute(
        f"WITH gone AS (DELETE FROM {place.site.tables.message} WHERE xid = '{xid_of(id_)}' RETURNING *) INSERT INTO "
        f"{place.site.tables.delivered} {_EVIDENCE} FROM gone".encode()
    )


def _discard(place: Place, connection: psycopg.Connection[Any], ids: list[str]) -> None:
    """Move the rows of transactions to the discarded ones, as the relay does."""
    columns = "xid, id, created_at, service, topic, partition, timestamp, key, value"
    xids = ", ".join(f"'{xid_of(id_)}'" for id_ in ids)
    connection.execute(
        f"WITH gone AS (DELETE FROM {place.site.tables.message} WHERE xid IN ({xids}) RETURNING *) INSERT INTO "
        f"{place.site.tables.discarded} ({columns}, reason, detail) SELECT {columns}, 'LATE', '' FROM gone".encode()
    )


def test_a_row_proves_the_commit_wherever_it_is(lone: Place) -> None:
    """It was delivered, it was discarded, and an operator has decided on it."""
    with lone.site.connect() as connection:
        ids = [_published(lone, connection) for _ in range(4)]
        _deliver(lone, connection, ids[0])
        _discard(lone, connection, ids[1:])
        assert {lone.outbox.outcome(id_, connection) for id_ in ids} == {Outcome.COMMITTED}
        rows = DiscardedRows("shop", TableSettings(dsn=lone.site.postgres_url, table_prefix=lone.site.tables.prefix))
        found = {one.transaction: one for one in rows.read()}
        rows.decide([found[ids[1]]], OpKind.DELIVER, "")
        rows.decide([found[ids[2]]], OpKind.ROLLBACK, "")
        assert [one.transaction for one in rows.read()] == [ids[3]]
        moved = rows.moved[found[ids[1]]].transaction or ""
        assert {lone.outbox.outcome(id_, connection) for id_ in [*ids, moved]} == {Outcome.COMMITTED}


def test_where_evidence_is_purged_the_outcome_is_too_old(lone: Place) -> None:
    names = lone.site.tables
    with lone.site.connect() as connection, lone.site.connect() as other:
        purged, discarded = (_published(lone, connection) for _ in range(2))
        _discard(lone, connection, [discarded])
        with other.transaction():
            is_open = lone.outbox.publish(other, Message("orders", b"v")).transaction_id
            connection.execute(f"DELETE FROM {names.message}".encode())
            connection.execute(
                f"INSERT INTO {names.source} (id, name, purged_until) VALUES (0, 'shop', now())".encode()
            )
            assert lone.outbox.outcome(is_open, connection) is Outcome.OPEN
        with connection.transaction(force_rollback=True):
            younger = lone.outbox.publish(connection, Message("orders", b"v")).transaction_id
        expected = {
            purged: Outcome.TOO_OLD,
            table_transaction_id(1 << 40, started_us_of(purged)): Outcome.TOO_OLD,
            discarded: Outcome.COMMITTED,
            is_open: Outcome.COMMITTED,
            younger: Outcome.ROLLED_BACK,
        }
        assert {id_: lone.outbox.outcome(id_, connection) for id_ in expected} == expected


@pytest.mark.parametrize("level", ["read committed", "repeatable read", "serializable"])
def test_a_commit_whose_rows_move_is_never_rolled_back_for_who_asks(lone: Place, level: str) -> None:
    level = level.replace(" ", r"\ ")
    stop, answers = threading.Event(), list[tuple[str, Outcome]]()
    newest = [""]

    def ask() -> None:
        with psycopg.connect(lone.url, options=f"-c default_transaction_isolation={level}") as connection:
            while not stop.is_set():
                if id_ := newest[0]:
                    answers.append((id_, lone.outbox.outcome(id_, connection)))

    askers = [threading.Thread(target=ask) for _ in range(3)]
    for asker in askers:
        asker.start()
    with lone.site.connect() as connection:
        for _ in range(150):
            with connection.transaction():
                newest[0] = lone.outbox.publish(connection, Message("orders", b"v")).transaction_id
            _discard(lone, connection, [newest[0]])
            connection.execute(
                f"WITH back AS (DELETE FROM {lone.site.tables.discarded} RETURNING *)"
                f" INSERT INTO {lone.site.tables.delivered} {_EVIDENCE} FROM back".encode()
            )
    stop.set()
    for asker in askers:
        asker.join()
    assert {outcome for _, outcome in answers} == {Outcome.OPEN, Outcome.COMMITTED}


def test_rows_that_are_hidden_are_no_answer(lone: Place) -> None:
    names, sql = lone.site.tables, lone.site.sql
    with psycopg.connect(lone.site.role("app", MessageTable(names).application_grant), autocommit=True) as connection:
        id_ = _published(lone, connection)
        sql(f"ALTER TABLE {names.message} ENABLE ROW LEVEL SECURITY")
        with pytest.raises(TableError, match="Row security hides rows"):
            lone.outbox.outcome(id_, connection)
        sql(f"ALTER TABLE {names.message} DISABLE ROW LEVEL SECURITY")
        sql(f"REVOKE SELECT (xids) ON {names.delivered} FROM {lone.site.name}_app")
        with pytest.raises(TableError, match="--application-role"):
            lone.outbox.outcome(id_, connection)
        sql(f"GRANT SELECT (xids) ON {names.delivered} TO {lone.site.name}_app")
        assert lone.outbox.outcome(id_, connection) is Outcome.COMMITTED


def test_tables_that_are_missing_are_named(place: Place, site: Site) -> None:
    with (
        Outbox("orders", tables=site.tables) as outbox,
        place.site.connect() as connection,
        pytest.raises(TableError, match="outbox table create"),
    ):
        outbox.outcome(table_transaction_id(700, 1), connection)


def test_an_error_of_the_question_is_not_hidden_by_its_rollback(place: Place) -> None:
    """The session ends before the statement: a rollback says only that the connection is lost."""
    with place.site.connect() as other, psycopg.connect(place.url) as connection:
        other.execute("SELECT pg_terminate_backend(%s, 5000)", (connection.info.backend_pid,))
        with pytest.raises(psycopg.errors.AdminShutdown):
            place.outbox.outcome(table_transaction_id(700, 1), connection)


def test_an_application_can_neither_read_messages_nor_choose_their_ids(place: Place) -> None:
    message = place.site.tables.message
    url = place.site.role("reader", MessageTable(place.site.tables).application_grant)
    with psycopg.connect(url, autocommit=True) as connection:
        with connection.transaction():
            place.outbox.publish(connection, Message("orders", b"v"))
        for statement_text in (
            f"SELECT value FROM {message}",
            f"DELETE FROM {message}",
            f"INSERT INTO {message} (xid, service, topic) VALUES ('7', 'orders', 'orders')",
            f"SELECT * FROM {place.site.tables.discarded}",
            f"UPDATE {place.site.tables.source} SET batch = 7",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(statement_text.encode())
    assert [row.value for row in place.rows()] == [b"v"]


@pytest.fixture
def engine(place: Place) -> Iterator[Engine]:
    made = place.site.engine()
    yield made
    made.dispose()


def _order(place: Place, engine: Engine) -> Any:
    order, orders = type("Order", (), {}), registry(metadata=MetaData())
    orders.map_imperatively(order, Table(place.business, orders.metadata, autoload_with=engine))
    return order


def test_a_session_is_flushed_first_so_that_ids_follow_the_locks(place: Place, engine: Engine) -> None:
    order = _order(place, engine)
    with engine.begin() as connection:
        connection.execute(text(f"INSERT INTO {place.business} VALUES (7, 'new')"))
    done: list[str] = []

    def change(state: str) -> None:
        with Session(engine) as session, session.begin():
            found = session.get_one(order, 7)
            found.state = state
            place.outbox.publish(session, Message("orders", state))
            done.append(state)

    with Session(engine) as session, session.begin():
        session.get_one(order, 7).state = "first"
        place.outbox.publish(session, Message("orders", "first"))
        second = threading.Thread(target=change, args=("second",))
        second.start()
        second.join(0.5)
        assert done == []  # it waits for the row, before its message has an id
    second.join()
    assert [row.value for row in place.rows()] == [b"first", b"second"]


def test_nothing_is_flushed_where_autoflush_is_off(place: Place, engine: Engine) -> None:
    order = _order(place, engine)
    with Session(engine) as session, session.begin():
        session.add(order(id=71))
        with session.no_autoflush:
            place.outbox.publish(session, Message("orders", b"v"))
        assert len(session.new) == 1
        place.outbox.publish(session, Message("orders", b"v"))
        assert len(session.new) == 0
    assert len(place.rows()) == 2


def test_both_modes_publish_in_one_session(place: Place, engine: Engine) -> None:
    with InMemoryHalfOutbox() as half, Session(engine) as session, session.begin():
        half.publish(session, Message("orders", b"half"))
        place.outbox.publish(session, Message("orders", b"table"))
    assert [row.value for row in place.rows()] == [b"table"]
    assert [message.value for message in half.published] == [b"half"]


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2", "pg8000"])
def test_a_follower_is_read_in_a_transaction_with_messages(place: Place, driver: str) -> None:
    url, follows = sqlalchemy_url(place.url, driver), {"postgresql_readonly": True}
    engine, follower = (create_engine(url, poolclass=NullPool, execution_options=one) for one in ({}, follows))
    with Session(engine) as session, session.begin():
        place.outbox.publish(session, Message("orders", b"v"))
        session.execute(text("SELECT 1"), bind_arguments={"bind": follower})
    assert len(place.rows()) == 1


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2", "pg8000"])
def test_a_session_in_autocommit_is_refused(place: Place, driver: str) -> None:
    engine = create_engine(sqlalchemy_url(place.url, driver), isolation_level="AUTOCOMMIT", poolclass=NullPool)
    with Session(engine) as session, pytest.raises(UsageError, match="autocommit"):
        place.outbox.publish(session, Message("orders", b"v"))
    with engine.connect() as connection, pytest.raises(UsageError, match="autocommit"):
        place.outbox.publish_many(connection, [Message("orders", b"v")])
    assert place.rows() == []


def _psycopg2(url: str) -> Any:
    connection = psycopg2.connect(url)
    connection.autocommit = True
    return connection


def _pg8000(url: str) -> Any:
    connection = pg8000.dbapi.connect(**pg8000_arguments(url))
    connection.autocommit = True
    return connection


@pytest.mark.parametrize("connect", [lambda url: psycopg.connect(url, autocommit=True), _psycopg2, _pg8000])
def test_autocommit_is_refused_outside_a_transaction_only(place: Place, connect: Callable[[str], Any]) -> None:
    with closing(connect(place.url)) as connection:
        with pytest.raises(UsageError, match="message would be committed alone"):
            place.outbox.publish(connection, Message("orders", b"1"))
        with pytest.raises(UsageError, match="cancellation would be committed alone"):
            place.outbox.cancel(connection, Receipt(table_transaction_id(7, 1), -1, "orders"))
        assert place.rows() == []
        connection.cursor().execute("BEGIN")
        receipt = place.outbox.publish(connection, Message("orders", b"2"))
        connection.cursor().execute("COMMIT")
    assert [row.message_id for row in place.rows()] == [receipt.message_id]


@pytest.mark.parametrize("name", DOORS)
def test_a_missing_table_is_told_with_its_remedy(place: Place, name: str) -> None:
    with (
        Outbox("orders", tables=TableNames(prefix="nothing")) as outbox,
        DOORS[name](place.url) as opened,
        pytest.raises(
            TableError, match=r"public\.nothing_message does not exist.*outbox table create --table-prefix nothing"
        ),
    ):
        outbox.publish(opened.target, Message("orders"))


def test_a_missing_right_is_told_with_its_remedy_and_the_grant_suffices(place: Place) -> None:
    role, url = f"{place.site.name}_app", place.site.role("app")
    with psycopg.connect(url) as connection, pytest.raises(TableError, match=r"permission denied.*--application-role"):
        place.outbox.publish(connection, Message("orders"))
    with place.site.connect() as connection:
        table = MessageTable(place.site.tables)
        table.create(connection, [table.application_grant(role)])
    with psycopg.connect(url) as connection:
        place.outbox.publish_many(connection, [Message("orders"), Message("orders")])
    assert len(place.rows()) == 2


def test_a_transaction_has_ten_thousand_messages_at_most(place: Place, engine: Engine) -> None:
    small = [Message("orders", b"v")] * 10_001
    with Session(engine) as session, session.begin():
        with pytest.raises(MessageRefused, match="would have more than 10000 messages"):
            place.outbox.publish_many(session, small)
        place.outbox.publish_many(session, small[:-1])
        with pytest.raises(MessageRefused, match="more than 10000 messages"):
            place.outbox.publish(session, small[0])
    assert len(place.rows()) == 10_000
    with Session(engine) as session, session.begin():  # the next one on the same connection
        place.outbox.publish(session, small[0])
    assert len(place.rows()) == 1


def test_a_transaction_has_64_megabytes_at_most(place: Place, engine: Engine) -> None:
    large = Message("orders", bytes(20_000_000))
    with Session(engine) as session, session.begin():
        with pytest.raises(MessageRefused, match="exceed 64000000 bytes"):
            place.outbox.publish_many(session, [large] * 4)
        place.outbox.publish_many(session, [large] * 3)
        place.outbox.publish(session, Message("orders", bytes(4_000_000)))
    assert len(place.rows()) == 4


LARGEST: dict[str, HeadersInput] = {
    "large": [("a", bytes(999_924)), ("b", None)],
    "many": [("n", b"") for _ in range(83_329)],
    "without contents": [("name" * 3, None) for _ in range(62_012)],
}
"""Headers of which Postgres counts 1,000,000 bytes, or a few fewer than one more header has."""


@pytest.mark.parametrize("headers", LARGEST.values(), ids=LARGEST)
def test_headers_that_a_relay_would_not_read_are_refused_at_once(
    place: Place, engine: Engine, headers: list[tuple[str, bytes | None]]
) -> None:
    with Session(engine) as session:
        place.outbox.publish(session, Message("orders", headers=headers))
        too_many = Message("orders", headers=[*headers, ("c", b"1")])
        with pytest.raises(MessageRefused, match="The headers of a message have more than 1000000 bytes"):
            place.outbox.publish_many(session, [Message("orders", "1"), too_many])
        session.commit()
    assert [row.value for row in place.rows()] == [None], "all messages are checked before one is inserted"


def test_what_is_no_message_is_refused(place: Place, engine: Engine) -> None:
    with Session(engine) as session, InMemoryOutbox() as fake:
        for outbox in (place.outbox, fake):
            assert outbox.publish_many(session, []) == []
            with pytest.raises(UsageError, match="list is no Message"):
                outbox.publish(session, [Message("orders")])  # type: ignore[arg-type]
            with pytest.raises(UsageError, match="str is no Message"):
                outbox.publish_many(session, [Message("orders"), "orders"])  # type: ignore[list-item]


def _with_a_reserved_header() -> Iterator[Message]:
    yield Message("orders", b"1")
    yield Message("orders", headers={"outbox-id": b"x"})


def _with_an_internal_topic() -> Iterator[Message]:
    for _ in range(1_500):  # more than one INSERT
        yield Message("orders", b"1")
    yield Message("outbox.half", b"2")


@pytest.mark.parametrize("messages", [_with_a_reserved_header, _with_an_internal_topic])
def test_all_messages_are_checked_before_one_is_inserted(
    place: Place, engine: Engine, messages: Callable[[], Iterator[Message]]
) -> None:
    with Session(engine) as session, session.begin(), pytest.raises(MessageRefused, match=r"reserved|internal"):
        place.outbox.publish_many(session, messages())
    assert place.rows() == []


async def test_a_blocking_outbox_refuses_an_async_connection(place: Place) -> None:
    connection = await asyncpg.connect(place.url)
    async with connection.transaction():
        with pytest.raises(UsageError, match="Use AsyncOutbox"):
            place.outbox.publish(connection, Message("orders"))
    await connection.close()
    with pytest.raises(UsageError, match="The connection is closed"):
        await AsyncOutbox.over(place.outbox).publish(connection, Message("orders"))


class Counting(NoRecorder):
    def __init__(self) -> None:
        self.published: list[tuple[str, int]] = []

    def messages_published(self, service: str, count: int) -> None:
        self.published.append((service, count))


def test_a_recorder_counts_published_messages(place: Place, engine: Engine) -> None:
    counting = Counting()
    with Outbox("orders", tables=place.site.tables, recorder=counting) as outbox, Session(engine) as session:
        outbox.publish(session, Message("orders"))
        outbox.publish_many(session, [Message("orders")] * 1_001)
    assert counting.published == [("orders", 1), ("orders", 1_000), ("orders", 1)]


def test_the_trace_is_carried_by_headers(place: Place, engine: Engine) -> None:
    tracer = TracerProvider().get_tracer("test")
    with tracer.start_as_current_span("work") as span, Session(engine) as session, session.begin():
        place.outbox.publish(session, Message("orders", headers={"own": b"1"}))
        place.outbox.publish_many(session, [Message("orders")] * 2)
    id_ = trace.format_trace_id(span.get_span_context().trace_id).encode()
    first, *others = place.rows()
    assert first.headers[0] == ("own", b"1")
    assert all(id_ in (dict(row.headers)["traceparent"] or b"") for row in (first, *others))


def test_the_sql_function_returns_the_id_that_its_row_leads_to(place: Place) -> None:
    name = place.site.tables.publish_function
    with psycopg.connect(place.url) as connection:
        receipt = place.outbox.publish(connection, Message("orders", b"1"))
        (row,) = connection.execute(
            f"SELECT {name}('orders', 'stock', 'välue', 'key', '{{\"a\": \"1\", \"b\": null}}')".encode()
        ).fetchall()
        (plain,) = connection.execute(
            f"SELECT {name}('orders', 'stock', NULL, headers => 'null', partition => NULL)".encode()
        ).fetchall()
    mine, theirs, last = place.rows()
    assert (mine.message_id, theirs.message_id, last.message_id) == (receipt.message_id, row[0], plain[0])
    assert (theirs.value, theirs.key) == ("välue".encode(), b"key")
    assert theirs.headers == [("a", b"1"), ("b", None)]
    assert (last.partition, last.headers) == (-1, [])
    assert re.fullmatch(rf"{receipt.transaction_id}/\d+", row[0])


def test_the_sql_function_schedules_what_can_be_cancelled(place: Place) -> None:
    """Its arguments are text: in a bytea the JSON's backslashes would be read."""
    name, table = place.site.tables.publish_function, place.site.tables.scheduled
    given = """'orders', 'stock', '{"a": "b\\n"}', 'k', not_before => '2050-01-02 00:00Z'"""
    with psycopg.connect(place.url) as connection:
        ((id_,),) = connection.execute(f"SELECT {name}({given})".encode()).fetchall()
        rows = connection.execute(f"DELETE FROM {table} RETURNING id, value, key, not_before".encode()).fetchall()
    assert rows == [(int(id_.partition("/")[2]), b'{"a": "b\\n"}', b"k", datetime(2050, 1, 2, tzinfo=UTC))]
    assert place.rows() == []


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ("'or ders', 'stock', 'v'", "service 'or ders' is no name"),
        ("NULL, 'stock', 'v'", "service NULL is no name"),
        *((f"'orders', '{name}', 'v'", f"topic '{name}' is no name") for name in ("", "a b", "..", "__x", "a\n")),
        ("'orders', NULL, 'v'", "topic NULL is no name"),
        ("'orders', 'stock', 'v', partition => -2", "partition -2 is below 0"),
        ("'orders', 'stock', 'v', not_before => 'infinity'", "not_before infinity is no time that comes"),
        ("'orders', 'stock', 'v', headers => '[]'", "no JSON object"),
        ("'orders', 'stock', repeat('v', 64000000), 'k'", "exceed 64 MB"),
        ("""'orders', 'stock', 'v', headers => '{"a": "b", "outbox-id": "1"}'""", "reserved"),
        ("'orders', 'stock', 'v', headers => jsonb_build_object('a', repeat('v', 1000000))", "headers exceed 1 MB"),
        ("'orders', 'stock', 'v', headers => jsonb_build_object(repeat('n', 1000001), null)", "headers exceed 1 MB"),
    ],
)
def test_the_sql_function_refuses_what_no_relay_delivers(place: Place, arguments: str, why: str) -> None:
    with pytest.raises(psycopg.errors.CheckViolation, match=f"^outbox: .*{re.escape(why)}.*: not inserted"):
        place.site.sql(f"SELECT {place.site.tables.publish_function}({arguments})")
    assert place.rows() == []


def test_the_sql_function_counts_its_row(place: Place) -> None:
    """R78: a trigger that keeps the row out ends the transaction, also for who goes on after the error."""
    name, table = place.site.tables.publish_function, place.site.tables.message
    place.site.sql(
        f"CREATE FUNCTION {table}_no() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';"
        f" CREATE TRIGGER n BEFORE INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION {table}_no()"
    )
    with psycopg.connect(place.url) as connection:
        with pytest.raises(psycopg.errors.RaiseException, match="the message was not inserted: a trigger"):
            connection.execute(f"SELECT {name}('orders', 'stock', 'value')".encode())
        with pytest.raises(psycopg.errors.InFailedSqlTransaction):
            connection.execute("SELECT 1")
    place.site.sql(f"DROP FUNCTION {table}_no CASCADE")


def test_the_sql_function_names_the_missing_right(place: Place) -> None:
    names = place.site.tables
    with psycopg.connect(place.url) as connection:
        connection.execute("SET ROLE pg_monitor")
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="role pg_monitor may not") as refused:
            connection.execute(f"SELECT {names.publish_function}('orders', 'stock', 'v')".encode())
    assert f"--table-prefix {names.prefix} --application-role pg_monitor`" in str(refused.value.diag.message_hint)


def test_a_cursor_of_psycopg_is_a_target_for_mypy_too(place: Place) -> None:
    with psycopg.connect(place.url) as connection, connection.cursor() as cursor:
        receipt = place.outbox.publish(cursor, Message("orders"))
        place.outbox.publish_many(connection.cursor(), [Message("orders")])
    assert len(place.rows()) == 2
    with psycopg.connect(place.url) as connection:
        assert place.outbox.outcome(receipt.transaction_id, connection.cursor()) is Outcome.TOO_OLD


@pytest.fixture
def latin_1(servers: Servers) -> str:
    with psycopg.connect(servers.postgres_url, autocommit=True) as connection:
        connection.execute("DROP DATABASE IF EXISTS latin_1")
        connection.execute("CREATE DATABASE latin_1 ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0")
    url = servers.postgres_url.rpartition("/")[0] + "/latin_1"
    with psycopg.connect(url, autocommit=True) as connection:
        MessageTable(TableNames()).create(connection)
    return url


@pytest.mark.parametrize("encoding", ["UTF8", "LATIN1", "SQL_ASCII"])
def test_no_encoding_of_a_client_decides_the_name_of_a_header(latin_1: str, encoding: str) -> None:
    """R77: in SQL_ASCII the bytes of a name were taken for two characters of LATIN1."""
    one = Message("orders", headers={"Größe": "é"})
    with Outbox("orders") as outbox, psycopg.connect(latin_1) as connection:
        connection.execute(f"SET client_encoding = '{encoding}'".encode())
        outbox.publish(connection, one)
        outbox.publish_many(connection, [one, Message("orders"), one])
        if encoding != "UTF8":
            outbox.publish_many(connection, [one] * 200)
    with psycopg.connect(latin_1, client_encoding="UTF8") as connection:
        found = connection.execute("SELECT DISTINCT header_names FROM outbox_message ORDER BY 1").fetchall()
        assert found == [(["Größe"],), (None,)]
    with Outbox("orders") as outbox, psycopg.connect(latin_1) as connection:
        connection.execute(f"SET client_encoding = '{encoding}'".encode())
        with pytest.raises(psycopg.errors.UntranslatableCharacter):  # the database has no such character
            outbox.publish(connection, Message("orders", headers={"€": "1"}))


def test_a_policy_is_no_missing_right(place: Place) -> None:
    url, table = place.site.role("barred", MessageTable(place.site.tables).application_grant), place.site.tables.message
    place.site.sql(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")
    try:
        with psycopg.connect(url) as connection:
            with pytest.raises(TableError, match="DISABLE ROW LEVEL SECURITY") as caught:
                place.outbox.publish(connection, Message("orders"))
            assert "--application-role" not in str(caught.value)
    finally:
        place.site.sql(f"ALTER TABLE {table} DISABLE ROW LEVEL SECURITY")


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_an_async_session_publishes(place: Place, driver: str) -> None:
    engine = create_async_engine(sqlalchemy_url(place.url, driver), poolclass=NullPool)
    async with AsyncOutbox("orders", tables=place.site.tables) as outbox:
        async with AsyncSession(engine) as session, session.begin():
            receipts = [await outbox.publish(session, message) for message in ODD]
            receipts += await outbox.publish_many(session, ODD)
            async with session.begin_nested() as nested:
                await outbox.publish(session, Message("orders", b"never"))
                await nested.rollback()
            assert await outbox.outcome(receipts[0].transaction_id, engine) is Outcome.OPEN
        assert await outbox.outcome(receipts[0].transaction_id, engine) is Outcome.COMMITTED
        with pytest.raises(UsageError, match="no transaction has the xid"):
            await outbox.outcome(table_transaction_id((1 << 40) + 7, 1), engine)
        assert place.rows() == [as_row(*pair) for pair in zip([*ODD, *ODD], receipts, strict=True)]
        assert await outbox.outcome(receipts[0].transaction_id, engine) is Outcome.TOO_OLD, "its rows are gone by hand"
        async with AsyncSession(engine) as session:
            receipt = await outbox.publish(session, Message("orders"))
            await session.rollback()
        assert await outbox.outcome(receipt.transaction_id, engine) is Outcome.ROLLED_BACK
        async with engine.connect() as connection:
            async with connection.begin():
                await outbox.publish(connection, Message("orders", b"core"))
            await connection.execution_options(isolation_level="AUTOCOMMIT")
            with pytest.raises(UsageError, match="autocommit"):
                await outbox.publish(connection, Message("orders"))
        assert [row.value for row in place.rows()] == [b"core"]


@asynccontextmanager
async def _asyncpg(url: str) -> AsyncIterator[Any]:
    async with asyncpg.create_pool(url, min_size=1, max_size=1) as pool, pool.acquire() as connection:
        yield connection


@asynccontextmanager
async def _psycopg(url: str) -> AsyncIterator[Any]:
    async with await psycopg.AsyncConnection.connect(url, autocommit=True, row_factory=dict_row) as connection:
        yield connection


async def _publish_in_vain(outbox: AsyncOutbox, connection: Any) -> None:
    async with connection.transaction():
        await _fail_after_async(outbox.publish, connection, Message("orders", b"never"))


@pytest.mark.parametrize("connect", [_asyncpg, _psycopg])
async def test_a_bare_async_connection_publishes(place: Place, connect: Callable[[str], Any]) -> None:
    place.rows()
    outbox = AsyncOutbox.over(place.outbox)
    async with connect(place.url) as connection:
        with pytest.raises(UsageError, match="message would be committed alone"):
            await outbox.publish(connection, Message("orders"))
        async with connection.transaction():
            for name, value in DECIDING.items():
                await connection.execute(f"SET {name} = '{value}'")
            if connect is _asyncpg:
                await connection.set_type_codec("int8", encoder=str, decoder=str, schema="pg_catalog")
            receipts = [await outbox.publish(connection, message) for message in ODD]
            receipts += await outbox.publish_many(connection, ODD)
            with pytest.raises(UsageError, match="is in a transaction"):
                await outbox.outcome(receipts[0].transaction_id, connection)
        with pytest.raises(ZeroDivisionError):
            await _publish_in_vain(outbox, connection)
        assert await outbox.outcome(receipts[0].transaction_id, connection) is Outcome.COMMITTED
    assert place.rows() == [as_row(*pair) for pair in zip([*ODD, *ODD], receipts, strict=True)]


async def test_an_async_outbox_refuses_a_blocking_connection(place: Place) -> None:
    outbox = AsyncOutbox.over(place.outbox)
    with psycopg2.connect(place.url) as connection, pytest.raises(UsageError, match="AsyncSession"):
        await outbox.publish(connection, Message("orders"))
    unopened = AsyncConnection(create_async_engine(sqlalchemy_url(place.url, "asyncpg")))
    with pytest.raises(UsageError, match="not open"):
        await outbox.publish(unopened, Message("orders"))


def test_no_client_of_kafka_is_created(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a client was created")

    for name in ("Producer", "admin_client"):
        monkeypatch.setattr(f"outbox._half.cluster_connection.{name}", refuse)
    with (
        Outbox.from_env({"OUTBOX_SERVICE": "orders", "OUTBOX_TABLE_PREFIX": place.site.name}) as outbox,
        session_on("psycopg", place.url) as opened,
    ):
        receipt = outbox.publish(opened.target, Message("orders", b"v"))
        opened.commit()
        with place.site.connect() as connection:
            assert outbox.outcome(receipt.transaction_id, connection) is Outcome.COMMITTED
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("outbox")] == []
    assert [row.message_id for row in place.rows()] == [receipt.message_id]
