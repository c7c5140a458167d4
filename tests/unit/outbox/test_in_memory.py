"""What the outbox in memory shows; that it is like the real one is tested by `test_outbox_contract.py`."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.engine import Connection
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from outbox import Message, MessageRefused
from outbox.errors import TransactionFenced, TransactionsRejected, UsageError
from outbox.listener import HalfMessage, LocalTransactionState
from outbox.recorder import CommitOutcome, NoRecorder
from outbox.testing import InMemoryHalfOutbox, InMemoryOutbox, PublishedMessage
from outbox.transactional_producer import TransactionalProducer
from tests.support.listeners import Scripted

MESSAGE = Message("orders", "v", "k")


@pytest.fixture
def engine(tmp_path: Any) -> Iterator[Engine]:
    """As users make it, without the savepoint recipe of SQLAlchemy's manual."""
    made = create_engine(f"sqlite:///{tmp_path / 'test.db'}")
    with made.begin() as connection:
        connection.execute(text("CREATE TABLE things (id int)"))
    yield made
    made.dispose()


def _values(messages: list[PublishedMessage]) -> list[bytes | None]:
    return [message.value for message in messages]


def _rows(engine: Engine) -> int:
    with engine.connect() as connection:
        return int(connection.execute(text("SELECT count(*) FROM things")).scalar_one())


def _commit_one(engine: Engine, outbox: InMemoryHalfOutbox, message: Message = MESSAGE) -> str:
    with Session(engine) as session:
        session.execute(text("INSERT INTO things VALUES (1)"))
        receipt = outbox.publish(session, message)
        session.commit()
    return receipt.transaction_id


def test_a_record_says_all_of_a_message(engine: Engine) -> None:
    outbox = InMemoryHalfOutbox()
    id_ = _commit_one(engine, outbox, Message("orders", "v", b"k", [("a", "1"), ("a", None)], 3, 1_000))
    headers = (("a", b"1"), ("a", None))
    assert outbox.published == [PublishedMessage("orders", b"k", b"v", headers, 3, 1_000, id_, f"{id_}/0")]
    with pytest.raises(AttributeError):
        outbox.published[0].topic = "other"  # type: ignore[misc]  # that is what is tested
    outbox.published.clear()
    assert len(outbox.published) == 1, "the list is a copy"


def test_what_is_open_is_seen_apart_and_a_test_suite_that_rolls_back_can_look_at_it(engine: Engine) -> None:
    outbox = InMemoryHalfOutbox()
    with engine.connect() as connection, connection.begin() as outer:
        with Session(connection, join_transaction_mode="create_savepoint") as session:
            outbox.publish(session, Message("orders", "kept"))
            nested = session.begin_nested()
            outbox.publish(session, Message("orders", "struck"))
            nested.rollback()
            session.commit()
        assert _values(outbox.uncommitted) == [b"kept"]
        assert outbox.published == []
        outer.rollback()
    assert outbox.uncommitted == []
    assert outbox.published == []


def test_clear_forgets_what_was_published(engine: Engine) -> None:
    outbox = InMemoryHalfOutbox()
    _commit_one(engine, outbox)
    with Session(engine) as session:
        outbox.clear()
        outbox.publish(session, Message("orders", "open"))
        outbox.clear()
        assert _values(outbox.uncommitted) == [b"open"]
        session.commit()
    assert _values(outbox.published) == [b"open"]


def test_sqlite_that_begins_no_transaction_at_a_savepoint(engine: Engine) -> None:
    outbox = InMemoryHalfOutbox()
    with Session(engine) as session, session.begin():
        with session.begin_nested():
            outbox.publish(session, Message("orders", "1"))
        nested = session.begin_nested()
        outbox.publish(session, Message("orders", "struck"))
        nested.rollback()
        outbox.publish(session, Message("orders", "2"))
    assert _values(outbox.published) == [b"1", b"2"]


def test_a_commit_that_fails_for_good_is_known_to_have_failed(engine: Engine) -> None:
    outbox = InMemoryHalfOutbox()
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE parents (id int PRIMARY KEY)"))
        reference = "parent int REFERENCES parents (id) DEFERRABLE INITIALLY DEFERRED"
        connection.execute(text(f"CREATE TABLE children ({reference})"))
    with Session(engine) as session:
        session.execute(text("PRAGMA foreign_keys = ON"))
        session.execute(text("INSERT INTO children VALUES (7)"))
        outbox.publish(session, MESSAGE)
        with pytest.raises(IntegrityError):
            session.commit()
    assert outbox.published == []


def _raise(_connection: Connection) -> None:
    raise ZeroDivisionError


def _work_in_a_session(connection: Connection, outbox: InMemoryHalfOutbox) -> None:
    connection.begin()
    with Session(connection, join_transaction_mode="control_fully") as session:
        session.execute(text("INSERT INTO things VALUES (1)"))
        outbox.publish(session, MESSAGE)
        session.commit()


def _work_in_a_transaction(connection: Connection, outbox: InMemoryHalfOutbox) -> None:
    with outbox.transaction(connection) as tx:
        connection.execute(text("INSERT INTO things VALUES (1)"))
        tx.publish(MESSAGE)


@pytest.mark.parametrize("work", [_work_in_a_session, _work_in_a_transaction])
def test_a_listener_of_the_users_that_raises_after_the_seal(
    engine: Engine, work: Callable[[Connection, InMemoryHalfOutbox], None]
) -> None:
    outbox = InMemoryHalfOutbox()
    with engine.connect() as connection:
        work(connection, outbox)
        event.listen(connection, "commit", _raise)
        with pytest.raises(ZeroDivisionError):
            work(connection, outbox)
    assert len(outbox.published) == _rows(engine) == 1


def test_the_same_on_a_connection_that_is_used_again(engine: Engine) -> None:
    outbox = InMemoryHalfOutbox()
    with engine.connect() as connection:
        event.listen(connection, "commit", _raise)
        connection.execute(text("INSERT INTO things VALUES (1)"))
        outbox.publish(connection, MESSAGE)
        with pytest.raises(ZeroDivisionError):
            connection.commit()
        connection.rollback()
        event.remove(connection, "commit", _raise)
        connection.execute(text("INSERT INTO things VALUES (2)"))
        connection.commit()
    assert (outbox.published, _rows(engine)) == ([], 1)


def test_the_same_in_sessions_that_are_used_again(engine: Engine) -> None:
    outbox = InMemoryHalfOutbox()
    with Session(engine) as session:
        for raises in (False, True, False):
            session.execute(text("INSERT INTO things VALUES (1)"))
            outbox.publish(session, MESSAGE)
            if raises:
                event.listen(session.connection(), "commit", _raise)
                with pytest.raises(ZeroDivisionError):
                    session.commit()
                session.rollback()
            else:
                session.commit()
    assert len(outbox.published) == _rows(engine) == 2


def test_topics_may_be_names_and_without_any_all_exist(engine: Engine) -> None:
    with Session(engine) as session:
        InMemoryHalfOutbox(topics=["orders"]).publish(session, Message("orders", "v"))
        InMemoryHalfOutbox().publish(session, Message("anything", "v", partition=700))
        with pytest.raises(MessageRefused):
            InMemoryHalfOutbox(topics=[]).publish(session, Message("orders", "v"))


def test_declared_topic_of_declared_channel_is_refused(engine: Engine) -> None:
    with Session(engine) as session:
        InMemoryHalfOutbox(topics=["shop.check"]).publish(session, Message("shop.check", "v"))
        with pytest.raises(MessageRefused, match=r"'shop.check' is an internal topic"):
            InMemoryHalfOutbox(topics=["shop.check", "shop.half"]).publish(session, Message("shop.check", "v"))
        with pytest.raises(MessageRefused, match=r"'outbox.half' is an internal topic"):
            InMemoryHalfOutbox().publish(session, Message("outbox.half", "v"))


def test_it_is_made_from_the_environment_like_the_real_one(engine: Engine) -> None:
    environment = {"OUTBOX_SERVICE": "billing", "OUTBOX_BOOTSTRAP_SERVERS": "localhost:9092"}
    with InMemoryHalfOutbox.from_env(environment) as outbox:
        _commit_one(engine, outbox)
        assert outbox.settings.service == "billing"
        assert len(outbox.published) == 1
    for made in (InMemoryOutbox, InMemoryHalfOutbox):
        rejecting = made.from_env({**environment, "OUTBOX_REJECT_TRANSACTIONS": "true"})
        with Session(engine) as session, pytest.raises(TransactionsRejected):
            rejecting.publish(session, MESSAGE)


def test_after_close_it_refuses_and_still_shows(engine: Engine) -> None:
    outbox = InMemoryHalfOutbox()
    _commit_one(engine, outbox)
    outbox.ping()
    outbox.close()
    outbox.close()
    assert len(outbox.published) == 1
    with pytest.raises(UsageError, match="closed"):
        outbox.ping()
    with Session(engine) as session, pytest.raises(UsageError, match="closed"):
        outbox.publish(session, MESSAGE)


def test_it_serves_no_checks() -> None:
    with pytest.raises(UsageError, match="check_local_transaction"):
        InMemoryHalfOutbox().serve_checks(Scripted())


def test_a_transactional_producer_with_a_session(engine: Engine) -> None:
    outbox = InMemoryHalfOutbox()

    def execute(half: HalfMessage) -> LocalTransactionState:
        assert half.value == "v"
        return LocalTransactionState.COMMIT

    producer = TransactionalProducer(outbox, Scripted(execute), serve_checks=False)
    with Session(engine) as session:
        result = producer.send_message_in_transaction(MESSAGE, session=session)
    assert [message.message_id for message in outbox.published] == [result.message_id]
    with pytest.raises(UsageError, match="has no Kafka"):
        producer.send_message_in_transaction(MESSAGE)


class _Ears(NoRecorder):
    def __init__(self) -> None:
        self.outcomes: list[CommitOutcome] = []

    def transaction_ended(self, service: str, outcome: CommitOutcome) -> None:
        del service
        self.outcomes.append(outcome)


def test_a_recorder_hears_every_end_once(engine: Engine) -> None:
    ears = _Ears()
    outbox = InMemoryHalfOutbox(recorder=ears)
    _commit_one(engine, outbox)
    with Session(engine) as session:
        outbox.publish(session, MESSAGE)
    with Session(engine) as session:
        outbox.outcome(outbox.publish(session, MESSAGE).transaction_id, engine)
        with pytest.raises(TransactionFenced):
            session.commit()
    assert ears.outcomes == [CommitOutcome.COMMITTED, CommitOutcome.ROLLED_BACK, CommitOutcome.FENCED]


def test_table_mode_in_memory_checks_all_messages_first() -> None:
    with InMemoryOutbox() as outbox, Session(create_engine("sqlite://")) as session, session.begin():
        outbox.publish_many(session, [Message("orders", b"1"), Message("orders", b"2")])
        with pytest.raises(MessageRefused, match=r"'outbox\.half' is an internal topic"):
            outbox.publish_many(session, [Message("orders", b"3"), Message("outbox.half", b"4")])
        session.commit()
        assert [message.value for message in outbox.published] == [b"1", b"2"]
