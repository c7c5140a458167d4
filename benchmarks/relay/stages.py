"""Where a relay's Python goes: its own parts at work on transactions of one message, stage by stage, without servers.

What librdkafka does in its own threads is not in it, nor what the driver does to fetch rows; the baselines pay for
that, too.
"""

from __future__ import annotations

import gc
import os
import struct
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar
from unittest.mock import Mock

from confluent_kafka import Message, Producer

from benchmarks.figures import Figure
from outbox._kafka.produce import produce
from outbox.protocol.checkpoint import HalfCheckpoint, OpCheckpoint
from outbox.protocol.half import ANY_PARTITION, HalfControl, HalfOptions, Truth
from outbox.protocol.identifiers import make_transaction_id
from outbox.protocol.names import Channel
from outbox.protocol.op import OpEntry, OpKind, OpSource, encode_op
from outbox.protocol.positions import Positions
from outbox.protocol.record import Record
from relay.delivery.delivery_telemetry import became_visible
from relay.delivery.producer import SETTINGS
from relay.delivery.rules.preflight import RealTopic
from relay.delivery.rules.topic_gate import Gate, GatePolicy
from relay.delivery.rules.volume import BatchPolicy, Volume
from relay.delivery.topic_lookup import TopicLookup
from relay.half.kafka.half_reader import Decoder
from relay.half.ledger.ledger import Ledger
from relay.half.ledger.partition_progress import Checkpoints
from relay.half.serving.hand_out import Batch, HandOut
from relay.half.state.check_schedule import CheckPolicy
from relay.table.named_rows import columns
from relay.table.plain_window import is_plain
from relay.table.rows import EPOCH_US, Row, id_of, records, service_and_start, size_of, topic_of, transactions_of

AT_ONCE = 5_000
"""Messages of a batch."""

STAGES = {
    "decode_half": "parse a half",
    "take_half": "put a half into the ledger",
    "decode_op": "parse an op marker",
    "take_op": "match an op marker with its half",
    "hand_out": "hand out what is decided and in its turn, and settle it",
    "records": "pre-flight, and the real record",
}
"""In the order in which a message meets them."""

ROW_STAGES = {
    "judge": "judge a window by its columns",
    "name": "name its rows for the database",
    "make": "make the real records",
    "produce": "hand them to librdkafka",
    "measure": "measure delivery seconds, and count",
}
"""Those of a row of a message table."""

_TOPIC_ID = "018f0000-0000-7000-8000-000000000001"
_INCARNATION = "018f0000-0000-7000-8000-000000000002"
_CHANNEL = Channel()
_DECODER = Decoder(4_194_304, _CHANNEL.verdict_topic)
_TOPIC = "orders"
_BODY = b"x" * 256
_NOW_MS = 1_800_000_000_000

Header = tuple[str, str | bytes | None]

T = TypeVar("T")


class Stopwatch:
    """Adds up what stages take of the thread's processor time."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)

    def time(self, stage: str, work: Callable[[], T]) -> T:
        """Do the work of a stage."""
        began = time.thread_time()
        done = work()
        self.seconds[stage] += time.thread_time() - began
        return done


def measure_stages(rounds: int, messages: int) -> list[Figure]:
    """Measure each stage beside all of them together.

    Args:
        messages: How many, each in a transaction of its own.
    """
    halves = [run_stages(messages) for _ in range(rounds)]
    rows = [run_row_stages(messages) for _ in range(rounds)]
    return [
        *_figures("relay_stage_", "half mode", STAGES, halves, messages),
        *_figures("table_relay_stage_", "table mode", ROW_STAGES, rows, messages),
    ]


def _figures(
    prefix: str, of: str, stages: Mapping[str, str], found: Sequence[Mapping[str, float]], messages: int
) -> list[Figure]:
    return [
        Figure(
            f"{prefix}{stage}",
            f"relay's CPU, {of}: {title}",
            "µs",
            "all stages",
            [seconds[stage] / messages * 1e6 for seconds in found],
            [sum(seconds.values()) / messages * 1e6 for seconds in found],
        )
        for stage, title in stages.items()
    ]


def run_stages(messages: int) -> dict[str, float]:
    """Let so many messages go through all stages; the seconds that each stage took."""
    halves, ops = _records(messages)
    watch = Stopwatch()
    ledger = Ledger(
        _TOPIC_ID, 0, Checkpoints(HalfCheckpoint(0, 0), OpCheckpoint(0, 0), OpCheckpoint(0, 0)), CheckPolicy()
    )
    gate = Gate(GatePolicy(), _CHANNEL, 0)
    gate.update([_TOPIC], {_TOPIC: RealTopic(4, 1_048_588)}, ())
    with _without_collector():
        for start in range(0, messages, AT_ONCE):
            _run_batch(watch, ledger, gate, halves[start : start + AT_ONCE], ops[start : start + AT_ONCE])
    if len(ledger.pending):
        raise RuntimeError(f"{len(ledger.pending)} transactions were not delivered")
    return dict(watch.seconds)


def run_row_stages(rows: int) -> dict[str, float]:
    """Let rows, each of a transaction of its own, go through all stages; return the seconds that each stage took."""
    watch, window = Stopwatch(), [_row(number) for number in range(rows)]
    producer = Producer({**SETTINGS, "bootstrap.servers": "127.0.0.1:1", "log_level": 0})  # no broker is there
    with _without_collector():
        for start in range(0, rows, BatchPolicy().messages):
            _run_window(watch, producer, window[start : start + BatchPolicy().messages])
            producer.purge()
    return dict(watch.seconds)


@contextmanager
def _without_collector() -> Iterator[None]:
    """Collect no garbage in the block, as a relay rarely does."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _run_window(watch: Stopwatch, producer: Producer, rows: Sequence[Row]) -> None:
    topic = RealTopic(4, 1_048_588)
    if not watch.time("judge", lambda: is_plain(rows, lambda _service, _target: topic, _NOW_MS, 32)):
        raise RuntimeError("the rows are not plain")
    messages = watch.time("measure", lambda: transactions_of(rows))
    watch.time("name", lambda: (columns(rows), tuple(map(id_of, rows))))
    made = watch.time("make", lambda: list(records(rows, messages, "shop")))
    watch.time("produce", lambda: _hand_over(producer, made))
    watch.time("measure", lambda: _measured(rows))


def _hand_over(producer: Producer, made: Iterable[Record]) -> None:
    for record in made:
        produce(producer, record)


def _measured(rows: Sequence[Row]) -> None:
    Counter(map(topic_of, rows))
    size_of(rows)
    became_visible(map(service_and_start, rows), _NOW_MS * 1_000 - EPOCH_US)


def _row(number: int) -> Row:
    started = _NOW_MS * 1_000 - EPOCH_US - 1_000_000 + number
    names, values = (_array(element, content) for element, content in ((25, b"type"), (17, b"new")))
    key = str(number).encode()
    return Row(1_000 + number, 1 + number, started, "orders", _TOPIC, ANY_PARTITION, None, key, _BODY, names, values)


def _array(element: int, content: bytes) -> bytes:
    """Return an array of one element as Postgres sends it."""
    return struct.pack(f">iiiiii{len(content)}s", 1, 0, element, 1, 1, len(content), content)


def _run_batch(watch: Stopwatch, ledger: Ledger, gate: Gate, halves: Sequence[Message], ops: Sequence[Message]) -> None:
    parsed = watch.time("decode_half", lambda: [_DECODER.half(message) for message in halves])
    watch.time("take_half", lambda: ledger.plain.read(parsed))
    records = watch.time("decode_op", lambda: [_DECODER.op(message) for message in ops])
    watch.time("take_op", lambda: ledger.read_ops(records))
    out = HandOut(ledger, Mock(), Mock(spec=TopicLookup, gate=gate), _CHANNEL, Volume(BatchPolicy(), 5.0))
    taken = watch.time("hand_out", lambda: ledger.take_plain(gate.open_to, BatchPolicy(), 0))
    watch.time("records", lambda: out.judge(Batch([], [], [], [], plain=taken), 0))


def _records(messages: int) -> tuple[list[Message], list[Message]]:
    """Halves and op markers as the library writes them."""
    options = HalfOptions(incarnation=_INCARNATION)
    halves, ops = [], []
    for offset in range(messages):
        id_ = make_transaction_id(offset, os.urandom(10))
        headers = [*HalfControl(_TOPIC, ANY_PARTITION, id_, 0, "orders", Truth.ROW, options).encode(), ("type", b"new")]
        key = str(offset).encode()
        halves.append(_message(_CHANNEL.half_topic, offset, _BODY, headers, key))
        entry = OpEntry(OpKind.COMMIT, id_, _TOPIC_ID, 0, Positions.first(1), offset, offset)
        ops.append(_message(_CHANNEL.op_topic, offset, *encode_op([entry], OpSource.PRODUCER)))
    return halves, ops


def _message(topic: str, offset: int, value: bytes, headers: Iterable[Header], key: bytes = b"") -> Message:
    return Message(
        topic=topic, partition=0, offset=offset, key=key, value=value, headers=list(headers), timestamp=(2, offset)
    )
