"""Sessions at their edges: threads, forks, listeners, pools; and the life of an outbox."""

import gc
import subprocess
import sys
from collections.abc import Iterator, Sequence

import psycopg
import pytest
from psycopg.pq import TransactionStatus
from sqlalchemy import Connection, Engine, event, text
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.event import registry as event_registry
from sqlalchemy.exc import DBAPIError, ProgrammingError
from sqlalchemy.orm import Session
from sqlalchemy.pool import StaticPool

from outbox import HalfOutbox, Message
from outbox._publish import session_connection, sqlalchemy_session
from outbox.errors import ChannelError, PublishFailed, TransactionFenced, UsageError
from outbox.protocol.op import OpKind
from tests.integration.library.test_outbox_contract import JOINED, JoinMode
from tests.support.shop import Shop


@pytest.fixture(autouse=True)
def _nothing_is_left_behind() -> Iterator[None]:
    yield
    gc.collect()
    assert not sqlalchemy_session._published
    assert not sqlalchemy_session._sealed
    assert not sqlalchemy_session._sessions
    assert not session_connection._publishing


def test_a_session_is_used_again_after_a_failed_seal(shop: Shop, engine: Engine) -> None:
    topic, number = shop.topic(), shop.number()
    with Session(engine) as session:
        for _ in range(3):
            shop.insert(session, number)
            receipt = shop.publish(session, topic, "fenced")
            shop.outbox.outcome(receipt.transaction_id, shop.engine)
            with pytest.raises(TransactionFenced):
                session.commit()
            session.rollback()
        shop.insert(session, number)
        shop.publish(session, topic, "at last")
        session.commit()
    assert shop.has(number)
    assert shop.delivered(1, topic) == ["at last"]


@pytest.mark.parametrize("mode", JOINED)
def test_a_joined_session_that_commits_after_the_outer_commit_failed(shop: Shop, mode: JoinMode) -> None:
    """A handler of the user's hides the error of COMMIT from the library; the session knows nothing of it."""

    class Translated(Exception):  # noqa: N818 - of a user's
        """What a user's handler makes of an error."""

    def translate(context: ExceptionContext) -> None:
        raise Translated from context.original_exception

    engine, topic, name = shop.site.engine(pool_size=1), shop.topic(), f"{shop.table}_twice"
    event.listen(engine, "handle_error", translate)
    shop.site.sql(f"CREATE TABLE IF NOT EXISTS {name} (id int UNIQUE DEFERRABLE INITIALLY DEFERRED)")
    with engine.connect() as connection:
        outer = connection.begin()
        session = Session(connection, join_transaction_mode=mode)
        receipt = shop.publish(session, topic, "never")
        session.execute(text(f"INSERT INTO {name} VALUES (1), (1)"))
        if mode == "create_savepoint":
            session.commit()
            session.begin()
        with pytest.raises(Translated):
            outer.commit()
        session.commit()
        session.close()
    shop.assert_nothing(topic)
    assert shop.kinds(receipt.transaction_id) == {OpKind.ROLLBACK}


def test_a_connection_that_is_given_up_after_commit(shop: Shop, engine: Engine) -> None:
    topic = shop.topic()
    with engine.connect() as connection:
        with connection.begin(), Session(connection) as session:
            shop.publish(session, topic, "committed")
            session.commit()
        connection.invalidate()
    gc.collect()
    assert not sqlalchemy_session._sealed
    assert shop.delivered(1, topic) == ["committed"]


def test_a_session_whose_connection_was_committed_and_used_again(shop: Shop, engine: Engine) -> None:
    """The pool resets a second transaction, of which the session knows nothing: the first is committed all the same."""
    topic, number = shop.topic(), shop.number()
    with Session(engine) as session:
        shop.insert(session, number)
        receipt = shop.publish(session, topic, "committed")
        connection = session.connection()
        connection.commit()
        connection.execute(text("SELECT 1"))
    assert shop.has(number)
    assert shop.delivered(1, topic) == ["committed"]
    assert shop.kinds(receipt.transaction_id) == {OpKind.COMMIT}


def test_a_reset_of_another_connection_that_shares_the_drivers(shop: Shop) -> None:
    """A StaticPool lends one connection of the driver to several Connections; only the copy's are listened to."""
    topic, engine = shop.topic(), shop.site.engine(poolclass=StaticPool)
    with engine.execution_options(copy=True).connect() as first:
        with first.begin(), Session(first) as session:
            receipt = shop.publish(session, topic, "committed")
            session.commit()
        with engine.connect() as second:
            second.execute(text("SELECT 1"))
    assert shop.delivered(1, topic) == ["committed"]
    assert shop.kinds(receipt.transaction_id) == {OpKind.COMMIT}


@pytest.mark.parametrize("raised_by", ["begin", "commit"])
def test_a_listener_that_raises_after_a_committed_transaction(shop: Shop, engine: Engine, raised_by: str) -> None:
    """The user's `begin` listener comes before ours, which then does not see the second transaction begin."""
    topic, seen = shop.topic(), list[Connection]()

    def fail(connection: Connection) -> None:
        seen.append(connection)
        if len(seen) > 1:
            raise RuntimeError("a listener of the user's")

    def go_on(connection: Connection) -> None:
        connection.execute(text("SELECT 1"))
        connection.commit()

    event.listen(engine, raised_by, fail)
    with Session(engine) as session:
        receipt = shop.publish(session, topic, "committed")
        connection = session.connection()
        connection.commit()
        with pytest.raises(RuntimeError, match="of the user's"):
            go_on(connection)
    assert shop.delivered(1, topic) == ["committed"]
    assert shop.kinds(receipt.transaction_id) == {OpKind.COMMIT}


def test_a_connection_that_was_taken_from_its_pool(shop: Shop, engine: Engine) -> None:
    topic, number = shop.topic(), shop.number()
    with engine.connect() as connection:
        connection.detach()
        for value in ("1", "2"):
            with connection.begin(), Session(connection) as session:
                shop.publish(session, topic, value)
                session.commit()
        with connection.begin():
            connection.execute(text(f"INSERT INTO {shop.table} VALUES ({number}, 0)"))
    assert shop.has(number)
    assert shop.delivered(2, topic) == ["1", "2"]


def test_a_first_sight_after_the_row_may_have_been_purged(shop: Shop, engine: Engine) -> None:
    """The absence of the row says nothing then: no rollback is told to anybody."""
    topic, tables = shop.topic(), shop.site.tables
    with engine.connect() as connection, shop.site.connect() as other:
        with connection.begin(), Session(connection) as session:
            id_ = shop.publish(session, topic, "committed").transaction_id
            session.commit()
        purge = f"DELETE FROM {tables.transaction} WHERE transaction_id = %s RETURNING state".encode()
        mark = f"INSERT INTO {tables.meta} SELECT 'purged_until', extract(epoch FROM now())::bigint * 1000".encode()
        with other.transaction():
            assert other.execute(purge, (id_,)).fetchall() == [("C",)]
            other.execute(mark)
        try:
            connection.execute(text("SELECT 1"))
        finally:
            other.execute(f"DELETE FROM {tables.meta} WHERE key = 'purged_until'".encode())
    assert shop.kinds(id_) == set()


def test_a_look_at_the_row_that_fails_leaves_a_clean_connection(shop: Shop, engine: Engine) -> None:
    """The first sight of the connection falls into a time at which the table cannot be read."""
    topic, number, table = shop.topic(), shop.number(), shop.site.tables.transaction
    with engine.connect() as connection:
        with connection.begin(), Session(connection) as session:
            shop.publish(session, topic, "committed")
            session.commit()
        shop.site.sql(f"ALTER TABLE {table} RENAME TO {table}_away")
        try:
            with connection.begin():
                connection.execute(text(f"INSERT INTO {shop.table} VALUES ({number}, 0)"))
        finally:
            shop.site.sql(f"ALTER TABLE {table}_away RENAME TO {table}")
    assert shop.has(number)
    assert shop.delivered(1, topic) == ["committed"]


def test_errors_of_other_peoples_transactions_are_left_alone(shop: Shop, engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        shop.publish(session, shop.topic(), "v")  # from here on the library listens to the engine
    with engine.connect() as connection:
        for _ in range(2):
            with pytest.raises(ProgrammingError) as caught:
                connection.execute(text("SELECT * FROM no_such_table"))
            assert isinstance(caught.value.orig, psycopg.errors.UndefinedTable)
            connection.rollback()
        connection.execute(text("CREATE TEMP TABLE twice (id int UNIQUE DEFERRABLE INITIALLY DEFERRED)"))
        connection.execute(text("INSERT INTO twice VALUES (1), (1)"))
        with pytest.raises(DBAPIError) as failed:
            connection.commit()
        assert isinstance(failed.value.orig, psycopg.errors.UniqueViolation)


def test_listeners_do_not_pile_up(shop: Shop) -> None:
    """A session for each transaction, each on options of its own, as request handlers do it."""
    topic = shop.topic()

    def publish(engines: Sequence[Engine]) -> int:
        for engine in engines:
            with Session(engine) as session:
                shop.publish(session, topic, "v")
                session.rollback()
        del session
        gc.collect()
        return sum(identifier == "handle_error" for _, identifier, *_ in event_registry._key_to_collection)

    with_options = [shop.engine.execution_options(isolation_level="READ COMMITTED") for _ in range(100)]
    before = publish(with_options[:10])
    assert publish(with_options[10:]) == before


def test_publishing_inside_psycopgs_own_block_is_refused(shop: Shop) -> None:
    """Its rollback would not strike the message: the library sees the SAVEPOINTs of `tx.savepoint()` only."""
    topic, number = shop.topic(), shop.number()
    with psycopg.connect(shop.site.postgres_url) as connection:
        with shop.outbox.transaction(connection) as tx:
            tx.publish(Message(shop.site.topic(topic), "kept"))
            with pytest.raises(UsageError, match=r"tx\.savepoint\(\)"), connection.transaction():
                tx.publish(Message(shop.site.topic(topic), "refused"))
            with connection.transaction():
                connection.execute(f"INSERT INTO {shop.table} VALUES ({number}, 0)".encode())
        assert connection.info.transaction_status is TransactionStatus.IDLE
    assert shop.has(number)
    assert shop.delivered(1, topic) == ["kept"]


FORK = """
import os, sys, psycopg
from outbox import Message, HalfOutbox

def publish(outbox, value):
    with psycopg.connect(os.environ["OUTBOX_POSTGRES_URL"]) as connection, outbox.transaction(connection) as tx:
        tx.publish(Message(sys.argv[1], value))

outbox = HalfOutbox.from_env()
if os.fork() == 0:
    publish(outbox, "of a child before the parent's first")
    outbox.close()
    os._exit(0)
assert os.wait()[1] == 0
publish(outbox, "of the parent")
if os.fork() == 0:
    publish(outbox, "of the child")
    with HalfOutbox.from_env() as own:
        publish(own, "of the child's own")
        sys.exit(7)  # as a program ends, with everything that runs at exit
assert os.waitstatus_to_exitcode(os.wait()[1]) == 7
publish(outbox, "of the parent again")
"""


def test_forked_children_publish_and_end_as_programs_do(shop: Shop) -> None:
    topic = shop.topic()
    command = [sys.executable, "-c", FORK, shop.site.topic(topic)]
    subprocess.run(command, env=shop.site.environment(), check=True, timeout=60)
    children = ["of a child before the parent's first", "of the child", "of the child's own"]
    assert sorted(shop.delivered(5, topic)) == [*children, "of the parent", "of the parent again"]


EXIT = """
import os, sys, psycopg
from outbox import Message, HalfOutbox

outbox = HalfOutbox.from_env()
with psycopg.connect(os.environ["OUTBOX_POSTGRES_URL"]) as connection:
    for value in range(50):
        with outbox.transaction(connection) as tx:
            tx.publish(Message(sys.argv[1], str(value), "k"))
            print(tx.transaction_id)
"""


def test_op_markers_are_flushed_when_the_program_ends(shop: Shop) -> None:
    topic = shop.topic()
    command = [sys.executable, "-c", EXIT, shop.site.topic(topic)]
    environment = shop.site.environment()
    done = subprocess.run(command, env=environment, check=True, timeout=60, stdout=subprocess.PIPE, text=True)
    ids = set(done.stdout.split())
    assert len(ids) == 50
    assert ids <= {entry.transaction_id for source, entry in shop.site.ops() if source == "producer"}
    assert shop.delivered(50, topic) == [str(number) for number in range(50)]


def test_a_closed_outbox_refuses(shop: Shop) -> None:
    topic = shop.topic()
    outbox = shop.site.half_outbox()
    with Session(shop.engine) as session:
        outbox.publish(session, Message(shop.site.topic(topic), "never"))
        outbox.close(timeout=1.0)
        outbox.close()
        with pytest.raises(UsageError, match="closed"):
            outbox.publish(session, Message(shop.site.topic(topic), "never"))
        with pytest.raises(UsageError, match="closed"):
            session.commit()
    with pytest.raises(UsageError, match="closed"):
        outbox.ping()
    assert shop.site.read(topic) == []


def test_ping_says_whether_publishing_would_work(shop: Shop) -> None:
    shop.outbox.ping()
    with shop.site.half_outbox() as unused:
        unused.ping()
    with (
        HalfOutbox("orders", shop.site.kafka(), channel="no-such-channel") as lost,
        pytest.raises(ChannelError, match="no-such-channel"),
    ):
        lost.ping()
    nowhere = {"bootstrap.servers": "127.0.0.1:1"}
    with HalfOutbox("orders", nowhere, publish_timeout_seconds=0.5) as outbox, pytest.raises(PublishFailed):
        outbox.ping()
