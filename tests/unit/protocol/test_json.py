"""Records in JSON: envelopes, check requests, manifests of discarded transactions."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbox.protocol.check import CheckRequest, parse_check
from outbox.protocol.discard import Manifest, manifest_key, message_key, parse_manifest
from outbox.protocol.envelope import Envelope, parse_envelope
from outbox.protocol.errors import NewerFormatError, ProtocolError
from outbox.protocol.skip import parse_skip
from tests.support import protocol_strategies as some
from tests.support.protocol_documents import CHECKS, ENVELOPES, MANIFESTS, TRANSACTION

Parse = Callable[[bytes | None], Any]
PARSERS: list[Parse] = [parse_envelope, parse_check, parse_manifest, parse_skip]
EXAMPLES: list[tuple[Parse, bytes]] = [
    (parse_envelope, ENVELOPES["message"].encode()),
    (parse_check, CHECKS["listener, with the body"].encode()),
    (parse_manifest, MANIFESTS["incomplete"].encode()),
]
OPTIONAL = {"incarnation", "message", "decision", "ordering", "key", "value"}


@some.relaxed
@given(some.envelopes)
def test_every_envelope_is_read_as_it_was_written(envelope: Envelope) -> None:
    assert parse_envelope(envelope.encode()) == envelope


@some.relaxed
@given(some.checks)
def test_every_check_request_is_read_as_it_was_written(request: CheckRequest) -> None:
    assert parse_check(request.encode()) == request


@some.relaxed
@given(some.manifests)
def test_every_manifest_is_read_as_it_was_written(manifest: Manifest) -> None:
    assert parse_manifest(manifest.encode()) == manifest


@some.relaxed
@given(st.none() | st.binary(max_size=60) | some.json_values.map(lambda value: json.dumps(value).encode()))
def test_junk_is_refused_as_a_protocol_error(value: bytes | None) -> None:
    for parse in PARSERS:
        with pytest.raises(ProtocolError):
            parse(value)


@some.relaxed
@given(example=st.sampled_from(EXAMPLES), data=st.data())
def test_a_junk_field_is_refused_or_means_what_it_says(example: tuple[Parse, bytes], data: st.DataObject) -> None:
    parse, value = example
    fields = json.loads(value)
    name = data.draw(st.sampled_from(sorted(fields)))
    fields[name] = data.draw(some.json_values)
    try:
        found = parse(json.dumps(fields).encode())
    except ProtocolError:
        return
    assert json.loads(found.encode()) == fields


@pytest.mark.parametrize(("parse", "value"), EXAMPLES)
@pytest.mark.parametrize(
    "junk",
    [
        *([], {}, True, 1.0, -1, "", "x", "\ud800", 10**20, float("inf"), float("nan")),
        *([[1]], [[1, 2, 3]], [[True, 1]], ["ab"], [["a", 1]], [["\ud800", None]]),
    ],
    ids=repr,
)
def test_no_field_takes_a_value_of_another_type(parse: Parse, value: bytes, junk: Any) -> None:
    for name in json.loads(value):
        fields = {**json.loads(value), name: junk}
        try:
            found = parse(json.dumps(fields).encode())
        except ProtocolError:
            continue
        assert json.loads(found.encode()) == fields, f"{name} was read as something else"


@pytest.mark.parametrize(("parse", "value"), EXAMPLES)
def test_no_field_may_be_missing_or_null(parse: Parse, value: bytes) -> None:
    complete = json.loads(value)
    for name in complete:
        without = {key: field for key, field in complete.items() if key != name}
        if name != "message":
            with pytest.raises(ProtocolError):
                parse(json.dumps(without).encode())
        if name not in OPTIONAL:
            with pytest.raises(ProtocolError):
                parse(json.dumps({**complete, name: None}).encode())


@pytest.mark.parametrize(
    "value", [b"[" * 100_000, b'{"a":' * 100_000, b"9" * 5_000, b"\xff", b"\xef\xbb\xbf{}", b"NaN"]
)
def test_hostile_json_is_refused(value: bytes) -> None:
    for parse in PARSERS:
        with pytest.raises(ProtocolError):
            parse(value)


@pytest.mark.parametrize(("parse", "value"), EXAMPLES[1:])
@pytest.mark.parametrize("version", [2, 10**400])
def test_a_newer_format_is_told_apart_whatever_else_it_changed(parse: Parse, value: bytes, version: int) -> None:
    for fields in ({"version": version}, {**json.loads(value), "version": version}):
        with pytest.raises(NewerFormatError, match="upgrade"):
            parse(json.dumps(fields).encode())


@pytest.mark.parametrize(("parse", "value"), EXAMPLES[1:])
@pytest.mark.parametrize("version", [None, 0, -1, 1.0, "1", True, [1]])
def test_a_record_without_a_version_is_refused(parse: Parse, value: bytes, version: Any) -> None:
    with pytest.raises(ProtocolError) as caught:
        parse(json.dumps({**json.loads(value), "version": version}).encode())
    assert not isinstance(caught.value, NewerFormatError)


def test_an_envelope_is_never_null_though_key_and_value_are() -> None:
    envelope = Envelope(None, None, (("a", None),), 0, 0)
    assert envelope.encode()
    assert parse_envelope(envelope.encode()) == envelope
    assert parse_envelope(Envelope(b"", b"", (), 0, 0).encode()) != envelope


def test_keys_of_discarded_records_tell_messages_and_manifest_apart() -> None:
    assert message_key(TRANSACTION, 12) == f"{TRANSACTION}/12".encode()
    assert manifest_key(TRANSACTION) == f"{TRANSACTION}/manifest".encode()
