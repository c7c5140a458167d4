"""Reads topics of the cluster: from given offsets to their ends, or on and on."""

import json
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from examples.flights.digest import digest
from outbox.protocol.half import user_headers
from outbox.protocol.names import LATE_HEADER, MESSAGE_ID_HEADER, ORIGIN_HEADER
from tests.torture.evidence import ID_HEADER, Seen, transaction_of
from tests.torture.pauses import Arrival

Places = dict[tuple[str, int], int]
"""Offsets, by topic and partition."""

_POLL_SECONDS = 0.1
_AT_ONCE = 2_000
_SETTINGS = {
    "auto.offset.reset": "error",
    "enable.auto.commit": False,
    "enable.partition.eof": True,
    "fetch.wait.max.ms": 50,
    "isolation.level": "read_committed",
    "log_level": 0,  # that brokers die is no news here
}


@contextmanager
def assigned(bootstrap_servers: str, starts: Mapping[tuple[str, int], int]) -> Iterator[Consumer]:
    """A read_committed consumer of given partitions, from given offsets."""
    settings = {**_SETTINGS, "bootstrap.servers": bootstrap_servers, "group.id": "torture"}
    with closing(Consumer(settings)) as consumer:
        consumer.assign([TopicPartition(*place, offset) for place, offset in starts.items()])
        yield consumer


def read_to_end(bootstrap_servers: str, starts: Places, timeout: float = 120.0) -> tuple[list[Message], Places]:
    """Everything that is committed from given offsets on. Returns the records, and where the partitions ended."""
    found: list[Message] = []
    ends: Places = {}
    deadline = time.monotonic() + timeout
    with assigned(bootstrap_servers, starts) as consumer:
        while ends.keys() != starts.keys():
            if time.monotonic() > deadline:
                missing = [_state(consumer, *place) for place in sorted(starts.keys() - ends.keys())]
                raise TimeoutError(f"the ends of some partitions were not seen in {timeout} s: {'; '.join(missing)}")
            _sort_out(consumer.consume(_AT_ONCE, _POLL_SECONDS), found, ends)
    return found, ends


def _state(consumer: Consumer, topic: str, partition: int) -> str:
    """Return what Kafka says of a partition whose end was not seen, and how far it was read."""
    found = consumer.list_topics(topic, timeout=10).topics[topic].partitions[partition]
    (position,) = consumer.position([TopicPartition(topic, partition)])
    return (
        f"{topic}/{partition} was read up to {position.offset}, its leader is {found.leader}, its replicas in sync are"
        f" {found.isrs}, its error is {found.error}"
    )


def _sort_out(messages: Sequence[Message], found: list[Message], ends: Places) -> None:
    for message in messages:
        error = message.error()
        if error is None:
            found.append(message)
        elif error.code() == KafkaError._PARTITION_EOF:
            ends[message.topic() or "", message.partition() or 0] = message.offset() or 0
        elif error.fatal() or error.code() == KafkaError._AUTO_OFFSET_RESET:
            raise KafkaException(error)


def seen(message: Message) -> Seen:
    pairs: list[Any] = list(message.headers() or ())  # the stub also allows text, which consumed ones never have
    headers = {name: (value or b"").decode() for name, value in pairs}
    origin, _, offset = headers.get(ORIGIN_HEADER, "-1/-1").partition("/")
    place = (message.topic() or "", message.partition() or 0, message.offset() or 0)
    content = (message.key(), digest(message.key(), message.value(), user_headers(pairs)), _number(message.value()))
    rest = ((origin, int(offset)), LATE_HEADER in headers, message.timestamp()[1])
    return Seen(headers.get(ID_HEADER, ""), headers.get(MESSAGE_ID_HEADER, ""), *place, *content, *rest)


def _number(value: bytes | None) -> int:
    try:
        return int(json.loads(value or b"")["departure"])
    except (KeyError, TypeError, ValueError):
        return -1


class Reader(threading.Thread):
    """The read_committed reader that is always there; no proxy stands before it."""

    def __init__(self, bootstrap_servers: str, places: Sequence[tuple[str, int]]) -> None:
        super().__init__(name="reader", daemon=True)
        self.failure: BaseException | None = None
        self._bootstrap_servers = bootstrap_servers
        self._seen: list[Seen] = []
        self._arrived: dict[str, Arrival] = {}
        self._at: Places = dict.fromkeys(places, 0)
        self._end = threading.Event()

    def run(self) -> None:
        try:
            with assigned(self._bootstrap_servers, self._at) as consumer:
                while not self._end.is_set():
                    self._take(consumer.consume(_AT_ONCE, _POLL_SECONDS))
        except BaseException as error:  # noqa: BLE001 - whoever waits for it raises it
            self.failure = error

    def _take(self, messages: Sequence[Message]) -> None:
        found: list[Message] = []
        ends: Places = {}
        _sort_out(messages, found, ends)
        new = [seen(message) for message in found]
        now = time.time()
        self._arrived |= {transaction_of(record.id): Arrival(now, record.origin[0]) for record in new}
        self._seen.extend(new)
        self._at |= {(record.topic() or "", record.partition() or 0): (record.offset() or 0) + 1 for record in found}
        self._at |= ends

    def seen_from(self, start: int) -> list[Seen]:
        """What it saw in this round, but for the first records."""
        return self._seen[start:]

    def arrived(self) -> Mapping[str, Arrival]:
        """What arrived in this round, by the application's id of the transaction."""
        return dict(self._arrived)

    def has_reached(self, ends: Mapping[tuple[str, int], int]) -> bool:
        if self.failure is not None:
            raise RuntimeError("the reader has failed") from self.failure
        return all(self._at[place] >= end for place, end in ends.items())

    def forget(self) -> None:
        self._seen = []
        self._arrived = {}

    def end(self) -> None:
        self._end.set()
        self.join(30)
