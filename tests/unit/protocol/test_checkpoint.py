"""Checkpoints: the metadata strings beside committed offsets."""

import base64
import random
import zlib
from itertools import chain, groupby

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from outbox.protocol.checkpoint import (
    FAR,
    FEW,
    MAX_LENGTH,
    MAX_SPAN,
    WINDOW,
    CheckpointError,
    HalfCheckpoint,
    OpCheckpoint,
    parse_half_checkpoint,
    parse_op_checkpoint,
    runs_of,
)
from outbox.protocol.errors import NewerFormatError, ProtocolError
from tests.support import protocol_strategies as some
from tests.support.protocol_documents import OTHER_TRANSACTION, PARTITION, TOPIC

LARGEST = 2**63 - 1 - FAR


def window(offset: int, span: int, unsettled: set[int]) -> HalfCheckpoint:
    """A checkpoint with some places of a span unsettled, the lowest always."""
    places = sorted(unsettled | {0}) if span else []
    return HalfCheckpoint(offset, offset + span, runs_of(offset + place for place in places if place < span))


@st.composite
def windows(draw: st.DrawFn) -> HalfCheckpoint:
    offset = draw(st.integers(0, 1_000) | st.integers(0, LARGEST))
    span = draw(st.integers(0, 100) | st.integers(0, WINDOW) | st.just(WINDOW))
    share = draw(st.sampled_from([0.0, 0.001, 0.01, 0.05, 0.1, 0.3, 0.5, 0.9, 0.999, 1.0]))
    dice = random.Random(draw(st.integers(0, 2**32)))
    stretch = draw(st.sampled_from([1, 1, 2, 7, 100]))
    unsettled = {place for place in range(span) if (dice.random() if place % stretch == 0 else 1.0) < share}
    return window(offset, span, unsettled)


@some.relaxed
@given(windows())
@example(window(LARGEST, WINDOW, set(range(0, WINDOW, 2))))
@example(window(0, WINDOW, set(range(WINDOW))))
@example(window(0, WINDOW, set()))
@example(window(0, 1, set()))
@example(window(0, 9, {0, 8}))
@example(window(0, 8, {0, 7}))
@example(window(7, 16, set(range(1, 16, 2))))
def test_every_window_fits_and_is_read_as_it_was_written(checkpoint: HalfCheckpoint) -> None:
    text = checkpoint.encode(TOPIC, PARTITION)
    assert len(text) <= MAX_LENGTH
    assert text.isascii()
    assert "\0" not in text
    assert parse_half_checkpoint(text, checkpoint.offset, TOPIC, PARTITION) == checkpoint
    assert parse_half_checkpoint(text + "\0", checkpoint.offset, TOPIC, PARTITION) == checkpoint


@some.relaxed
@given(st.lists(st.integers(0, FAR - 1), max_size=FEW - 2), st.integers(0, LARGEST))
@example(list(range(0, FAR, FAR // FEW)), LARGEST)
@example(list(range(0, 3 * FEW, 3)), 0)
@example(list(range(0, 600 * 300, 600)), 0)
def test_few_unsettled_halves_fit_however_far_the_head_is(places: list[int], offset: int) -> None:
    checkpoint = window(offset, FAR, set(places))
    assert len(checkpoint.unsettled) <= FEW
    text = checkpoint.encode(TOPIC, PARTITION)
    assert len(text) <= MAX_LENGTH
    assert parse_half_checkpoint(text, offset, TOPIC, PARTITION) == checkpoint


def varints(*numbers: int) -> str:
    raw = bytearray()
    for number in numbers:
        rest = number
        while rest > 0x7F:
            raw.append(0x80 | rest & 0x7F)
            rest >>= 7
        raw.append(rest)
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def run_lengths(checkpoint: HalfCheckpoint) -> list[int]:
    """The lengths of its runs by turns, unsettled first."""
    unsettled = frozenset(chain.from_iterable(checkpoint.unsettled))
    places = (offset in unsettled for offset in range(checkpoint.offset, checkpoint.head))
    return [len(list(run)) for _, run in groupby(places)]


@some.relaxed
@given(windows())
def test_the_shorter_encoding_is_written(checkpoint: HalfCheckpoint) -> None:
    span = checkpoint.head - checkpoint.offset
    found = checkpoint.encode(TOPIC, PARTITION).split(";")[3]
    by_runs = "r" + varints(*run_lengths(checkpoint))
    bitmap_length = len(f"b{span}:") + len(base64.b64encode(bytes((span + 7) // 8)).rstrip(b"="))
    assert len(found) == (min(len(by_runs), bitmap_length) if span else 1)
    assert found[0] in "br" if span else found == "-"
    assert found == by_runs if found.startswith("r") else len(by_runs) > bitmap_length or not span


@some.relaxed
@given(checkpoint=windows(), beyond=st.integers(-50, 50))
def test_checkpoint_without_lost_offsets_keeps_the_others(checkpoint: HalfCheckpoint, beyond: int) -> None:
    """What was settled stays so, what is still there and unsettled is kept, and the rest is counted (R38)."""
    start = max(checkpoint.head + beyond, checkpoint.offset)
    kept, lost = checkpoint.without(start)
    before = set(chain.from_iterable(checkpoint.unsettled)) | set(range(checkpoint.head, max(start, checkpoint.head)))
    assert set(chain.from_iterable(kept.unsettled)) == {offset for offset in before if offset >= start}
    assert lost == sum(offset < start for offset in before)
    assert kept.head == max(checkpoint.head, start)
    assert kept.offset == min(chain.from_iterable(kept.unsettled), default=kept.head)
    assert parse_half_checkpoint(kept.encode(TOPIC, PARTITION), kept.offset, TOPIC, PARTITION) == kept


@some.relaxed
@given(offset=st.integers(0, 2**60), ahead=st.integers(0, 2**60))
def test_every_op_checkpoint_is_read_as_it_was_written(offset: int, ahead: int) -> None:
    checkpoint = OpCheckpoint(offset, offset + ahead)
    text = checkpoint.encode(TOPIC, PARTITION)
    assert len(text) <= MAX_LENGTH
    assert parse_op_checkpoint(text, offset, TOPIC, PARTITION) == checkpoint


@some.relaxed
@given(checkpoint=windows(), data=st.data())
def test_a_damaged_string_is_refused(checkpoint: HalfCheckpoint, data: st.DataObject) -> None:
    text = checkpoint.encode(TOPIC, PARTITION)
    at = data.draw(st.integers(0, len(text) - 1))
    character = data.draw(st.characters(codec="utf-8").filter(lambda found: found != text[at]))
    for damaged in (text[:at] + character + text[at + 1 :], text[:at] + text[at + 1 :], text[:at], text + character):
        if damaged.rstrip("\0") != text:
            with pytest.raises(ProtocolError):
                parse_half_checkpoint(damaged, checkpoint.offset, TOPIC, PARTITION)


@some.relaxed
@given(checkpoint=windows(), other=st.integers(0, LARGEST))
def test_a_moved_offset_does_not_keep_its_string(checkpoint: HalfCheckpoint, other: int) -> None:
    text = checkpoint.encode(TOPIC, PARTITION)
    for moved in {checkpoint.offset + 1, checkpoint.offset - 1, other} - {checkpoint.offset}:
        with pytest.raises(CheckpointError, match="damaged"):
            parse_half_checkpoint(text, moved, TOPIC, PARTITION)
    with pytest.raises(CheckpointError, match="damaged"):
        parse_op_checkpoint(OpCheckpoint(5, 9).encode(TOPIC, PARTITION), 6, TOPIC, PARTITION)


@some.relaxed
@given(checkpoint=windows(), other=st.integers(0, 2**31 - 1).filter(lambda number: number != PARTITION))
def test_string_of_another_partition_is_refused(checkpoint: HalfCheckpoint, other: int) -> None:
    """One partition's string, committed for another, would settle what was never delivered there (R18)."""
    with pytest.raises(CheckpointError, match="another partition"):
        parse_half_checkpoint(checkpoint.encode(TOPIC, PARTITION), checkpoint.offset, TOPIC, other)
    with pytest.raises(CheckpointError, match="another partition"):
        parse_op_checkpoint(OpCheckpoint(5, 9).encode(TOPIC, PARTITION), 5, TOPIC, other)


def test_a_string_of_another_topic_is_refused_with_the_reason() -> None:
    with pytest.raises(CheckpointError, match="deleted and recreated"):
        parse_half_checkpoint(window(5, 9, {3}).encode(OTHER_TRANSACTION, PARTITION), 5, TOPIC, PARTITION)
    with pytest.raises(CheckpointError, match="deleted and recreated"):
        parse_op_checkpoint(OpCheckpoint(5, 9).encode(OTHER_TRANSACTION, PARTITION), 5, TOPIC, PARTITION)


def test_strings_of_half_and_op_partitions_are_not_mixed_up() -> None:
    with pytest.raises(CheckpointError, match="not one of this partition"):
        parse_op_checkpoint(HalfCheckpoint(5, 5).encode(TOPIC, PARTITION), 5, TOPIC, PARTITION)
    with pytest.raises(CheckpointError, match="not one of this partition"):
        parse_half_checkpoint(OpCheckpoint(5, 5).encode(TOPIC, PARTITION), 5, TOPIC, PARTITION)


@some.relaxed
@given(st.text(st.characters(), max_size=40) | st.text("0123456789;hobr-:_", max_size=40))
def test_junk_is_refused_as_a_protocol_error(text: str) -> None:
    for parse in (parse_half_checkpoint, parse_op_checkpoint):
        with pytest.raises(ProtocolError):
            parse(text, 5, TOPIC, PARTITION)


def sealed(body: str, offset: int) -> str:
    """A string whose checksum is right, whatever it says."""
    return f"{body};{zlib.crc32(f'{PARTITION};{offset};{body}'.encode()):08x}"


@some.relaxed
@given(st.text(st.characters(codec="utf-8"), max_size=30) | st.text("0123456789;hobr-:_AQ", max_size=30))
def test_junk_with_a_right_checksum_is_refused_as_a_protocol_error(junk: str) -> None:
    starts = [f"1;h;{TOPIC};{sign}" for sign in ("", "b", "r")]
    for body in (junk, f"1;{junk}", *(start + junk for start in starts)):
        try:
            found = parse_half_checkpoint(sealed(body, 5), 5, TOPIC, PARTITION)
        except ProtocolError:
            continue
        assert found.head - found.offset <= MAX_SPAN
        assert parse_half_checkpoint(found.encode(TOPIC, PARTITION), 5, TOPIC, PARTITION) == found


RUNS = (varints(0), varints(1)[:-1], varints(1, MAX_SPAN), varints(2**64), base64.urlsafe_b64encode(b"\x81").decode())
OTHERS = ["", "--", "x", "r", "r!", "rA", "b", "b0:", "b8", "b-8:AA", "b+8:AA", "b9:AA", "b8:", f"b{'9' * 5_000}:AA"]
BEGINNINGS = ["", "1", "1;h", f"1;h;{TOPIC}", f"0;h;{TOPIC};-", f"x;h;{TOPIC};-", f"²;h;{TOPIC};-"]


@pytest.mark.parametrize(
    "body", [*BEGINNINGS, *(f"1;h;{TOPIC};{rest}" for rest in (*OTHERS, *(f"r{one}" for one in RUNS)))]
)
def test_a_string_that_says_nothing_sensible_is_refused(body: str) -> None:
    with pytest.raises(CheckpointError):
        parse_half_checkpoint(sealed(body, 5), 5, TOPIC, PARTITION)


@pytest.mark.parametrize("data", ["", "-1", "+1", "1_0", "²", "٣", "x", "9" * 5_000])
def test_an_op_string_that_says_nothing_sensible_is_refused(data: str) -> None:
    with pytest.raises(CheckpointError):
        parse_op_checkpoint(sealed(f"1;o;{TOPIC};{data}", 5), 5, TOPIC, PARTITION)


@pytest.mark.parametrize("version", ["2", "3", "10", "9" * 5_000])
def test_a_newer_format_is_told_apart(version: str) -> None:
    for parse in (parse_half_checkpoint, parse_op_checkpoint):
        with pytest.raises(NewerFormatError, match="upgrade"):
            parse(f"{version};something new", 5, TOPIC, PARTITION)


def test_a_checkpoint_that_no_relay_could_read_back_is_not_written() -> None:
    with pytest.raises(CheckpointError):
        window(0, 2 * WINDOW, set(range(0, 2 * WINDOW, 2))).encode(TOPIC, PARTITION)
    with pytest.raises(CheckpointError):
        window(0, MAX_SPAN + 1, set()).encode(TOPIC, PARTITION)
    assert window(0, MAX_SPAN, set()).encode(TOPIC, PARTITION)


def test_an_offset_committed_without_a_string_is_refused() -> None:
    """Somebody else committed it: it says nothing of what is settled."""
    for text in ("", "\0"):
        with pytest.raises(CheckpointError):
            parse_half_checkpoint(text, 5, TOPIC, PARTITION)
