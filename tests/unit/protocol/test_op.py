"""Op markers."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbox.protocol import names
from outbox.protocol.errors import NewerFormatError, ProtocolError
from outbox.protocol.half import Header
from outbox.protocol.op import (
    MAX_REASON,
    RANKED,
    RECORD_BYTES,
    MisplacedOpError,
    OpEntry,
    OpKind,
    OpSource,
    _parse_any,
    _parse_plain,
    encode_op,
    encode_ops,
    parse_op,
)
from outbox.protocol.positions import Positions
from tests.support import protocol_strategies as some
from tests.support.protocol_documents import TOPIC, TRANSACTION

HEADERS: list[Header] = [(names.OP_HEADER, b"1;producer")]
SCATTERED = Positions.of(range(0, 10_000, 2))
"""The longest that there can be."""
LINE = f"C {TRANSACTION} {TOPIC} 3 0-2 100 104 0"


@some.relaxed
@given(entries=st.lists(some.op_entries(), min_size=1, max_size=5), source=st.sampled_from(OpSource))
def test_every_op_is_read_as_it_was_written(entries: list[OpEntry], source: OpSource) -> None:
    value, headers = encode_op(entries, source)
    stored = [("trace", None), *some.consumed(headers)]
    assert parse_op(value, stored, verdict=source in RANKED) == (source, entries)


@pytest.mark.parametrize("source", OpSource)
def test_rank_is_proven_by_the_topic_of_the_record(source: OpSource) -> None:
    """A header alone proves none: every application may write to the op topic (R65)."""
    stored = [(names.OP_HEADER, f"1;{source}".encode())]
    is_ranked = source in {OpSource.CHECKER, OpSource.OPERATOR}
    assert parse_op(LINE.encode(), stored, verdict=is_ranked)[0] is source
    with pytest.raises(MisplacedOpError, match=f"source {source} does not write to the"):
        parse_op(LINE.encode(), stored, verdict=not is_ranked)


@pytest.mark.parametrize(
    ("count", "positions", "records"),
    [(0, Positions.first(1), 0), (1, Positions.first(1), 1), (2_000, Positions.first(1), 1), (20, SCATTERED, 2)],
)
def test_many_decisions_take_as_few_records_as_kafka_accepts(count: int, positions: Positions, records: int) -> None:
    entries = [OpEntry(OpKind.COMMIT, TRANSACTION, TOPIC, 3, positions, at, at) for at in range(count)]
    made = list(encode_ops(entries, OpSource.PRODUCER))
    assert all(len(value) <= RECORD_BYTES for value, _ in made)
    assert [entry for value, headers in made for entry in parse_op(value, some.consumed(headers))[1]] == entries
    assert len(made) == records


@some.relaxed
@given(
    value=st.none() | st.binary(max_size=100) | st.text(max_size=100).map(lambda text: text.encode(errors="replace")),
    header=st.none() | st.binary(max_size=20) | st.text(max_size=10).map(lambda text: text.encode(errors="replace")),
)
def test_junk_is_refused_as_a_protocol_error(value: bytes | None, header: bytes | None) -> None:
    for stored in ([(names.OP_HEADER, header)], HEADERS, []):
        with pytest.raises(ProtocolError):
            parse_op(value, stored)


@some.relaxed
@given(field=st.integers(0, 7), text=st.text(max_size=30) | st.integers().map(str))
def test_an_entry_with_a_junk_field_is_refused_or_means_what_it_says(field: int, text: str) -> None:
    fields = LINE.split(" ")
    fields[field] = text.encode(errors="replace").decode()
    line = " ".join(fields)
    try:
        (entry,) = parse_op(line.encode(), HEADERS)[1]
    except ProtocolError:
        return
    assert entry.encode() == line


@some.relaxed
@given(entry=some.op_entries(), field=st.integers(0, 8), text=st.sampled_from(["", "0", "-", "-1", "00", "1,0", "7-9"]))
def test_an_entry_of_the_usual_form_is_read_as_any_other(entry: OpEntry, field: int, text: str) -> None:
    fields = entry.encode().split(" ", 8)
    fields[field : field + 1] = [text]
    for line in (entry.encode(), " ".join(fields)):
        assert _outcome(_parse_plain, line) in (None, _outcome(_parse_any, line))


def _outcome(parse: Callable[[str], OpEntry | None], line: str) -> OpEntry | str | None:
    try:
        return parse(line)
    except ProtocolError as error:
        return str(error)


CHANGES = {
    "C ": ("X ", "c ", " C "),
    " 3 ": (" -1 ", " +3 ", " 03 ", " 3_0 ", " ٣ ", " ² ", f" {'9' * 5_000} "),
    "0-2": ("2-0", "-", "0-" + "9" * 5_000),
    "100 104": ("104 100", "-1 104", "-1 -1", "9223372036854775807 9223372036854775808"),
    "0-2 100 104": ("- -1 104", "- -2 -2"),
    " 0-2 100 104 0": ("",),
    TRANSACTION: (TRANSACTION.upper(),),
    TOPIC: ("-",),
}
CHANGED = [LINE.replace(part, other) for part, others in CHANGES.items() for other in others]


@pytest.mark.parametrize("line", ["", *CHANGED, LINE[:-1] + "-1", LINE[:-1] + "2147483648"])
def test_a_malformed_entry_is_refused_and_its_record_with_it(line: str) -> None:
    for value in (line, f"{LINE}\n{line}", f"{line}\n{LINE}"):
        with pytest.raises(ProtocolError):
            parse_op(value.encode(), HEADERS)


@pytest.mark.parametrize(
    "headers",
    [
        *([], [(names.OP_HEADER, None)], [(names.OP_HEADER, b"")], [*HEADERS, *HEADERS]),
        *([(names.OP_HEADER, text.encode())] for text in ("1", "1;", "1;relay", "1;producer;more")),
        *([(names.OP_HEADER, f"{format_};checker".encode())] for format_ in ("0", "01", "²", "٣")),
    ],
)
def test_a_record_without_a_good_header_is_refused(headers: list[Header]) -> None:
    with pytest.raises(ProtocolError) as caught:
        parse_op(LINE.encode(), headers)
    assert not isinstance(caught.value, NewerFormatError)


@pytest.mark.parametrize("version", [b"2", b"3", b"007", b"9" * 5_000])
def test_a_newer_format_is_told_apart(version: bytes) -> None:
    newer = (names.OP_HEADER, version + b";checker;more")
    for headers in ([newer], [*HEADERS, newer]):
        with pytest.raises(NewerFormatError, match="upgrade"):
            parse_op(b"\xff", headers)


def test_a_reason_is_written_on_one_line() -> None:
    entry = OpEntry(
        OpKind.UNKNOWN, TRANSACTION, TOPIC, 3, Positions.first(1), 7, 7, 2, " a\r\nb\t\x1c c\u2028d  \ud800 "
    )
    value, headers = encode_op([entry, entry], OpSource.LISTENER)
    assert [found.reason for found in parse_op(value, some.consumed(headers))[1]] == ["a b c d ?"] * 2


@some.relaxed
@given(st.text(max_size=3 * MAX_REASON).map(lambda text: text * 200))
def test_a_long_reason_is_cut(reason: str) -> None:
    entry = OpEntry(OpKind.UNKNOWN, TRANSACTION, TOPIC, 3, Positions.first(1), 7, 7, 2, reason)
    value, headers = encode_op([entry], OpSource.LISTENER)
    (found,) = parse_op(value, some.consumed(headers))[1]
    assert len(found.reason) <= MAX_REASON
    assert encode_op([found], OpSource.LISTENER)[0] == value
