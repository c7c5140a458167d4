"""Control headers of half messages."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbox.protocol import names
from outbox.protocol.errors import NewerFormatError, ProtocolError
from outbox.protocol.half import (
    NO_OPTIONS,
    HalfControl,
    HalfOptions,
    Header,
    Truth,
    parse_half,
    parse_options,
    real_headers,
    reserved_header,
    user_headers,
)
from tests.support import protocol_strategies as some
from tests.support.protocol_documents import INCARNATION, TRANSACTION

CONTROL = HalfControl("orders", -1, TRANSACTION, 0, "shop", Truth.ROW)


def changed(name: str, value: bytes | None) -> list[Header]:
    stored: dict[str, bytes | None] = {**dict(CONTROL.encode()), name: value}
    return list(stored.items())


@some.relaxed
@given(control=some.controls, own=some.user_headers, data=st.data())
def test_every_half_is_read_as_it_was_written(control: HalfControl, own: list[Header], data: st.DataObject) -> None:
    stored: list[Header] = [*control.encode(), *own]
    assert parse_half(data.draw(st.permutations(stored))) == control
    assert user_headers(stored) == own
    assert len(control.encode()) <= 5, "a header costs about a microsecond to decode"


@some.relaxed
@given(control=some.controls, own=some.user_headers)
def test_the_real_record_carries_the_users_headers_and_three_more(control: HalfControl, own: list[Header]) -> None:
    found = real_headers(control, [*control.encode(), *own], 3, 1234)
    assert found[: len(own)] == own
    assert dict(found[len(own) :]) == {
        "outbox-id": f"{control.transaction_id}/{control.position}".encode(),
        "outbox-service": control.service.encode(),
        "outbox-origin": b"3/1234",
    }


@some.relaxed
@given(
    st.lists(
        st.tuples(
            st.sampled_from(
                [names.TARGET_HEADER, names.TRANSACTION_HEADER, names.SERVICE_HEADER, names.OPTIONS_HEADER, "own"]
            ),
            st.none() | st.binary(max_size=80) | st.sampled_from([value for _, value in CONTROL.encode()]),
        ),
        max_size=7,
    )
)
def test_junk_is_refused_as_a_protocol_error(stored: list[Header]) -> None:
    try:
        control = parse_half(stored)
    except ProtocolError:
        return
    assert parse_half(control.encode()) == control


@some.relaxed
@given(header=st.sampled_from(CONTROL.encode()), data=st.data())
def test_a_changed_header_is_refused_or_means_what_it_says(header: tuple[str, bytes], data: st.DataObject) -> None:
    name, value = header
    at = data.draw(st.integers(0, len(value) - 1))
    damaged = value[:at] + bytes([data.draw(st.integers(0, 255))]) + value[at + 1 :]
    try:
        control = parse_half(changed(name, damaged))
    except ProtocolError:
        return
    assert dict(control.encode())[name] == damaged


@pytest.mark.parametrize("name", [names.TARGET_HEADER, names.TRANSACTION_HEADER, names.SERVICE_HEADER])
def test_a_missing_header_is_named(name: str) -> None:
    stored = [header for header in CONTROL.encode() if header[0] != name]
    with pytest.raises(ProtocolError, match=name):
        parse_half(stored)


@pytest.mark.parametrize("name", [name for name, _ in CONTROL.encode()])
def test_a_doubled_header_is_refused(name: str) -> None:
    stored: list[Header] = [*CONTROL.encode(), (name, dict(CONTROL.encode())[name])]
    with pytest.raises(ProtocolError, match="twice"):
        parse_half(stored)


MALFORMED: dict[str, list[bytes | None]] = {
    names.TARGET_HEADER: [
        *(b"orders", b":0", b"orders:-2", b"orders:01", b"orders:2147483648", "orders:٣".encode(), b"..:0"),
        *(b"or/ders:0", b"orders:0\n"),
    ],
    names.TRANSACTION_HEADER: [
        *(None, b"1", f"0;{TRANSACTION}/0".encode(), f"01;{TRANSACTION}/0".encode()),
        *(f"1;{wrong}".encode() for wrong in (f"{TRANSACTION.upper()}/0", f"{TRANSACTION}/10000")),
        *(f"1;{wrong}".encode() for wrong in (f"{TRANSACTION}/01", f"{TRANSACTION}/-1")),
    ],
    names.SERVICE_HEADER: [b"shop", b"shop;", b"shop;maybe", b";row", b"sh op;row", b"s" * 201 + b";row"],
    names.OPTIONS_HEADER: [
        *(b"timestamp", b"timestamp=", b"timestamp=-1", b"timestamp=0", b"timestamp=1;timestamp=1"),
        *(b"timestamp=1000000000000000", "immunity=٣".encode(), b"ordering", b"ordering=%zz", b"ordering=%C3%b6"),
        *(b"ordering=a b", b"ordering=a;unordered", b"unordered=yes", b"incarnation=1", b"delay=5"),
        f"incarnation={INCARNATION};".encode(),
    ],
}


@pytest.mark.parametrize(("name", "value"), [(name, one) for name, values in MALFORMED.items() for one in values])
def test_a_malformed_header_is_refused(name: str, value: bytes | None) -> None:
    with pytest.raises(ProtocolError) as caught:
        parse_half(changed(name, value))
    assert not isinstance(caught.value, NewerFormatError)


@pytest.mark.parametrize("version", [b"2", b"10", b"0002", b"9" * 5_000])
def test_a_newer_format_is_told_apart_whatever_else_it_changed(version: bytes) -> None:
    newer = (names.TRANSACTION_HEADER, version + b";something new")
    for stored in (
        [newer],
        [newer, newer],
        [newer, (names.TARGET_HEADER, None), (names.TARGET_HEADER, b"?")],
        [(names.SERVICE_HEADER, b"shop;row;eu"), *CONTROL.encode()[:1], newer],
        changed(*newer),
    ):
        with pytest.raises(NewerFormatError, match="upgrade"):
            parse_half(stored)


def test_what_is_reserved_does_not_disturb() -> None:
    """Anything else of this prefix that a later version may add beside the four."""
    stored: list[Header] = [*CONTROL.encode(), ("outbox-shipped-by", b"checker")]
    control = parse_half(stored)
    assert control == CONTROL
    assert [name for name, _ in real_headers(control, stored, 0, 0)] == ["outbox-id", "outbox-service", "outbox-origin"]


def test_reserved_header_finds_the_prefix() -> None:
    assert reserved_header(["type", "outbox-id"]) == "outbox-id"
    assert reserved_header(["type", "outbox", "Outbox-id"]) is None


def test_no_option_needs_no_header() -> None:
    assert NO_OPTIONS.encode() == b""
    assert names.OPTIONS_HEADER not in dict(CONTROL.encode())
    assert parse_half(changed(names.OPTIONS_HEADER, b"")) == CONTROL


@pytest.mark.parametrize(
    ("option", "key", "expected"),
    [(None, b"42", b"42"), (None, None, None), ((b"7",), b"42", b"7"), ((None,), b"42", None), ((b"",), None, b"")],
)
def test_ordering_key_is_the_option_or_the_messages_own_key(
    option: tuple[bytes | None] | None, key: bytes | None, expected: bytes | None
) -> None:
    options = HalfOptions(ordering=option)
    assert HalfControl("orders", -1, TRANSACTION, 0, "shop", Truth.ROW, options).ordering_key(key) == expected


@some.relaxed
@given(some.options)
def test_options_are_plain_text(options: HalfOptions) -> None:
    text = options.encode()
    assert text.decode().isprintable()
    assert text.isascii()
    assert (parse_options(text) if text else NO_OPTIONS) == options
