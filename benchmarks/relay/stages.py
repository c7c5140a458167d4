"""Where a relay's Python goes: its own parts at work on transactions of one message, stage by stage, without Kafka.

What librdkafka does for both records and for the real one is not in it; the copy loop pays for that, too.
"""

from __future__ import annotations

import gc
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar
from unittest.mock import Mock

from confluent_kafka import Message

from benchmarks.figures import Figure
from outbox.protocol.checkpoint import HalfCheckpoint, OpCheckpoint
from outbox.protocol.half import ANY_PARTITION, HalfControl, HalfOptions, Truth
from outbox.protocol.identifiers import make_transaction_id
from outbox.protocol.names import Channel
from outbox.protocol.op import OpEntry, OpKind, OpSource, encode_op
from outbox.protocol.positions import Positions
from relay.delivery.rules.preflight import RealTopic
from relay.delivery.rules.topic_gate import Gate, GatePolicy
from relay.delivery.rules.volume import BatchPolicy, Volume
from relay.delivery.topic_lookup import TopicLookup
from relay.half.kafka.half_reader import Decoder
from relay.half.ledger.ledger import Ledger
from relay.half.ledger.partition_progress import Checkpoints
from relay.half.serving.hand_out import Batch, HandOut
from relay.half.state.check_schedule import CheckPolicy

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

_TOPIC_ID = "018f0000-0000-7000-8000-000000000001"
_INCARNATION = "018f0000-0000-7000-8000-000000000002"
_CHANNEL = Channel()
_DECODER = Decoder(4_194_304, _CHANNEL.verdict_topic)
_TOPIC = "orders"
_BODY = b"x" * 256

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
    found = [run_stages(messages) for _ in range(rounds)]
    everything = [sum(seconds.values()) for seconds in found]
    return [
        Figure(
            f"relay_stage_{stage}",
            f"relay's own processor time for a message: {title}",
            "µs",
            "all stages",
            [seconds[stage] / messages * 1e6 for seconds in found],
            [seconds / messages * 1e6 for seconds in everything],
        )
        for stage, title in STAGES.items()
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
    gc.collect()
    gc.disable()  # a relay collects rarely, see outbox.service.allocator
    try:
        for start in range(0, messages, AT_ONCE):
            _run_batch(watch, ledger, gate, halves[start : start + AT_ONCE], ops[start : start + AT_ONCE])
    finally:
        gc.enable()
    if len(ledger.pending):
        raise RuntimeError(f"{len(ledger.pending)} transactions were not delivered")
    return dict(watch.seconds)


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
