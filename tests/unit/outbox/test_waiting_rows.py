"""Why rows of a message table wait."""

from collections.abc import Mapping

import pytest

from outbox._rules.topic_description import Replicas, TopicDescription
from outbox.operator.reading.source_report import topic_state
from outbox.operator.state.waiting_rows import TopicRows, TopicState, WaitingRow, Waits, all_of, is_any_closed, reasons

NOW = 100
OPEN = TopicState("orders", 3)
MISSING = TopicState("gone", 0, Waits.TOPIC_MISSING, "topic gone does not exist")
STATES = {"orders": OPEN, "gone": MISSING}


def _row(
    xid: int, id_: int, topic: str, key: bytes | None = None, partition: int = -1, service: str = "g"
) -> WaitingRow:
    return WaitingRow(xid, id_, 1_000 * xid, service, topic, partition, key)


def _counts(rows: list[WaitingRow], states: Mapping[str, TopicState] = STATES) -> dict[tuple[str, str], int]:
    return {(one.topic, one.reason): one.rows for one in reasons(rows, states, NOW)}


def test_a_missing_topic_holds_its_rows_its_transactions_and_their_keys() -> None:
    rows = [
        _row(1, 1, "gone", b"a"),
        _row(1, 2, "orders", b"b"),
        _row(2, 3, "orders", b"b"),
        _row(2, 4, "orders", b"c"),
        _row(3, 5, "orders", b"c"),
        _row(4, 6, "orders", b"d"),
    ]
    assert _counts(rows) == {
        ("gone", Waits.TOPIC_MISSING): 1,
        ("orders", Waits.SAME_TRANSACTION): 1,
        ("orders", Waits.SAME_KEY): 3,
        ("orders", Waits.NEXT): 1,
    }


def test_a_transaction_with_the_xid_of_an_older_one_does_not_wait_for_it() -> None:
    """As where a dump was restored into a new server."""
    old, new = _row(1, 1, "gone", b"a"), _row(1, 2, "orders", b"b")
    assert _counts([old._replace(started_us=1), new]) == {("gone", Waits.TOPIC_MISSING): 1, ("orders", Waits.NEXT): 1}


def test_keys_of_other_services_and_rows_without_key_do_not_wait() -> None:
    rows = [_row(1, 1, "gone", b"a"), _row(2, 2, "orders", b"a", service="other"), _row(3, 3, "orders")]
    assert _counts(rows) == {("gone", Waits.TOPIC_MISSING): 1, ("orders", Waits.NEXT): 2}


def test_what_a_topic_refuses_has_the_services_that_wait() -> None:
    rows = [_row(1, 1, "gone", service="stock"), _row(2, 2, "gone"), _row(3, 3, "gone"), _row(4, 4, "orders")]
    found = {one.topic: one for one in reasons(rows, STATES, NOW)}
    assert (found["gone"].services, found["gone"].rows, found["gone"].is_refused) == (["g", "stock"], 3, True)
    assert not found["orders"].is_refused


def test_an_earlier_row_of_a_key_does_not_wait_for_a_later_one() -> None:
    rows = [_row(1, 1, "orders", b"a"), _row(2, 2, "gone", b"a")]
    assert _counts(rows)[("orders", Waits.NEXT)] == 1


def test_a_partition_that_the_topic_has_not_is_named() -> None:
    rows = [_row(1, 1, "orders", partition=2), _row(2, 2, "orders", partition=3)]
    found = reasons(rows, STATES, NOW)
    assert [(one.reason, one.rows) for one in found] == [(Waits.NEXT, 1), (Waits.PARTITION_OUT_OF_RANGE, 1)]
    assert "3 partitions" in found[1].detail
    assert is_any_closed([TopicRows("orders", 2, 3, 0)], STATES)
    assert not is_any_closed([TopicRows("orders", 2, 2, 0)], STATES)


def test_without_a_closed_topic_all_are_next() -> None:
    (found,) = all_of(Waits.NEXT, [TopicRows("orders", 7, -1, 5_000)], NOW)
    assert (found.topic, found.reason, found.rows, found.age_ms) == ("orders", Waits.NEXT, 7, 95)


def test_the_oldest_comes_first() -> None:
    rows = [_row(1, 1, "gone"), _row(2, 2, "orders"), _row(3, 3, "gone")]
    found = reasons(rows, STATES, NOW)
    assert [(one.topic, one.rows, one.age_ms) for one in found] == [("gone", 2, 99), ("orders", 1, 98)]


def test_a_topic_that_does_not_exist_is_missing() -> None:
    assert topic_state("gone", None).refuses(-1) == (Waits.TOPIC_MISSING, "topic gone does not exist")


@pytest.mark.parametrize("right", ["WRITE", "DESCRIBE"])
def test_that_a_viewer_may_not_write_is_no_reason(right: str) -> None:
    lacks = f"{right} on topic orders"
    topic = TopicDescription("orders", "id", 3, 1, {}, lacks, (Replicas(1, frozenset({1}), 1),) * 3)
    refused = (Waits.NOT_AUTHORIZED, f"this client lacks {lacks}")
    assert topic_state("orders", topic).refuses(-1) == (None if right == "WRITE" else refused)
    assert topic_state("orders", topic, writes=True).refuses(-1) == refused
