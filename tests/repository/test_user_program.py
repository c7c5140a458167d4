"""A user's program is typed as strictly as the user likes: the package brings its types along."""

import subprocess
import sys
from pathlib import Path

import pytest

GOOD = """
from collections.abc import AsyncIterator
from typing import assert_type

import psycopg
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from outbox import AsyncOutbox, HalfOutbox, Inbox, Message, Outbox, Receipt, RetryableError, TypedTopic
from outbox.errors import MessageRefused
from outbox.listener import LocalTransactionState, TransactionListener
from outbox.transaction import Outcome
from outbox.transactional_producer import TransactionalProducer
from outbox.listener import HalfMessage, TransactionCheck

orders: TypedTopic[str, dict[str, int]] = TypedTopic("orders")


def write(outbox: Outbox, url: str) -> Receipt:
    engine = create_engine(url)
    try:
        with Session(engine) as session, session.begin():
            receipt = outbox.publish(session, orders.message({"id": 1}, key="1"))
            assert_type(outbox.cancel(session, receipt), bool)
            assert_type(outbox.publish_many(session, [Message("orders", b"v")]), list[Receipt])
    except MessageRefused:
        raise
    assert outbox.outcome(receipt.transaction_id, engine) is Outcome.COMMITTED
    with psycopg.connect(url) as connection, connection.transaction():
        outbox.publish(connection, Message("orders", None, key=b"1", headers={"a": "b"}))
    with Session(engine) as session, session.begin():
        assert_type(Inbox("billing").once(session, "id"), bool)
    return receipt


async def write_async(outbox: AsyncOutbox, url: str) -> AsyncIterator[Receipt]:
    async with AsyncSession(create_async_engine(url)) as session, session.begin():
        yield await outbox.publish(session, Message("orders", "text"))


class Orders(TransactionListener):
    def execute_local_transaction(self, message: HalfMessage, arg: object) -> LocalTransactionState | None:
        return LocalTransactionState.COMMIT

    def check_local_transaction(self, check: TransactionCheck) -> LocalTransactionState | None:
        return None


def write_halves(outbox: HalfOutbox, url: str) -> None:
    try:
        with Session(create_engine(url)) as session, session.begin():
            outbox.publish(session, Message("orders", b"v"), eager=True)
    except RetryableError:
        outbox.ping()
    with psycopg.connect(url) as connection, outbox.transaction(connection, eager=True) as tx, tx.savepoint():
        assert_type(tx.transaction_id, str)
        tx.publish(Message("orders", b"v"), eager=False)


def listen(outbox: HalfOutbox) -> None:
    with outbox.serve_checks(Orders()), TransactionalProducer(outbox, Orders()) as producer:
        producer.send_message_in_transaction(Message("orders", b"v"), arg=1)
"""

BAD = """
from sqlalchemy.orm import Session

from outbox import AsyncHalfOutbox, Message, Outbox

def wrong(outbox: Outbox, session: Session) -> None:
    outbox.publish(session, "no message")
    outbox.publish(session, Message("orders", value=42))
    AsyncHalfOutbox("orders", {}, chanel="orders")
    outbox.publish(session, Message("orders")).position = "soon"
    outbox.publish(session, Message("orders"), eager=True)
    outbox.ping()
    Outbox("orders", {})
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the programs, with one cache: the first check reads SQLAlchemy, which takes a while."""
    return tmp_path_factory.mktemp("program")


def _mypy(folder: Path, program: str) -> subprocess.CompletedProcess[str]:
    (folder / "program.py").write_text(program)
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", "cache", "program.py"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_a_program_that_is_right_passes_strict_checks(folder: Path) -> None:
    found = _mypy(folder, GOOD)
    assert found.returncode == 0, found.stdout


def test_each_mistake_is_reported_before_the_program_runs(folder: Path) -> None:
    found = _mypy(folder, BAD)
    lines = {int(line.split(":")[1]) for line in found.stdout.splitlines() if ": error:" in line}
    assert lines == {7, 8, 9, 10, 11, 12, 13}, found.stdout
