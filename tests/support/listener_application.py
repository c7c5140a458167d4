"""An application with a listener, in a process of its own. Its business table is the truth.

    python -m tests.support.listener_application send <table> <number> <topic>
    python -m tests.support.listener_application serve <table>

`send` runs one local transaction with one message, answers no checks, and dies or stops where OUTBOX_FAILPOINT says.
`serve` answers checks until its input ends, and prints the number that each of them is about.
"""

import os
import sys
from typing import Any

import psycopg

from outbox import HalfOutbox, Message
from outbox.listener import HalfMessage, LocalTransactionState, TransactionCheck, TransactionListener
from outbox.transactional_producer import TransactionalProducer


class Stock(TransactionListener):
    """Inserts a row; a transaction committed if its row is there."""

    def __init__(self, table: str) -> None:
        self._table = table
        self._url = os.environ["OUTBOX_POSTGRES_URL"]

    def execute_local_transaction(self, message: HalfMessage, arg: Any) -> LocalTransactionState:
        print(message.transaction_id, flush=True)  # noqa: T201 - the test reads it
        with psycopg.connect(self._url) as connection:
            connection.execute(f"INSERT INTO {self._table} VALUES (%s, 0)".encode(), (arg,))
        return LocalTransactionState.COMMIT

    def check_local_transaction(self, check: TransactionCheck) -> LocalTransactionState:
        number = int(check.value or b"")
        with psycopg.connect(self._url) as connection:
            query = f"SELECT 1 FROM {self._table} WHERE id = %s".encode()
            found = connection.execute(query, (number,)).fetchone()
        print(number, flush=True)  # noqa: T201 - the test reads it
        return LocalTransactionState.COMMIT if found else LocalTransactionState.ROLLBACK


def send(table: str, number: str, topic: str) -> None:
    with HalfOutbox.from_env() as outbox:
        producer = TransactionalProducer(outbox, Stock(table), serve_checks=False)
        producer.send_message_in_transaction(Message(topic, number, number), int(number))


def serve(table: str) -> None:
    with HalfOutbox.from_env() as outbox, outbox.serve_checks(Stock(table)):
        sys.stdin.read()


if __name__ == "__main__":
    if sys.argv[1] == "send":
        send(*sys.argv[2:])
    else:
        serve(*sys.argv[2:])
