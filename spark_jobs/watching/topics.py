"""What `watch` asks Kafka."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import Any

from outbox.protocol.names import Place
from spark_jobs.runtime.errors import root_name
from spark_jobs.runtime.jvm import JAVA_ERRORS
from spark_jobs.runtime.kafka_offsets import KafkaOffsets, Topic
from spark_jobs.watching.frames.partitions import Holder

_OPEN = "ONGOING"
_ENDING = ("PREPARE_COMMIT", "PREPARE_ABORT")
"""States of a Kafka transaction whose end is written down already, while its markers are not all written."""


class WatchedTopics(KafkaOffsets):
    """Ends of partitions, with and without what is in open Kafka transactions, and how far the relay is."""

    def stable(self, places: Iterable[Place]) -> dict[Place, int]:
        """Last stable offsets: where a read_committed reader ends."""
        return self._latest(places, committed=True)

    def relay_heads(self, group: str, half: Topic) -> dict[int, int]:
        """By half partition, the first offset that the relay has not read; absent if it has no checkpoint."""
        found = {}
        for number, checkpoint in self.checkpoints(group, half).items():
            parsed = checkpoint.parse(half.id, number)
            found[number] = checkpoint.offset if parsed is None else parsed.head
        return found

    def holders(self, standing: Mapping[Place, int]) -> dict[Place, Holder]:
        """Whose Kafka transactions begin at these last stable offsets; absent where one has ended meanwhile."""
        producers = {place: id_ for place, at in standing.items() if (id_ := self._producer(place, at)) is not None}
        if not producers:
            return {}
        open_ = self._open_transactions(set(producers.values()))
        return {place: open_.get(id_, Holder(f"producer id {id_}", None)) for place, id_ in producers.items()}

    def _producer(self, place: Place, offset: int) -> int | None:
        """Return the producer whose transaction begins at an offset."""
        with self._told():
            wanted = self._place(place)
            answer = self._admin.describeProducers([wanted]).partitionResult(wanted)
            for state in self._awaited(answer, self._reading(place[0])).activeProducers():
                start = state.currentTransactionStartOffset()
                if start.isPresent() and start.getAsLong() == offset:
                    return int(state.producerId())
        return None

    def _open_transactions(self, wanted: Container[int]) -> dict[int, Holder]:
        """Return the open Kafka transactions of these producers that this client may describe, by producer id."""
        states = self._kafka.clients.admin.TransactionState
        with self._told():
            options = self._kafka.clients.admin.ListTransactionsOptions()
            options = options.filterStates([getattr(states, name) for name in (_OPEN, *_ENDING)])
            listed = self._awaited(self._admin.listTransactions(options).all())
            found = {str(one.transactionalId()): one for one in listed if int(one.producerId()) in wanted}
            described = self._admin.describeTransactions(list(found))
            return {
                int(one.producerId()): Holder(_shown(one), self._start(described.description(name)))
                for name, one in found.items()
            }

    def _start(self, description: Any) -> int | None:
        """When a Kafka transaction began, ms since 1970; None if it has ended meanwhile."""
        try:
            start = self._awaited(description).transactionStartTimeMs()
        except JAVA_ERRORS as error:
            if root_name(error) != "TransactionalIdNotFoundException":
                raise
            return None
        return int(start.getAsLong()) if start.isPresent() else None


def _shown(listing: Any) -> str:
    """Return a transactional id; of a transaction whose end is written down already, with that."""
    name, state = str(listing.transactionalId()), str(listing.state().name())
    return f"{name} ({state})" if state in _ENDING else name


def places_of(topics: Mapping[str, Topic]) -> list[Place]:
    """Return the partitions of topics."""
    return [place for topic in topics.values() for place in topic.places()]
