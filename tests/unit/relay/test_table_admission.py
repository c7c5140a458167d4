"""Which rows of a message table are delivered, wait, or are discarded."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from outbox.protocol.discard import DiscardReason
from outbox.protocol.fields import MAX_INT64
from outbox.protocol.half import HalfControl, Truth, count_header, real_headers
from outbox.protocol.identifiers import table_transaction_id, xid_of
from outbox.protocol.names import Channel
from outbox.protocol.record import Record
from outbox.protocol.size import record_size
from relay.delivery.rules.preflight import RealTopic
from relay.delivery.rules.topic_gate import Gate, GatePolicy
from relay.table import admission
from relay.table import row_telemetry as report
from relay.table.admission import Admission, Admitted
from relay.table.row_transactions import RowTransaction, transactions
from relay.table.rows import EPOCH_US, Row, records, transactions_of, whole

OPEN = RealTopic(3, 1_000_000)
US = 1_700_000_000_000_123


def row(id_: int, xid: int, key: bytes | None = b"k", topic: str = "orders", **more: object) -> Row:
    return Row(xid, id_, US - EPOCH_US, "g", topic, -1, None, key, b"v")._replace(**more)  # type: ignore[arg-type]


def array(*elements: str | bytes | None) -> bytes:
    contents = [element.encode() if isinstance(element, str) else element for element in elements]
    body = [b"\xff" * 4 if one is None else len(one).to_bytes(4, "big") + one for one in contents]
    head = [bool(elements), None in elements, 17, len(elements), 1] if elements else [0, 0, 17]
    return b"".join(int(number).to_bytes(4, "big") for number in head) + b"".join(body)


def ids(found: Admitted | RowTransaction) -> list[int]:
    return found.ids() if isinstance(found, RowTransaction) else [one.id for one in found.rows]


def written(rows: Sequence[Row], source: str = "shop") -> list[Record]:
    return list(records(rows, transactions_of(rows), source))


class Waiters:
    def __init__(self, source: str = "shop", **topics: RealTopic | None) -> None:
        self.gate = Gate(GatePolicy(), Channel("outbox"), source)
        self.gate.turn(0)
        self.admission = Admission(self.gate, Channel("outbox"))
        self.describe(**topics)

    def describe(self, **topics: RealTopic | None) -> None:
        found = {name: topic for name, topic in topics.items() if topic is not None}
        change = self.gate.update(topics, found, self.admission.topics(topics))
        self.admission.release(change.opened)
        self.admission.release(change.given_up, give_up=True)

    def take(self, *rows: Row) -> Admitted:
        return self.admission.take(rows, US // 1_000)


def test_the_transaction_id_carries_the_xid() -> None:
    made = table_transaction_id(7_000_000_000, US)
    assert xid_of(made) == 7_000_000_000
    assert made[14] == "7"
    assert made[19] == "8"
    assert made != table_transaction_id(7_000_000_000, US + 1)


def test_records_come_in_the_order_of_the_rows() -> None:
    rows = [row(1, 10, b"a"), row(2, 11, b"b"), row(3, 10, b"c")]
    assert [ids(one) for one in transactions(rows)] == [[1, 3], [2]]
    made = written(rows)
    assert [record.key for record in made] == [b"a", b"b", b"c"]
    assert [dict(record.headers)["outbox-origin"] for record in made] == [b"shop/1", b"shop/2", b"shop/3"]
    assert [dict(record.headers)["outbox-count"] for record in made] == [b"2", b"1", b"2"]


def test_a_record_has_the_headers_of_its_row_and_those_of_the_relay() -> None:
    made = row(7, 10, names=array("a", "ä"), values=array(b"1", None))
    control = HalfControl("orders", -1, table_transaction_id(10, US), 7, "g", Truth.ROW)
    expected = [*real_headers(control, [("a", b"1"), ("ä", None)], "shop", 7), count_header(1)]
    (record,) = written([made])
    assert record.headers == expected
    assert record.timestamp == US // 1_000


def test_services_of_one_local_transaction_are_transactions_of_their_own() -> None:
    found = transactions([row(1, 10), row(2, 10, service="other")])
    assert [(one.service, ids(one)) for one in found] == [("g", [1]), ("other", [2])]


def test_a_closed_topic_holds_its_keys_and_nothing_else() -> None:
    waiters = Waiters(orders=OPEN, missing=None)
    window = [
        row(1, 1, b"a", "missing"),
        row(2, 2, b"a"),
        row(3, 3, b"b"),
        row(4, 2, b"c"),
        row(5, 4, b"c"),
        row(6, 5, None),
    ]
    assert ids(waiters.take(*window)) == [3, 6]
    assert list(waiters.admission.waiting()) == [1, 2, 4, 5]
    assert ids(waiters.take(row(7, 6, b"a"), row(8, 7, b"d"))) == [8]


def test_rows_that_wait_are_counted_by_topic_and_service() -> None:
    waiters = Waiters(orders=OPEN, gone=None)
    of_other = row(3, 2, b"b", "gone", service="h")
    waiters.take(row(1, 1, b"a", "gone"), row(2, 1, b"a", "gone"), of_other, row(4, 3, b"a"))
    assert waiters.admission.by_topic() == {("gone", "g"): 2, ("gone", "h"): 1}
    waiters.describe(gone=OPEN)
    assert waiters.admission.by_topic() == {}


def test_rows_that_wait_are_logged_once_a_minute() -> None:
    waiting = report.RowsThatWait("shop")
    with capture_logs() as logs:
        for now, rows in [(0.0, 1), (5.0, 2), (61.0, 3)]:
            waiting.warn({("gone", "g"): rows}, now)
        waiting.warn({("gone", "g"): 3, ("gone", "h"): 7}, 62.0)
        waiting.warn({}, 63.0)
        waiting.warn({("gone", "g"): 4}, 64.0)
    assert [(one["topic"], one["service"], one["rows"]) for one in logs] == [
        *(("gone", "g", 1), ("gone", "g", 3), ("gone", "h", 7), ("gone", "g", 4))
    ]


def test_what_waits_comes_back_when_the_topic_opens() -> None:
    waiters = Waiters(orders=OPEN, missing=None)
    waiters.take(row(1, 1, b"a", "missing"), row(2, 2, b"a"))
    waiters.describe(missing=OPEN)
    assert not waiters.admission.waiting()
    assert ids(waiters.take(row(1, 1, b"a", "missing"), row(2, 2, b"a"))) == [1, 2]


def test_what_waited_too_long_is_refused_whole() -> None:
    waiters = Waiters(orders=OPEN, missing=None)
    window = [row(1, 1, b"a", "missing"), row(2, 1, b"b"), row(3, 2, b"b")]
    waiters.take(*window)
    waiters.gate.turn(61_000)
    waiters.describe(missing=None)
    waiters.describe(orders=OPEN)  # what was known of it has expired
    found = waiters.take(*window)
    assert [(ids(one), finding.reason) for one, finding in found.refused] == [([1, 2], DiscardReason.TOPIC_MISSING)]
    assert ids(found) == [3]


def test_what_waits_is_given_up_in_time_although_others_are_released_again_and_again() -> None:
    """A new topic releases all that waits; the missing one is described before its transaction is read again."""
    waiters, window, now = Waiters(missing=None), [row(1, 1, b"a", "missing")], 0
    waiters.take(*window)
    while now < GatePolicy().max_age:
        now += GatePolicy().pause_max
        waiters.gate.turn(now)
        waiters.take(row(2, 2, b"b", f"new{now}"))
        waiters.describe(**{f"new{now}": OPEN})
        assert not waiters.admission.waiting()
        waiters.describe(missing=None)
        waiters.take(*window)
    waiters.gate.turn(now + 1)
    waiters.describe(missing=None)
    assert [ids(one) for one, _ in waiters.take(*window).refused] == [[1]]


def test_rows_with_one_xid_and_two_starts_are_two_transactions() -> None:
    """As where a dump was restored into a new server, whose xids come to those of the dump."""
    old, new = row(1, 7, topic="\0", started=US - EPOCH_US - 1), row(2, 7, b"other")
    admitted = Waiters(orders=OPEN).take(old, new)
    assert ids(admitted) == [2]
    assert [transaction.id for transaction, _ in admitted.refused] == [table_transaction_id(7, US - 1)]


def test_a_transaction_that_goes_on_behind_the_window_is_not_delivered_in_part() -> None:
    """Nor is anything behind it, which may have one of its keys; nor what lies between its rows."""
    window = [row(1, 1), row(2, 2), row(3, 3), row(4, 2), row(5, 3), row(6, 4)]
    cuts: list[tuple[int, int]] = [(4, 5), (3, 1), (2, 1), (1, 0), (9, 6)]
    assert [(xid, whole(window, {(xid, US)})) for xid, _ in cuts] == cuts
    assert whole(window, {(4, US - 1)}) == 6, "of another start"


CONTENT = {
    "key": st.sampled_from([b"a", b"b", None]),
    "value": st.sampled_from([b"v", None, b"x" * 300, b"x" * 2_000]),
    "topic": st.sampled_from(["orders", "orders", "compacted", "small", "recent", "missing", "shut", "no topic"]),
    "partition": st.sampled_from([-1, 0, 2, 3, -2, None]),
    "timestamp": st.sampled_from([None, None, US // 1_000, 0, -1]),
    "service": st.sampled_from(["g", "g", "h", ""]),
    "names": st.sampled_from([None, None, array(), array("a"), array("a", "b"), array(None), array("outbox-id")]),
    "values": st.sampled_from([None, None, array(), array(b"1"), array(b"1", b"2"), array(None), array(b"x" * 400)]),
}


@given(st.lists(st.tuples(st.integers(1, 3), st.fixed_dictionaries(CONTENT)), min_size=1, max_size=4))
def test_what_is_plain_is_what_nothing_is_decided_about(made: list[tuple[int, dict[str, object]]]) -> None:
    """The columns of a window are judged as its transactions are; what is not plain may be right nevertheless."""
    topics = {
        "orders": OPEN,
        "compacted": RealTopic(3, 1_000_000, key_required=True),
        "small": RealTopic(3, 900),
        "recent": RealTopic(3, 1_000_000, oldest=1_000),
        "shut": RealTopic(3, 1_000_000, unavailable="no leader"),
    }
    rows = [row(number, xid, **content) for number, (xid, content) in enumerate(made, 1)]  # type: ignore[arg-type]
    admitted = Waiters("shop", **topics, missing=None).take(*rows)
    if admitted.rows != tuple(rows):  # what is decided on is a list
        return
    decided = Waiters("shop", **topics, missing=None)
    decided.admission._given_up.add(("", ""))  # so that nothing is plain
    again = decided.take(*rows)
    assert (again.rows, list(again.refused)) == (rows, [])
    assert written(again.rows) == written(admitted.rows)


def test_a_window_of_open_targets_is_plain() -> None:
    rows = [row(1, 1, b"a"), row(2, 2, None), row(3, 1, names=array("a"), values=array(b"1"), service="h", partition=2)]
    assert Waiters(orders=OPEN).take(*rows).rows == tuple(rows), "what is decided on is a list"


def test_what_begins_earlier_does_not_overtake_with_its_later_rows() -> None:
    """The rows of local transactions lie between each other: that of id 3 is behind that of id 2."""
    waiters = Waiters(orders=OPEN, missing=None)
    window = [row(1, 1, b"a"), row(2, 2, b"k"), row(3, 1, b"k"), row(4, 3, b"b")]
    assert ids(waiters.take(*window)) == [1, 2, 3, 4]
    window[1] = row(2, 2, b"k", "missing")
    assert ids(waiters.take(*window)) == [4]
    assert sorted(waiters.admission.waiting()) == [1, 2, 3]


@given(
    st.lists(st.tuples(st.integers(0, 9), st.sampled_from([b"a", b"b", b"c", None])), max_size=40), st.integers(1, 8)
)
def test_each_key_keeps_its_order_in_windows_of_any_size(made: list[tuple[int, bytes | None]], size: int) -> None:
    rows = {number: row(number, xid, key) for number, (xid, key) in enumerate(made, 1)}
    delivered: list[int] = []
    waiters, growth = Waiters(orders=OPEN), 1
    while rows:
        window = list(rows.values())[: size * growth]
        beyond = {(one.xid, US) for one in rows.values() if one.id > window[-1].id}
        ready = ids(waiters.take(*window[: whole(window, beyond)]))
        growth = 1 if ready else growth + 1
        for number in ready:
            del rows[number]
        delivered += ready
    for key in (b"a", b"b", b"c"):
        numbers = [number for number in delivered if made[number - 1][1] == key]
        assert numbers == sorted(numbers)
    assert len(delivered) == len(made)


def test_too_many_that_wait_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "WAITING_MAX", 2)
    waiters = Waiters(orders=OPEN, missing=None)
    window = [row(number, number, b"%d" % number, "missing") for number in range(1, 5)]
    waiters.take(*window)
    waiters.admission.release_crowding()
    found = waiters.take(*window)
    assert [ids(one) for one, _ in found.refused] == [[1], [2], [3]]
    assert list(waiters.admission.waiting()) == [4]


@pytest.mark.parametrize("source", ["s", "s" * 63])
@pytest.mark.parametrize("id_", [1, MAX_INT64 - 1_000])
def test_what_is_accepted_fits_into_its_topic(source: str, id_: int) -> None:
    """The relay adds headers; a record that Kafka refused would fail its batch again and again."""
    waiters = Waiters(source, orders=RealTopic(1, 500))
    found = waiters.take(*(row(id_ + size, size + 1, value=b"x" * size) for size in range(400)))
    sizes = [record_size(record.key, record.value, record.headers) for record in written(found.rows, source)]
    assert 400 < max(sizes) <= 500


@pytest.mark.parametrize(
    ("bad", "detail"),
    [
        ({"topic": "no topic"}, "topic 'no topic' is not a topic name"),
        ({"partition": -2}, "partition -2 is negative"),
        ({"partition": None}, "it is beyond the bounds of a message: 64,000,000 bytes of key and value"),
        ({"timestamp": -1}, "timestamp -1 is not in ms"),
        ({"timestamp": 0}, "timestamp 0 is not in ms"),
        ({"names": array("a")}, "1 header names and 0 header values"),
        ({"values": array("a")}, "0 header names and 1 header values"),
        ({"names": array("a", "b"), "values": array(b"")}, "2 header names and 1 header values"),
        ({"names": array(None), "values": array(b"")}, "a header has no name"),
        ({"names": b"\0\0\0\2" + array("a")[4:], "values": array(b"")}, "more than one dimension"),
        ({"names": array("a"), "values": b"\0\0\0\2" + array(b"")[4:]}, "more than one dimension"),
        ({"names": array("outbox-x"), "values": array(b"")}, "header outbox-x is reserved"),
        ({"names": array(b"\xff"), "values": array(b"")}, "the name of a header is no UTF-8"),
        ({"service": ""}, "service '' is not allowed"),
    ],
)
def test_a_row_that_makes_no_message_is_refused(bad: dict[str, object], detail: str) -> None:
    waiters = Waiters(orders=OPEN)
    found = [finding for _, finding in waiters.take(row(1, 1, **bad)).refused]  # type: ignore[arg-type]
    assert [finding.reason for finding in found] == [DiscardReason.MALFORMED]
    assert detail in found[0].detail


def test_before_a_dead_letter_the_topic_is_described_once_more() -> None:
    """For all rows at once, and only where its description decides (R83)."""
    waiters = Waiters(orders=RealTopic(3, 500))
    asked: list[set[str]] = []

    def look_again(names: set[str]) -> None:
        asked.append(names)
        waiters.describe(orders=RealTopic(3, 5_000))

    window = [row(1, 1, value=b"x" * 999), row(2, 2, value=b"x" * 999), row(3, 3, value=b"x" * 5_000)]
    admitted = waiters.admission.take(window, US // 1_000, look_again)
    assert asked == [{"orders"}]
    assert ids(admitted) == [1, 2]
    assert [(ids(one), finding.reason) for one, finding in admitted.refused] == [([3], DiscardReason.TOO_LARGE)]
