"""The story of a transaction of table mode: what follows from what was found, and nothing more."""

import pytest

from outbox.operator.state.story import EventKind, Findings, Status, TimelineEvent, conclude
from outbox.protocol.identifiers import started_us_of, table_transaction_id, xid_of


def _event(what: EventKind, id_: int) -> TimelineEvent:
    return TimelineEvent(1, what, "shop", None, None, id_, "d")


def _found(
    *events: tuple[EventKind, int],
    position: int | None = None,
    outcome: Status = Status.COMMITTED,
    delivered: set[int] | None = None,
) -> Findings:
    """Return what was found of a transaction whose rows are of one source."""
    found = Findings("id", position, outcomes={"shop": outcome}, sources={"shop"}, delivered=delivered or set())
    for event in events:
        found.note(_event(*event))
    return found


W, B, D, V = EventKind.WAITS, EventKind.IN_BATCH, EventKind.REFUSED, EventKind.VISIBLE
E = EventKind.DELIVERED


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([(W, 1), (W, 2)], Status.WAITING),
        ([(B, 1), (W, 2)], Status.IN_DELIVERY),
        ([(D, 1), (D, 2)], Status.DISCARDED),
        ([(V, 1)], Status.VISIBLE),
        ([(B, 1), (V, 1)], Status.VISIBLE),  # its row is deleted with the next batch
        ([(V, 1), (W, 2)], Status.PARTLY_VISIBLE),
        ([(E, 1)], Status.DELIVERED),
        ([(E, 1), (V, 1)], Status.VISIBLE),
        ([(E, 1), (E, 2), (V, 1)], Status.DELIVERED),  # the record of 2 was not read
        ([(E, 1), (W, 2)], Status.WAITING),
        ([(V, 1), (V, 1)], Status.CONTRADICTION),
        ([(V, 1), (D, 1)], Status.CONTRADICTION),
    ],
)
def test_what_follows_from_rows_and_records(events: list[tuple[EventKind, int]], expected: Status) -> None:
    assert conclude(_found(*events)).state is expected


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (Status.COMMITTED, Status.NOT_FOUND),
        (Status.ROLLED_BACK, Status.ROLLED_BACK),
        (Status.OPEN, Status.OPEN),
        (Status.NOT_FOUND, Status.NOT_FOUND),
    ],
)
def test_without_rows_postgres_has_the_outcome(outcome: Status, expected: Status) -> None:
    conclusion = conclude(Findings("id", outcomes={"shop": outcome}, backends={"shop": 77}))
    assert conclusion.state is expected
    assert ("77" in conclusion.sentence) is (outcome is Status.OPEN)


def test_what_has_no_row_may_belong_to_another_channel() -> None:
    sentence = conclude(Findings("id", outcomes={"shop": Status.NOT_FOUND})).sentence
    assert "another channel, table or server" in sentence
    assert "--channel" in sentence


def test_a_visible_message_of_a_rollback_is_a_contradiction() -> None:
    assert conclude(_found((V, 1), outcome=Status.ROLLED_BACK)).state is Status.CONTRADICTION


def test_an_xid_of_several_databases_proves_nothing() -> None:
    found = Findings("id", outcomes={"shop": Status.COMMITTED, "pay": Status.ROLLED_BACK})
    assert found.is_of_rows
    assert conclude(found).state is Status.NOT_FOUND
    found.sources.add("pay")
    assert found.outcome() is Status.ROLLED_BACK


def test_a_batch_that_kafka_has_is_delivered() -> None:
    assert "Kafka has its batch" in conclude(_found((B, 1), delivered={1})).sentence
    assert "Kafka does not have" in conclude(_found((B, 1))).sentence


def test_one_message_is_judged_alone() -> None:
    assert conclude(_found((V, 1), (W, 2), position=1)).state is Status.VISIBLE
    assert conclude(_found((V, 1), (W, 2), position=2)).state is Status.WAITING


def test_an_id_of_table_mode_carries_xid_and_start() -> None:
    made = table_transaction_id(7_000_000_000, 1_700_000_000_123_999)
    assert (xid_of(made), started_us_of(made)) == (7_000_000_000, 1_700_000_000_123_999)
