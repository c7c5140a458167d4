"""Proxies tell requests apart by their first bytes."""

import struct

import pytest

from tests.proxies.fault import Armed, Fault, FaultKind
from tests.proxies.kafka_wire import KafkaRequest, end_txn_error, parse_request, reply_correlation
from tests.proxies.postgres_wire import begins_session, is_commit

CLIENT = struct.pack("!h", 3) + b"abc"


def request(key: int, version: int, body: bytes, client: bytes = CLIENT) -> bytes:
    return struct.pack("!hhi", key, version, 7) + client + body


def text(value: bytes) -> bytes:
    return struct.pack("!h", len(value)) + value


def test_requests_of_old_versions() -> None:
    assert parse_request(request(26, 1, text(b"relay-0") + b"more")) == KafkaRequest("EndTxn", 7, "relay-0")
    assert parse_request(request(25, 0, text(b"relay-0"))) == KafkaRequest("AddOffsetsToTxn", 7, "relay-0")


def test_requests_of_flexible_versions() -> None:
    long = b"x" * 200
    assert parse_request(request(0, 10, b"\0" + b"\x08relay-0")) == KafkaRequest("Produce", 7, "relay-0")
    assert parse_request(request(28, 3, b"\0" + b"\xc9\x01" + long)).transactional_id == long.decode()
    assert parse_request(request(0, 10, b"\0\0")).transactional_id is None


def test_a_client_without_a_name() -> None:
    assert parse_request(request(26, 1, text(b"id"), struct.pack("!h", -1))).transactional_id == "id"


def test_requests_without_a_transactional_id() -> None:
    assert parse_request(request(3, 12, b"")) == KafkaRequest("Metadata", 7, None)
    assert parse_request(request(999, 0, b"")) == KafkaRequest("999", 7, None)
    assert parse_request(request(0, 7, text(b"")[:0] + struct.pack("!h", -1))).transactional_id is None


@pytest.mark.parametrize("frame", [b"", b"\0" * 7, request(26, 1, struct.pack("!h", 90) + b"short")])
def test_what_is_no_request_is_refused(frame: bytes) -> None:
    with pytest.raises(ValueError, match="a request"):
        parse_request(frame)


def test_replies() -> None:
    reply = struct.pack("!iih", 7, 0, 90)
    assert (reply_correlation(reply), end_txn_error(reply)) == (7, 90)


@pytest.mark.parametrize(
    ("kind", "body", "commits"),
    [
        (b"Q", b"COMMIT\0", True),
        (b"Q", b" commit;\0", True),
        (b"P", b"name\0COMMIT\0\0\0", True),
        (b"Q", b"INSERT INTO t VALUES ('COMMIT')\0", False),
        (b"P", b"COMMIT\0SELECT 1\0", False),
        (b"B", b"COMMIT\0", False),
    ],
)
def test_a_commit_is_known(kind: bytes, body: bytes, commits: bool) -> None:  # noqa: FBT001 - a parameter
    assert is_commit(kind, body) is commits


def test_a_session_begins_after_requests_for_encryption() -> None:
    found = [begins_session(struct.pack("!ii", 8, code)) for code in (80877103, 80877104, 196608)]
    assert found == [False, False, True]


def test_a_fault_happens_once_to_a_request_of_its_name() -> None:
    armed, fault = Armed(), Fault(FaultKind.DROP)
    armed.arm("EndTxn", fault)
    assert [armed.take(name) for name in ("Produce", "EndTxn", "EndTxn")] == [None, fault, None]
    assert dict(armed.hits) == {"EndTxn dropped": 1}
    armed.arm("EndTxn", fault)
    armed.disarm()
    assert armed.take("EndTxn") is None
