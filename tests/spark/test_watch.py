"""What `watch` counts: each message once, whatever is read in which batch; what waits, and for how long."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from datetime import timedelta

import pytest
from pyspark.sql import functions as f

from outbox.protocol.discard import DiscardReason
from outbox.protocol.names import Channel as Names
from outbox.protocol.op import OpKind, OpSource
from outbox.protocol.positions import Positions
from spark_jobs.watching.frames.messages import UNDECIDED, UNDELIVERED
from spark_jobs.watching.frames.per_minute import MINUTES, SKETCH, merged, with_quantiles
from spark_jobs.watching.frames.single_record_alerts import urgent_alerts
from tests.support.proving import BEGIN, START, TOPIC_ID, frame
from tests.support.spark import session
from tests.support.watching import LISTS, Channel, Job, read

HOUR = timedelta(hours=1)


def full() -> Channel:
    """A channel on which nearly everything has happened; four of its messages wait."""
    channel = Channel()
    for _ in range(4):
        channel.delivered(3)
    channel.rolled_back(2)
    channel.rolled_back(by_checker=True, group="stock")
    struck = channel.tell(3)
    channel.op(struck, positions=Positions.of([0, 2]))
    channel.deliver(struck, [0, 2])
    parked = channel.tell(key=b"parked")
    channel.ask(parked)
    channel.ask(parked, 2)
    channel.park(parked, removed=True)
    channel.op(parked, source=OpSource.CHECKER, after=HOUR)
    channel.deliver(parked, late="UNDECIDED")
    undeliverable = channel.tell(2)
    channel.op(undeliverable)
    channel.park(undeliverable, DiscardReason.TOO_LARGE)
    channel.tell(2, group="stock")
    late = channel.tell(2)
    channel.op(late)
    channel.deliver(late, [0])
    lost = channel.tell()
    channel.op(lost)
    return channel


TOTALS = {
    "orders": {
        "halves": 12 + 2 + 3 + 1 + 2 + 2 + 1,
        "committed": 12 + 2 + 1 + 2 + 2 + 1,
        "rolled_back": 2 + 1,
        "delivered": 12 + 2 + 1 + 1,
        "checks": 2,
        "discarded/UNDECIDED": 1,
        "discarded/TOO_LARGE": 2,
    },
    "stock": {"halves": 1 + 2, "rolled_back": 1},
}


@pytest.mark.long
def test_a_history_is_counted_and_what_is_done_is_forgotten() -> None:
    job = Job(full())
    job.batch(now=BEGIN + HOUR)
    assert job.totals() == TOTALS
    undecided, half_delivered, lost = (told.id for told in job.channel.told[-3:])
    assert job.open() == {undecided, half_delivered, lost}
    assert {(one.group, one.state, one.messages) for one in job.waiting} == {
        ("stock", UNDECIDED, 2),
        ("orders", UNDELIVERED, 2),
    }
    shares = [row["halves"] for row in job.minutes() if row["producer_group"] == "orders" and row["topic"]]
    assert sum(shares) == TOTALS["orders"]["halves"]
    checked = [row for row in job.minutes() if row["checks"] or row["discarded"]]
    assert {row["topic"] for row in checked} == {None}


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_the_figures_are_the_same_however_the_topics_are_cut_into_batches(seed: int) -> None:
    whole, cut, chance = Job(full()), Job(full()), random.Random(seed)
    whole.batch(now=BEGIN + HOUR)
    position = dict.fromkeys(LISTS, 0)
    for _ in range(3):  # each topic on its own: ops before their halves, records before their ops
        lengths = cut.channel.lengths
        position = {name: chance.randint(at, lengths[name]) for name, at in position.items()}
        cut.batch(position, now=BEGIN + HOUR)
    cut.batch(now=BEGIN + HOUR)
    assert cut.totals() == whole.totals() == TOTALS
    assert cut.minutes() == whole.minutes()
    assert cut.open() == whole.open()
    assert sorted(cut.waiting, key=str) == sorted(whole.waiting, key=str)
    sizes = [f.kll_sketch_get_n_bigint(name).alias(name) for name in ("half_to_op", "op_to_visible", "half_to_visible")]
    counted = [merged(job.frame(), ["producer_group"]).select("producer_group", *sizes) for job in (whole, cut)]
    assert sorted(counted[0].collect()) == sorted(counted[1].collect())


@pytest.mark.long
def test_latencies_are_those_of_the_broker() -> None:
    channel = Channel()
    for _ in range(3):
        channel.delivered()
    undecided = channel.tell(key=b"x")
    channel.op(undecided, OpKind.ROLLBACK, OpSource.CHECKER, after=timedelta(seconds=5))
    job = Job(channel)
    job.batch()
    [row] = with_quantiles(merged(job.frame(), ["producer_group"])).collect()
    assert row.half_to_op_ms == [7, 5000, 5000]
    assert row.op_to_visible_ms == [5, 5, 5]
    assert row.half_to_visible_ms == [12, 12, 12]


@pytest.mark.long
def test_a_topic_with_the_producers_time_is_counted_and_not_timed() -> None:
    channel = Channel()
    told = channel.delivered()
    [record] = channel.reals
    channel.change(record, time=BEGIN - 1000 * HOUR, time_type=0)
    job = Job(channel)
    job.batch()
    rows = {row["topic"]: row for row in job.minutes()}
    assert rows[record.topic]["delivered"] == 1
    assert rows[record.topic]["minute"].timestamp() == BEGIN.timestamp()
    [quantiles] = with_quantiles(merged(job.frame(), ["producer_group"])).collect()
    assert quantiles.half_to_op_ms == [7, 7, 7]
    assert quantiles.half_to_visible_ms is None
    assert told.id not in job.open()


@pytest.mark.long
def test_what_is_read_twice_is_a_decision_once_and_a_second_record_is_one_more() -> None:
    channel = Channel()
    told = channel.delivered()
    later = channel.tell()
    job = Job(channel)
    job.batch()
    channel.op(told)
    channel.op(told, source=OpSource.CHECKER)
    channel.deliver(told)
    channel.op(later)
    job.batch()
    channel.op(later, source=OpSource.CHECKER)
    job.batch()
    assert job.totals()["orders"] == {"halves": 2, "committed": 2, "delivered": 2}
    assert job.open() == {later.id}


@pytest.mark.long
def test_halves_grow_old_while_nothing_is_written_and_are_forgotten_at_last() -> None:
    channel = Channel()
    channel.tell(2)
    job = Job(channel)
    ages = []
    for minutes in (0, 2, 90, 3000):
        job.batch(now=BEGIN + timedelta(minutes=minutes), forget_ms=4 * 86_400_000)
        [one] = job.waiting
        ages.append(one.up_to_seconds)
        assert (one.messages, one.oldest_ms) == (2, round(BEGIN.timestamp() * 1000))
    assert ages == [10, 600, 86_400, None]
    assert job.totals()["orders"] == {"halves": 2}
    job.batch(now=BEGIN + timedelta(days=5), forget_ms=4 * 86_400_000)
    assert job.totals()["orders"] == {"halves": 2, "forgotten": 2}
    assert (job.waiting, job.known) == ([], [])


@pytest.mark.long
def test_nothing_is_forgotten_while_the_job_is_behind() -> None:
    channel = Channel()
    told, open_ = channel.delivered(), channel.tell()
    job = Job(channel)
    job.batch({"ops": 0, "reals": 0}, now=None)
    assert (job.open(), job.waiting) == ({told.id, open_.id}, [])
    job.batch(now=BEGIN + timedelta(days=5))
    assert job.totals()["orders"] == {"halves": 2, "committed": 1, "delivered": 1, "forgotten": 1}


@pytest.mark.long
@pytest.mark.parametrize("batches", [(1, 2, 3), (3,)])
def test_a_message_that_follows_others_into_the_discard_topic_counts_alone(batches: tuple[int, ...]) -> None:
    channel = Channel()
    told = channel.tell(3)
    for read_so_far in (1, 3, 3):
        channel.park(replace(told, control=told.control[:read_so_far], halves=told.halves[:read_so_far]))
    job = Job(channel)
    for manifests in batches:
        job.batch({"discards": manifests})
    assert job.totals()["orders"] == {"halves": 3, "discarded/UNDECIDED": 3}


@pytest.mark.long
def test_a_message_for_a_topic_that_is_not_watched_waits_for_its_decision_only() -> None:
    channel = Channel(("orders",))
    told = channel.tell()
    job = Job(channel, ())
    job.batch()
    assert job.open() == {told.id}
    channel.op(told)
    job.batch()
    assert (job.open(), job.waiting) == (set(), [])


@pytest.mark.long
def test_half_that_relay_has_not_read_stays_known() -> None:
    """It stays until the relay has read it, also if it was settled."""
    channel = Channel(("orders",))
    channel.delivered()
    told = channel.tell()
    channel.op(told)
    later = channel.rolled_back()
    appended = {one.id: round(one.halves[0].time.timestamp() * 1000) for one in (told, later)}
    job = Job(channel, (), head=told.first)
    for _ in range(2):
        job.batch(now=BEGIN + HOUR)
        assert (job.open(), job.waiting) == ({told.id, later.id}, [])
        assert job.unread == {0: appended[told.id]}
    job.head = later.first
    job.batch(now=BEGIN + HOUR)
    assert (job.open(), job.unread) == ({later.id}, {0: appended[later.id]})
    job.head = later.last + 1
    job.batch(now=BEGIN + HOUR)
    assert (job.known, job.unread) == ([], {})
    assert job.totals()["orders"] == {"halves": 3, "committed": 2, "rolled_back": 1, "delivered": 1}


@pytest.mark.long
def test_a_half_that_cannot_be_read_waits_until_it_lies_in_the_discard_topic() -> None:
    channel = Channel()
    told = channel.tell()
    channel.halves[0] = replace(channel.halves[0], headers=[("outbox-group", b"?")])
    job = Job(channel)
    job.batch()
    assert job.open() == {f"malformed:0/{told.first}"}
    channel.park(told, DiscardReason.MALFORMED)  # its op marker will never come
    job.batch()
    assert job.open() == set()
    assert job.totals() == {"": {"halves": 1}, "orders": {"discarded/MALFORMED": 1}}


@pytest.mark.long
def test_what_is_about_halves_of_before_is_not_kept() -> None:
    channel = Channel()
    channel.delivered()
    channel.rolled_back()
    channel.park(channel.delivered(), removed=True)
    channel.halves.clear()
    job = Job(channel, begin=START + 100)
    job.batch()
    assert job.known == []
    assert job.totals() == {"orders": {"delivered": 2, "discarded/UNDECIDED": 1}}


@pytest.mark.long
def test_what_another_channel_writes_to_a_topic_is_not_kept() -> None:
    channel = Channel(("orders",))
    strange = channel.tell()
    origin = replace(strange.halves[0], offset=10**6)
    channel.halves.clear()
    channel.deliver(replace(strange, halves=[origin]))
    ours = channel.delivered()
    job = Job(channel, begin=ours.first)
    job.batch({"halves": 0, "ops": 0})
    job.batch({"halves": 0})
    assert job.open() == {ours.id}
    job.batch()
    assert job.known == []
    assert job.totals()["orders"] == {"halves": 1, "committed": 1, "delivered": 2}


@pytest.mark.long
def test_a_rollback_without_offsets_finds_its_halves_before_and_after_it() -> None:
    channel = Channel()
    first, second = channel.tell(2), channel.tell(2)
    job = Job(channel)
    channel.roll_back_without_offsets(first)
    channel.roll_back_without_offsets(second)
    job.batch(to={"halves": 2})
    assert job.open() == {first.id, second.id}
    job.batch()
    assert job.totals() == {"orders": {"halves": 4, "rolled_back": 4}}
    assert job.waiting == []
    channel.halves.append(replace(channel.halves[-1], offset=second.last + 1, time=BEGIN + HOUR))
    job.batch(now=BEGIN + HOUR)
    assert job.totals() == {"orders": {"halves": 5, "rolled_back": 4}}
    assert job.open() == set()  # the decisions have waited long enough for halves that they do not name


def test_sketches_of_many_batches_are_right_to_one_percent_of_the_rank() -> None:
    values = session().range(50_000).select(f.pow(f.rand(7) * 100, 2).cast("bigint").alias("ms"), "id")
    sketches = values.groupBy(f.col("id") % 50).agg(f.kll_sketch_agg_bigint("ms", SKETCH).alias("half_to_op"))
    rows = session().createDataFrame([], MINUTES).unionByName(sketches.drop("(id % 50)"), allowMissingColumns=True)
    [found] = with_quantiles(merged(rows, ["producer_group"])).select("half_to_op_ms").collect()
    ranks = [values.where(f.col("ms") <= value).count() / 50_000 for value in found.half_to_op_ms]
    assert ranks == pytest.approx([0.5, 0.95, 0.99], abs=0.01)


def test_records_of_strangers_are_no_events() -> None:
    channel = Channel()
    told = channel.tell()
    channel.real("orders", b"key", b"value", [("outbox-group", "orders")], BEGIN)
    channel.park(told)
    channel.ask(told)
    for records in (channel.checks, channel.discards, channel.ops):
        records.append(replace(channel.checks[0], value=b"\xff"))
    foreign = (channel.discards[0].value or b"").replace(TOPIC_ID.encode(), b"another")
    channel.discards.append(replace(channel.discards[0], value=foreign))
    sides = [row.side for row in read({name: getattr(channel, name) for name in LISTS}).collect()]
    assert sorted(sides) == ["check", "discard", "half"]


def test_what_one_record_gives_away_is_an_alert_at_once() -> None:
    channel = Channel()
    told = channel.tell()
    for check in (1, 2, 3, 4):
        channel.ask(told, check)
    channel.park(told, DiscardReason.TOO_LARGE, removed=True)
    records = frame([*channel.checks, *channel.discards, replace(channel.discards[0], key=b"\xff")])
    alerts = [(row.key, json.loads(row.value)) for row in urgent_alerts(records, Names("outbox"), 3).collect()]
    common = {"version": 1, "channel": "outbox", "subject": told.id}
    discarded = {**common, "alert": "DISCARDED", "since_ms": round(BEGIN.timestamp() * 1000)}
    asked = round((told.halves[0].time + timedelta(seconds=18)).timestamp() * 1000)
    assert [value for _, value in alerts] == [
        {
            **common,
            "alert": "CHECKED_OFTEN",
            "state": "firing",
            "producer_group": "orders",
            "since_ms": asked,
            "detail": "its outcome is unknown after 2 checks",
        },
        {**discarded, "state": "firing", "producer_group": "orders", "detail": "TOO_LARGE"},
        {**discarded, "state": "resolved"},
    ]
    assert [key for key, _ in alerts] == [f"outbox/CHECKED_OFTEN/{told.id}", *[f"outbox/DISCARDED/{told.id}"] * 2]
