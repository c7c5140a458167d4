"""What `watch` asks Kafka."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from spark_jobs.errors import root_name
from spark_jobs.java_admin import Place
from spark_jobs.jvm import JAVA_ERRORS
from spark_jobs.kafka_offsets import KafkaOffsets, Topic
from spark_jobs.watching.partitions import Holder


class WatchedTopics(KafkaOffsets):
    """Ends of partitions, with and without what is in open Kafka transactions, and how far the relay is."""

    def stable(self, places: Iterable[Place]) -> dict[Place, int]:
        """Last stable offsets: where a read_committed reader ends."""
        return self._latest(places, committed=True)

    def relay_heads(self, group: str, half: Topic) -> dict[int, int]:
        """By half partition, the first offset that the relay has not read; absent if it has no checkpoint."""
        found = {}
        for number, checkpoint in self.checkpoints(group, half).items():
            parsed = checkpoint.parse(half.id)
            found[number] = checkpoint.offset if parsed is None else parsed.head
        return found

    def holders(self, standing: Mapping[Place, int]) -> dict[Place, Holder]:
        """Whose Kafka transactions begin at these last stable offsets; absent where one has ended meanwhile."""
        producers = {place: id_ for place, at in standing.items() if (id_ := self._producer(place, at)) is not None}
        if not producers:
            return {}
        open_ = self._open_transactions()
        return {place: open_.get(id_, Holder(f"producer id {id_}", None)) for place, id_ in producers.items()}

    def _producer(self, place: Place, offset: int) -> int | None:
        """The producer whose transaction begins at an offset."""
        with self._told():
            wanted = self._place(place)
            states = self._awaited(self._admin.describeProducers([wanted]).partitionResult(wanted)).activeProducers()
            for state in states:
                start = state.currentTransactionStartOffset()
                if start.isPresent() and start.getAsLong() == offset:
                    return int(state.producerId())
        return None

    def _open_transactions(self) -> dict[int, Holder]:
        """The open Kafka transactions of all that this client may see, by producer id."""
        admin = self._kafka.clients.admin
        with self._told():
            options = admin.ListTransactionsOptions().filterStates([admin.TransactionState.ONGOING])
            listed = self._awaited(self._admin.listTransactions(options).all())
            producers = {str(one.transactionalId()): int(one.producerId()) for one in listed}
            described = self._admin.describeTransactions(list(producers))
            return {id_: Holder(name, self._start(described.description(name))) for name, id_ in producers.items()}

    def _start(self, description: Any) -> int | None:
        """When a Kafka transaction began, ms since 1970; None if it has ended meanwhile."""
        try:
            start = self._awaited(description).transactionStartTimeMs()
        except JAVA_ERRORS as error:
            if root_name(error) != "TransactionalIdNotFoundException":
                raise
            return None
        return int(start.getAsLong()) if start.isPresent() else None


def places_of(topics: Mapping[str, Topic]) -> list[Place]:
    """The partitions of topics."""
    return [place for topic in topics.values() for place in topic.places()]
