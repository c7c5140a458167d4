"""The vectors of `docs/vectors.json`; `python -m tests.support.protocol_documents` writes them, and no test does."""

import base64
import json
import uuid
from pathlib import Path
from typing import Any

from outbox._postgres.callback_table import CallbackRow
from outbox.protocol.check import CheckRequest
from outbox.protocol.checkpoint import HalfCheckpoint, OpCheckpoint, runs_of
from outbox.protocol.discard import DiscardReason, Manifest, manifest_key, message_key
from outbox.protocol.envelope import Envelope
from outbox.protocol.half import HalfControl, HalfOptions, Header, OutgoingHeaders, Truth, count_header, real_headers
from outbox.protocol.identifiers import lock_number, make_transaction_id, message_id
from outbox.protocol.names import FORMAT_VERSION
from outbox.protocol.op import RANKED, OpEntry, OpKind, OpSource, encode_op
from outbox.protocol.partitioner import half_partition, murmur2, partition_for_key
from outbox.protocol.positions import Positions

DOCS = Path(__file__).parents[2] / "docs"
VECTORS = DOCS / "vectors.json"
SPECIFICATION = DOCS / "protocol.md"

TRANSACTION = "0197a1b2-c3d4-7e5f-8a6b-7c8d9e0f1a2b"
OTHER_TRANSACTION = "0197a1b2-c3d5-7000-bfff-ffffffffffff"
TOPIC = "6f1d7a52-3c04-4e7b-9d36-0a1c2b3d4e5f"
PARTITION = 3
INCARNATION = "c0ffee00-1234-4abc-9def-0123456789ab"
ORIGIN = (3, 1234)
MESSAGES = 3

JAVA_MURMUR2 = {
    "21": -973932308,
    "foobar": -790332482,
    "a-little-bit-long-string": -985981536,
    "a-little-bit-longer-string": -1486304829,
    "lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    "abc": 479470107,
}
"""Signed values of Kafka's own Java client, from its test of `Utils.murmur2`."""


def text(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def data(value: str | None) -> bytes | None:
    return None if value is None else base64.b64decode(value)


def _plain(headers: OutgoingHeaders | list[tuple[str, bytes]]) -> list[list[str]]:
    return [[name, value.decode() if isinstance(value, bytes) else str(value)] for name, value in headers]


HALVES: dict[str, tuple[HalfControl, bytes | None, bytes | None, list[Header]]] = {
    "by key": (HalfControl("orders", -1, TRANSACTION, 0, "shop", Truth.ROW), b"42", b"created", [("type", b"order")]),
    "pinned partition": (HalfControl("orders", 7, TRANSACTION, 1, "shop", Truth.ROW), b"42", b"paid", []),
    "last position": (HalfControl("orders", -1, TRANSACTION, 9_999, "shop", Truth.ROW), b"42", b"", []),
    "no key, no value, header without a value": (
        HalfControl("orders", -1, TRANSACTION, 0, "shop", Truth.ROW),
        None,
        None,
        [("note", None), ("note", b"twice")],
    ),
    "truth is a listener": (HalfControl("orders", -1, TRANSACTION, 0, "shop", Truth.LISTENER), b"42", b"x", []),
    "timestamp": (
        HalfControl("orders", -1, TRANSACTION, 0, "shop", Truth.ROW, HalfOptions(timestamp=1_751_000_000_000)),
        b"42",
        b"x",
        [],
    ),
    "immunity": (
        HalfControl("orders", -1, TRANSACTION, 0, "shop", Truth.ROW, HalfOptions(immunity=60_000)),
        b"42",
        b"x",
        [],
    ),
    "ordering key": (
        HalfControl("stock", -1, TRANSACTION, 1, "shop", Truth.ROW, HalfOptions(ordering=(b"42",))),
        b"7",
        b"x",
        [],
    ),
    "ordering key, not ASCII": (
        HalfControl("stock", -1, TRANSACTION, 1, "shop", Truth.ROW, HalfOptions(ordering=("Größe 1;%".encode(),))),
        b"7",
        b"x",
        [],
    ),
    "ordering key, empty": (
        HalfControl("stock", -1, TRANSACTION, 1, "shop", Truth.ROW, HalfOptions(ordering=(b"",))),
        b"7",
        b"x",
        [],
    ),
    "unordered": (
        HalfControl("stock", -1, TRANSACTION, 1, "shop", Truth.ROW, HalfOptions(ordering=(None,))),
        b"7",
        b"x",
        [],
    ),
    "incarnation": (
        HalfControl("orders", -1, TRANSACTION, 0, "shop", Truth.ROW, HalfOptions(incarnation=INCARNATION)),
        b"42",
        b"x",
        [],
    ),
    "every option": (
        HalfControl(
            "orders",
            0,
            TRANSACTION,
            2,
            "Shop.eu_1-a",
            Truth.LISTENER,
            HalfOptions(timestamp=1, immunity=0, ordering=(b"\x00\xff",), incarnation=INCARNATION),
        ),
        b"42",
        b"x",
        [("trace", b"\x01\x02")],
    ),
}


def _half(control: HalfControl, key: bytes | None, value: bytes | None, headers: list[Header]) -> dict[str, Any]:
    options = control.options
    return {
        "fields": {
            "topic": control.topic,
            "partition": control.partition,
            "transaction": control.transaction_id,
            "position": control.position,
            "service": control.service,
            "truth": str(control.truth),
            "timestamp": options.timestamp,
            "immunity": options.immunity,
            "ordering": None if options.ordering is None else [text(options.ordering[0])],
            "incarnation": options.incarnation,
        },
        "key": text(key),
        "value": text(value),
        "control_headers": _plain(control.encode()),
        "user_headers": [[name, text(header)] for name, header in headers],
        "ordering_key": text(control.ordering_key(key)),
        "origin": list(ORIGIN),
        "messages": MESSAGES,
        "relay_headers": _plain([*real_headers(control, control.encode(), *ORIGIN), count_header(MESSAGES)]),
    }


def _entry(
    kind: OpKind, transaction_id: str, positions: str, first: int, last: int, checks: int, reason: str
) -> OpEntry:
    return OpEntry(kind, transaction_id, TOPIC, 3, Positions.parse(positions), first, last, checks, reason)


OPS: dict[str, tuple[OpSource, list[OpEntry]]] = {
    "commit": (OpSource.PRODUCER, [_entry(OpKind.COMMIT, TRANSACTION, "0-2", 100, 104, 0, "")]),
    "commit of everything struck": (OpSource.PRODUCER, [_entry(OpKind.COMMIT, TRANSACTION, "-", -1, -1, 0, "")]),
    "rollback": (OpSource.CHECKER, [_entry(OpKind.ROLLBACK, TRANSACTION, "0,2,4-5", 100, 110, 0, "")]),
    "unknown": (
        OpSource.LISTENER,
        [_entry(OpKind.UNKNOWN, TRANSACTION, "0", 100, 100, 7, "OSError: Kreditkarte prüfen")],
    ),
    "deliver": (OpSource.OPERATOR, [_entry(OpKind.DELIVER, TRANSACTION, "0", 100, 100, 0, "anna: topic created")]),
    "several entries": (
        OpSource.CHECKER,
        [
            _entry(OpKind.COMMIT, TRANSACTION, "0", 100, 100, 0, ""),
            _entry(OpKind.ROLLBACK, OTHER_TRANSACTION, "0-9999", 9_007_199_254_740_993, 9_007_199_254_750_992, 0, ""),
        ],
    ),
}


def _op(source: OpSource, entries: list[OpEntry]) -> dict[str, Any]:
    value, headers = encode_op(entries, source)
    return {
        "topic": "verdict" if source in RANKED else "op",
        "source": str(source),
        "entries": [
            {
                "kind": str(entry.kind),
                "transaction": entry.transaction_id,
                "topic_id": entry.topic_id,
                "partition": entry.partition,
                "positions": str(entry.positions),
                "first_offset": entry.first_offset,
                "last_offset": entry.last_offset,
                "checks": entry.checks,
                "reason": entry.reason,
            }
            for entry in entries
        ],
        "headers": _plain(headers),
        "value": value.decode(),
    }


ENVELOPES = {
    "message": Envelope(b"42", b"created", (("type", b"order"), ("note", None)), 1_751_000_000_123, 1234),
    "tombstone": Envelope(b"42", None, (), 1_751_000_000_123, 1234),
    "no key, not ASCII": Envelope(None, b"\x00\xff", (("größe", b""),), 1_751_000_000_123, 0),
}

CHECKS = {
    "row": CheckRequest(TRANSACTION, "shop", Truth.ROW, TOPIC, 3, Positions.first(3), 100, 104, 1, INCARNATION, None),
    "row, no incarnation": CheckRequest(TRANSACTION, "shop", Truth.ROW, TOPIC, 0, Positions.of([1]), 7, 7, 15),
    "listener, with the body": CheckRequest(
        TRANSACTION, "shop", Truth.LISTENER, TOPIC, 3, Positions.first(1), 100, 100, 2, None, ENVELOPES["message"]
    ),
}

AT_MS = 1_751_000_000_123
TORN = ("1 of its messages are not in the half topic", OpKind.COMMIT, Positions.first(3), ((0, 100), (2, 104)), AT_MS)
UNDECIDED = ("no answer in 15 checks", None, Positions.first(1), ((0, 100),), AT_MS, 15, "OSError: Kreditkarte prüfen")
MANIFESTS = {
    "incomplete": Manifest(
        *(TRANSACTION, "shop", Truth.ROW, TOPIC, 3, DiscardReason.INCOMPLETE, *TORN),
        ordering="Gr%C3%B6%C3%9Fe",
        incarnation=INCARNATION,
    ),
    "undecided": Manifest(TRANSACTION, "shop", Truth.LISTENER, TOPIC, 3, DiscardReason.UNDECIDED, *UNDECIDED),
}

HALF_CHECKPOINTS = {
    "empty": HalfCheckpoint(0, 0),
    "all is settled": HalfCheckpoint(1234, 1234),
    "one half is unsettled": HalfCheckpoint(1234, 1235, runs_of([1234])),
    "runs": HalfCheckpoint(1234, 9234, runs_of([1234, 1235, 1236, 5000])),
    "bitmap": HalfCheckpoint(1234, 1306, runs_of(sorted({1234, *range(1235, 1306, 3), *range(1240, 1306, 7)}))),
    "large offsets": HalfCheckpoint(9_007_199_254_740_993, 9_007_199_254_741_000, runs_of([9_007_199_254_740_993])),
}

OP_CHECKPOINTS = {"nothing waits": OpCheckpoint(77, 77), "an early op waits": OpCheckpoint(77, 5077)}
ROW = CallbackRow(TRANSACTION, "shop", "outbox", TOPIC, 3, 100, 110, Positions.of([0, 2, 4, 5]))


def _row(row: CallbackRow) -> dict[str, Any]:
    place = ("half_topic_id", "half_partition", "first_offset", "last_offset")
    names = ("transaction_id", "service", "channel", *place, "positions")
    return {"state": "C", **dict(zip(names, row.values(), strict=True))}


POSITIONS = {"-": [], "0": [0], "0-2": [0, 1, 2], "0,2,4-5": [0, 2, 4, 5], "9998-9999": [9_998, 9_999]}


def _partitions() -> list[dict[str, Any]]:
    keys = [key.encode() for key in JAVA_MURMUR2] + [b"", b"\x00", b"\xff\xfe\xfd", "Größe".encode()]
    cases = [(key, count) for key in keys for count in (1, 4, 12, 1000)]
    return [{"key": text(key), "partitions": n, "partition": partition_for_key(key, n)} for key, n in cases]


def _half_partitions() -> list[dict[str, Any]]:
    return [
        {
            "service": service,
            "ordering_key": text(key),
            "transaction": transaction_id,
            "partitions": 12,
            "partition": half_partition(service, key, uuid.UUID(transaction_id).bytes, 12),
        }
        for service, key, transaction_id in (
            ("shop", b"42", TRANSACTION),
            ("shop", b"42", OTHER_TRANSACTION),
            ("stock", b"42", TRANSACTION),
            ("shop", b"", TRANSACTION),
            ("shop", None, TRANSACTION),
            ("shop", None, OTHER_TRANSACTION),
        )
    ]


def vectors() -> dict[str, Any]:
    return {
        "format": FORMAT_VERSION,
        "half": {name: _half(*found) for name, found in HALVES.items()},
        "op": {name: _op(*found) for name, found in OPS.items()},
        "envelope": {name: found.encode().decode() for name, found in ENVELOPES.items()},
        "check": {name: found.encode().decode() for name, found in CHECKS.items()},
        "discard": {
            name: {
                "message_key": message_key(found.transaction_id, 0).decode(),
                "manifest_key": manifest_key(found.transaction_id).decode(),
                "manifest": found.encode().decode(),
            }
            for name, found in MANIFESTS.items()
        },
        "half_checkpoint": {
            name: {
                "topic_id": TOPIC,
                "partition": PARTITION,
                "offset": found.offset,
                "head": found.head,
                "unsettled": [[run[0], run[-1]] for run in found.unsettled],
                "metadata": found.encode(TOPIC, PARTITION),
            }
            for name, found in HALF_CHECKPOINTS.items()
        },
        "op_checkpoint": {
            name: {
                "topic_id": TOPIC,
                "partition": PARTITION,
                "offset": found.offset,
                "head": found.head,
                "metadata": found.encode(TOPIC, PARTITION),
            }
            for name, found in OP_CHECKPOINTS.items()
        },
        "row": _row(ROW),
        "positions": POSITIONS,
        "transaction_id": {
            "unix_ms": 1_751_000_000_123,
            "random": bytes(range(240, 250)).hex(),
            "id": make_transaction_id(1_751_000_000_123, bytes(range(240, 250))),
        },
        "message_id": {"transaction": TRANSACTION, "position": 12, "id": message_id(TRANSACTION, 12)},
        "lock_number": {id_: lock_number(id_) for id_ in (TRANSACTION, OTHER_TRANSACTION)},
        "murmur2": {key: (murmur2(key.encode()) + 2**31) % 2**32 - 2**31 for key in JAVA_MURMUR2},
        "partition": _partitions(),
        "half_partition": _half_partitions(),
    }


def as_json(found: dict[str, Any]) -> str:
    """The text of `docs/vectors.json`: one vector a line."""
    return "{\n" + ",\n".join(f" {_line(name)}: {_section(section)}" for name, section in found.items()) + "\n}\n"


def _section(section: Any) -> str:
    if isinstance(section, list):
        return "[\n" + ",\n".join(f"  {_line(vector)}" for vector in section) + "\n ]"
    if isinstance(section, dict):
        return "{\n" + ",\n".join(f"  {_line(name)}: {_line(vector)}" for name, vector in section.items()) + "\n }"
    return _line(section)


def _line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


if __name__ == "__main__":
    VECTORS.write_text(as_json(vectors()), encoding="utf-8")
