"""The test vectors of `docs/vectors.json`: every format is written and read as they say."""

import json
from typing import Any

import pytest

from outbox._postgres.callback_table import CallbackRow
from outbox.protocol.check import parse_check
from outbox.protocol.checkpoint import HalfCheckpoint, OpCheckpoint, parse_half_checkpoint, parse_op_checkpoint
from outbox.protocol.discard import manifest_key, message_key, parse_manifest
from outbox.protocol.envelope import parse_envelope
from outbox.protocol.half import (
    HalfControl,
    HalfOptions,
    Header,
    Truth,
    count_header,
    parse_half,
    real_headers,
    user_headers,
)
from outbox.protocol.names import FORMAT_VERSION
from outbox.protocol.op import OpEntry, OpKind, OpSource, encode_op, parse_op
from outbox.protocol.positions import Positions
from tests.support.protocol_documents import CHECKS, ENVELOPES, JAVA_MURMUR2, MANIFESTS, VECTORS, as_json, data, vectors

FILE: dict[str, Any] = json.loads(VECTORS.read_text(encoding="utf-8"))


def named(section: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("vector", FILE[section].values(), ids=FILE[section].keys())


def headers(pairs: list[list[str]]) -> list[tuple[str, bytes]]:
    return [(name, value.encode()) for name, value in pairs]


def test_the_file_is_what_the_code_writes() -> None:
    """If a format was changed on purpose: `python -m tests.support.protocol_documents`, and read the difference."""
    assert VECTORS.read_text(encoding="utf-8") == as_json(vectors())


def test_the_file_is_of_this_format() -> None:
    assert FILE["format"] == FORMAT_VERSION


def control_of(fields: dict[str, Any]) -> HalfControl:
    ordering = fields["ordering"]
    return HalfControl(
        fields["topic"],
        fields["partition"],
        fields["transaction"],
        fields["position"],
        fields["service"],
        Truth(fields["truth"]),
        HalfOptions(
            fields["timestamp"],
            fields["immunity"],
            None if ordering is None else (data(ordering[0]),),
            fields["incarnation"],
        ),
    )


@named("half")
def test_half_is_read_as_the_vector_says(vector: dict[str, Any]) -> None:
    own: list[Header] = [(name, data(value)) for name, value in vector["user_headers"]]
    stored: list[Header] = [*own[:1], *headers(vector["control_headers"]), *own[1:]]
    control = parse_half(stored)
    assert control == control_of(vector["fields"])
    assert control.ordering_key(data(vector["key"])) == data(vector["ordering_key"])
    assert user_headers(stored) == own
    found = [*real_headers(control, stored, *vector["origin"]), count_header(vector["messages"])]
    assert found == [*own, *headers(vector["relay_headers"])]


def entries_of(vector: dict[str, Any]) -> list[OpEntry]:
    return [
        OpEntry(
            *(OpKind(fields["kind"]), fields["transaction"], fields["topic_id"], fields["partition"]),
            *(Positions.parse(fields["positions"]), fields["first_offset"], fields["last_offset"]),
            *(fields["checks"], fields["reason"]),
        )
        for fields in vector["entries"]
    ]


@named("op")
def test_op_is_written_and_read_as_the_vector_says(vector: dict[str, Any]) -> None:
    source, entries = OpSource(vector["source"]), entries_of(vector)
    value, stored = vector["value"].encode(), headers(vector["headers"])
    assert encode_op(entries, source) == (value, stored)
    assert parse_op(value, stored, verdict=vector["topic"] == "verdict") == (source, entries)


def test_ops_of_every_kind_and_source_have_a_vector() -> None:
    assert {entry["kind"] for vector in FILE["op"].values() for entry in vector["entries"]} == {*OpKind}
    assert {vector["source"] for vector in FILE["op"].values()} == {*OpSource}


@pytest.mark.parametrize("name", FILE["envelope"])
def test_envelope_is_written_and_read_as_the_vector_says(name: str) -> None:
    value = FILE["envelope"][name].encode()
    assert ENVELOPES[name].encode() == value
    assert parse_envelope(value) == ENVELOPES[name]


@pytest.mark.parametrize("name", FILE["check"])
def test_check_request_is_written_and_read_as_the_vector_says(name: str) -> None:
    value = FILE["check"][name].encode()
    assert CHECKS[name].encode() == value
    assert parse_check(value) == CHECKS[name]


@pytest.mark.parametrize("name", FILE["discard"])
def test_manifest_is_written_and_read_as_the_vector_says(name: str) -> None:
    vector, manifest = FILE["discard"][name], MANIFESTS[name]
    value = vector["manifest"].encode()
    assert manifest.encode() == value
    assert parse_manifest(value) == manifest
    assert manifest_key(manifest.transaction_id) == vector["manifest_key"].encode()
    assert message_key(manifest.transaction_id, 0) == vector["message_key"].encode()


@named("half_checkpoint")
def test_half_checkpoint_is_written_and_read_as_the_vector_says(vector: dict[str, Any]) -> None:
    unsettled = tuple(range(first, last + 1) for first, last in vector["unsettled"])
    checkpoint = HalfCheckpoint(vector["offset"], vector["head"], unsettled)
    assert checkpoint.encode(vector["topic_id"], vector["partition"]) == vector["metadata"]
    place = (vector["offset"], vector["topic_id"], vector["partition"])
    assert parse_half_checkpoint(vector["metadata"], *place) == checkpoint


def test_each_encoding_of_a_checkpoint_has_a_vector() -> None:
    assert {vector["metadata"].split(";")[3][0] for vector in FILE["half_checkpoint"].values()} == {"-", "r", "b"}


@named("op_checkpoint")
def test_op_checkpoint_is_written_and_read_as_the_vector_says(vector: dict[str, Any]) -> None:
    checkpoint = OpCheckpoint(vector["offset"], vector["head"])
    assert checkpoint.encode(vector["topic_id"], vector["partition"]) == vector["metadata"]
    place = (vector["offset"], vector["topic_id"], vector["partition"])
    assert parse_op_checkpoint(vector["metadata"], *place) == checkpoint


def test_callback_row_is_written_as_the_vector_says() -> None:
    row = {**FILE["row"]}
    assert row.pop("state") == "C"
    positions = Positions.parse(row.pop("positions"))
    renamed = CallbackRow(**row, positions=positions)
    assert renamed.values() == tuple(FILE["row"].values())[1:]


@pytest.mark.parametrize("written", FILE["positions"])
def test_positions_are_written_and_read_as_the_vector_says(written: str) -> None:
    assert str(Positions.of(FILE["positions"][written])) == written
    assert list(Positions.parse(written)) == FILE["positions"][written]


def test_murmur2_vectors_are_those_of_the_java_client() -> None:
    assert FILE["murmur2"] == JAVA_MURMUR2
