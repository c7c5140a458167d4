"""The circuit breakers of one database, and the callback table's word on what they ask."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, LiteralString

import psycopg
import structlog

from checker.connection import database_ms
from checker.rules.breaker import Breaker, Evidence, Policy, State
from outbox._postgres.callback_table import CallbackTable
from outbox.protocol.check import CheckRequest
from outbox.protocol.identifiers import make_transaction_id

log = structlog.get_logger()

NEWEST = 10_000
"""So many of the table's newest rows are looked at, by the primary key."""

_AHEAD_MS = 3_600_000
"""Ids from further in the future are of no clock: they would be the newest for ever."""

_EVIDENCE: LiteralString = """
WITH newest AS (
    SELECT transaction_id, state
      FROM (SELECT transaction_id, state, service, half_topic_id FROM {transaction}
             WHERE transaction_id < %s::uuid ORDER BY transaction_id DESC LIMIT %s) AS latest
     WHERE service = %s AND half_topic_id = %s::uuid
), committed AS (
    SELECT transaction_id FROM newest WHERE state = 'C' ORDER BY transaction_id DESC LIMIT 1
)
SELECT coalesce((SELECT transaction_id::text FROM committed), ''),
       (SELECT count(*) FROM newest
         WHERE state = 'R'
           AND NOT EXISTS (SELECT FROM committed WHERE committed.transaction_id > newest.transaction_id))
"""

_Key = tuple[str, str]
"""Service, and id of the half topic."""


class Breakers:
    """Decide which transactions of one database may be fenced."""

    def __init__(self, name: str, table: CallbackTable, policy: Policy) -> None:
        self._name = name
        self._table = table
        self._breakers: dict[_Key, Breaker] = defaultdict(lambda: Breaker(policy))

    def admit(self, connection: psycopg.Connection[Any], requests: Sequence[CheckRequest]) -> set[str]:
        """Return the ids of the transactions that may be fenced.

        Args:
            connection: In the transaction that would place the rollback rows.
            requests: What has no row, and no open local transaction.
        """
        by_service: dict[_Key, list[str]] = defaultdict(list)
        for request in requests:
            by_service[request.service, request.topic_id].append(request.transaction_id)
        return {id_ for key, ids in by_service.items() for id_ in self._admit(connection, key, ids)}

    def open(self) -> int:
        """How many services are not fenced at present."""
        return sum(breaker.state is not State.CLOSED for breaker in self._breakers.values())

    def _admit(self, connection: psycopg.Connection[Any], key: _Key, ids: Sequence[str]) -> Sequence[str]:
        breaker, now = self._breakers[key], time.monotonic()
        before = breaker.state
        offered = breaker.offered(ids, now)
        if not offered:
            return ()
        if not breaker.wants_evidence(len(offered)):
            breaker.count(offered)
            return offered
        admitted = breaker.judge(offered, self._evidence(connection, key), now)
        if breaker.state is not before:
            self._say(key[0], breaker.state, len(ids))
        return offered if admitted else ()

    def _say(self, service: str, state: State, count: int) -> None:
        if state is State.CLOSED:
            log.info("Circuit breaker closed: the service commits again", database=self._name, service=service)
            return
        log.error(
            "the circuit breaker is open: this service commits nothing in this database any more, and so nothing"
            " is fenced; see that it is the service's own database and no copy of it",
            database=self._name,
            service=service,
            waiting=count,
        )

    def _evidence(self, connection: psycopg.Connection[Any], key: _Key) -> Evidence:
        last = make_transaction_id(database_ms(connection) + _AHEAD_MS, b"\0" * 10)
        row = connection.execute(self._table.compose(_EVIDENCE), (last, NEWEST, *key)).fetchone()
        return Evidence("", 0) if row is None else Evidence(*row)
