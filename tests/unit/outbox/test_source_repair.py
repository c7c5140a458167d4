"""How a halted table source goes on (R55), and the first checkpoint of a half partition that had none (R84)."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbox._rules.source_progress import Committed, Progress, contradiction
from outbox._rules.topic_description import TopicDescription
from outbox.operator.reading.delivered_search import may_be_removed, unprovable
from outbox.operator.state.repairs import NOT_BEGUN, StoredHalf, first_checkpoint, repair
from outbox.protocol.checkpoint import HalfCheckpoint, parse_half_checkpoint

HERE, OTHER = "here", "other"


def _progress(batch: int, delivered: int) -> Progress:
    return Progress(HERE, batch, delivered, (1, 2))


@pytest.mark.parametrize(
    ("batch", "delivered", "kafka", "to", "warned"),
    [
        (3, 2, 7, 7, False),  # the database was restored
        (8, 7, 3, 3, True),  # Kafka was restored
        (8, 7, None, 0, False),  # the group's offset is gone
    ],
)
def test_the_number_of_kafka_is_kept(batch: int, delivered: int, kafka: int | None, to: int, *, warned: bool) -> None:
    found = repair("shop", "shop", _progress(batch, delivered), None if kafka is None else Committed(kafka, HERE))
    assert found.halted
    assert (found.refusal, found.batch, bool(found.warning)) == ("", to, warned)


def test_the_warning_names_the_batches_that_kafka_does_not_have() -> None:
    assert "batches 4 to 7 were delivered" in repair("shop", "shop", _progress(8, 7), Committed(3, HERE)).warning


@given(st.integers(0, 9), st.integers(0, 9), st.none() | st.integers(0, 9))
def test_numbers_fit_and_no_batch_is_taken_for_undelivered(batch: int, delivered: int, kafka: int | None) -> None:
    committed = None if kafka is None else Committed(kafka, HERE)
    found = repair("shop", "shop", _progress(batch, delivered), committed)
    if not found.halted:
        assert contradiction(_progress(batch, delivered), committed) == ""
        return
    after = Progress(HERE, found.batch, found.batch, ())
    assert contradiction(after, committed) == ""


@pytest.mark.parametrize("lost", [False, True])
def test_a_table_without_progress_may_take_over_that_of_kafka(*, lost: bool) -> None:
    found = repair("shop", "shop", _progress(0, 0)._replace(lost=lost), Committed(3, OTHER, "nonce"))
    assert ("lost its progress" in found.halted) is lost
    assert (found.refusal, found.batch, found.nonce, found.incarnation) == ("", 3, "nonce", OTHER)


def test_progress_that_was_lost_halts_whatever_kafka_has() -> None:
    lost = _progress(0, 0)._replace(lost=True)
    for committed in (None, Committed(0, HERE), Committed(3, HERE)):
        found = repair("shop", "shop", lost, committed)
        assert "lost its progress" in found.halted
        assert (found.refusal, found.incarnation) == ("", HERE)


def test_a_table_of_another_name_is_refused() -> None:
    found = repair("shop", "other", _progress(1, 1), Committed(1, HERE))
    assert "name it 'other'" in found.refusal


def test_a_source_that_does_not_halt_needs_nothing() -> None:
    assert repair("shop", "shop", _progress(8, 7), Committed(7, HERE)).halted == ""
    assert repair("shop", "shop", NOT_BEGUN, None).halted == ""


def _topic(policy: str, **settings: str) -> TopicDescription:
    found = {"cleanup.policy": policy, **{name.replace("_", "."): value for name, value in settings.items()}}
    return TopicDescription("orders", "id", 1, 1, found)


def test_only_a_topic_that_keeps_its_records_proves_that_one_is_not_there() -> None:
    assert unprovable("orders", _topic("delete")) is None
    assert unprovable("orders", _topic("compact,delete")) is not None
    assert unprovable("orders", None) is not None


DAY = 86_400_000


@pytest.mark.parametrize(
    ("start", "first", "age", "settings", "removed"),
    [
        (0, 0, 9 * DAY, {"retention_ms": str(DAY)}, False),  # nothing was ever removed
        (5, 8, DAY, {"retention_ms": str(7 * DAY)}, False),  # an older record is still there
        (5, 5, DAY, {"retention_ms": str(7 * DAY)}, True),  # others as new may have been before the first one
        (5, 8, 8 * DAY, {"retention_ms": str(7 * DAY)}, True),  # a row that waited has an old timestamp
        (5, 8, 8 * DAY, {"retention_ms": "-1"}, False),
        (5, 8, DAY, {"retention_ms": str(7 * DAY), "retention_bytes": "1000"}, True),
    ],
)
def test_retention_reached_rows(start: int, first: int, age: int, settings: dict[str, str], *, removed: bool) -> None:
    now = 100 * DAY
    assert may_be_removed(_topic("delete", **settings), start, first, now - age, now) is removed


TOPIC_ID = "019aaa3c-6d1c-7aaa-8aaa-0123456789ab"


@pytest.mark.parametrize(
    ("halves", "delivered", "found"),
    [("ab ", "c", (0, 0)), ("", "", (0, 0)), ("aba", "ab", (3, 3)), ("ab ac", "a", (1, 4, (range(1, 3),)))],
)
def test_each_half_of_a_delivered_transaction_is_settled(halves: str, delivered: str, found: Any) -> None:
    stored = [StoredHalf(offset, transaction.strip()) for offset, transaction in enumerate(halves)]
    assert first_checkpoint(stored, set(delivered)) == HalfCheckpoint(*found)


@given(st.lists(st.tuples(st.integers(1, 3), st.sampled_from("abcd")), max_size=60), st.sets(st.sampled_from("abcd")))
def test_exactly_what_was_not_delivered_is_owed(placed: list[tuple[int, str]], delivered: set[str]) -> None:
    """Control records take offsets, too, between the halves."""
    halves, offset = [], -1
    for step, transaction in placed:
        offset += step
        halves.append(StoredHalf(offset, transaction))
    found = first_checkpoint(halves, delivered)
    assert [found.owes(half.offset) for half in halves] == [half.transaction_id not in delivered for half in halves]
    assert found.owes(offset + 1)
    assert parse_half_checkpoint(found.encode(TOPIC_ID, 3), found.offset, TOPIC_ID, 3) == found
