"""Whose Kafka transaction holds a partition up, by what a Java admin client answers that is none."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

from spark_jobs.watching.frames.partitions import Holder
from spark_jobs.watching.topics import WatchedTopics

STATES = ("ONGOING", "PREPARE_COMMIT", "PREPARE_ABORT", "COMPLETE_COMMIT")


def answers(**values: Any) -> SimpleNamespace:
    """An object of Java whose methods answer with these."""
    return SimpleNamespace(**{name: lambda *_, value=value: value for name, value in values.items()})


class Coordinators(WatchedTopics):
    """Kafka with one producer of each state, whose ids are their places in `STATES`, one that is none, and others."""

    def __init__(self) -> None:
        self.described: list[str] = []
        state = SimpleNamespace(**{name: answers(name=name) for name in STATES})
        options = SimpleNamespace(filterStates=lambda states: [one.name() for one in states])
        admin = SimpleNamespace(TransactionState=state, ListTransactionsOptions=lambda: options)
        self._kafka = SimpleNamespace(clients=SimpleNamespace(admin=admin))
        self._admin = SimpleNamespace(listTransactions=self._list, describeTransactions=self._describe)
        self._servers = "kafka:9092"

    def _list(self, states: Iterable[str]) -> SimpleNamespace:
        ids = [(f"shop-{number}", number, name) for number, name in enumerate(STATES)] + [("other", 99, "ONGOING")]
        found = [
            answers(transactionalId=name, producerId=number, state=answers(name=state))
            for name, number, state in ids
            if state in states
        ]
        return answers(all=found)

    def _describe(self, names: list[str]) -> SimpleNamespace:
        self.described += names
        start = answers(isPresent=True, getAsLong=7)
        return answers(description=answers(transactionStartTimeMs=start))

    def _awaited(self, future: Any, needed: str = "") -> Any:
        del needed
        return future

    def _producer(self, place: tuple[str, int], offset: int) -> int:
        del place
        return offset


def test_a_transaction_that_is_ending_is_no_strangers_and_says_so() -> None:
    kafka = Coordinators()
    found = kafka.holders({("orders", number): number for number in range(len(STATES))})
    assert [found["orders", number] for number in range(len(STATES))] == [
        Holder("shop-0", 7),
        Holder("shop-1 (PREPARE_COMMIT)", 7),
        Holder("shop-2 (PREPARE_ABORT)", 7),
        Holder("producer id 3", None),
    ]
    assert kafka.described == ["shop-0", "shop-1", "shop-2"]
