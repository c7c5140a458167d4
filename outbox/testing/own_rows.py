"""Read the rows of the message table that a connection sees: with those of its own transaction, before COMMIT."""

import json
from typing import Any

from sqlalchemy.orm import Session, scoped_session

from outbox._postgres.ddl import identifier
from outbox._postgres.publish_function import TRANSACTION_ID
from outbox._table.insert_connection import insert_connection
from outbox._table.message_insert import Statement
from outbox.protocol.identifiers import message_id
from outbox.settings import TableNames
from outbox.testing._memory.state import PublishedMessage

# One text, because each driver has its own idea of bytes and of arrays.
_READ = (
    "SELECT CAST(json_agg(json_build_array(topic, encode(key, 'hex'), encode(value, 'hex'),"
    " (SELECT json_agg(json_build_array(name, encode(content, 'hex')) ORDER BY number)"
    " FROM unnest(header_names, header_values) WITH ORDINALITY AS header (name, content, number)),"
    " partition, timestamp, {transaction_id}, id) ORDER BY id) AS text) FROM {table}"
)


def rows_of(target: Any, names: TableNames) -> list[PublishedMessage]:
    """Return the messages in the message table, by id; an async connection only in SQLAlchemy's greenlet."""
    if isinstance(target, Session | scoped_session):
        target = target.connection()
    table = identifier(names.schema, names.message)
    statement = _READ.format(transaction_id=TRANSACTION_ID, table=table)
    ((found,),) = insert_connection(target).run(Statement(statement, ()))
    return [_message(*row) for row in json.loads(found or "[]")]


def _message(topic: str, key: str | None, value: str | None, headers: Any, *rest: Any) -> PublishedMessage:
    named = tuple((name, _bytes(content)) for name, content in headers or ())
    partition, timestamp, transaction_id, id_ = rest
    place = partition, timestamp, transaction_id, message_id(transaction_id, id_)
    return PublishedMessage(topic, _bytes(key), _bytes(value), named, *place)


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else bytes.fromhex(text)
