"""What `watch` makes of a look, without Spark: alerts and their news, plans, open transactions, its files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from pydantic import ValidationError

from outbox.errors import ConfigurationError
from spark_jobs.runtime.errors import OutputError
from spark_jobs.watching.frames.alerts import Thresholds, alerts, news
from spark_jobs.watching.frames.backlog import Waiting
from spark_jobs.watching.frames.channel_status import ChannelStatus, Recent
from spark_jobs.watching.frames.messages import UNDECIDED, UNDELIVERED
from spark_jobs.watching.frames.partitions import Holder, OpenTransaction, Partition, held, standing
from spark_jobs.watching.frames.read_plan import advanced, plan
from spark_jobs.watching.frames.step import CountedBatch, added
from spark_jobs.watching.metrics import write_metrics
from spark_jobs.watching.settings import WatchSettings

NOW = 1_795_000_000_000
LIMITS = Thresholds(
    dangling_ms=600_000, undelivered_ms=300_000, hung_ms=60_000, relay_lag_ms=60_000, check_percent=20, slow_ms=1_000
)


def look(*waits: Waiting, at: int = NOW) -> ChannelStatus:
    return ChannelStatus(at, waits, until_ms=at)


def keys(**found: Any) -> list[str]:
    return [alert.key for alert in alerts(ChannelStatus(NOW, until_ms=NOW, **found), LIMITS)]


def test_what_has_waited_too_long_is_told_since_when_it_is_too_long() -> None:
    old = Waiting("shop", UNDECIDED, 3_600, 2, NOW - 700_000)
    young = Waiting("shop", UNDECIDED, 600, 5, NOW - 500_000)
    committed = Waiting(None, UNDELIVERED, 600, 1, NOW - 400_000)
    [dangling, undelivered] = alerts(look(young, old, committed), LIMITS)
    assert (dangling.key, dangling.since_ms, dangling.value) == ("DANGLING/shop", NOW - 100_000, 700_000)
    assert (undelivered.key, undelivered.since_ms) == ("UNDELIVERED/", NOW - 100_000)
    assert keys(waiting=[young]) == []


@pytest.mark.parametrize(
    ("recent", "expected"),
    [
        (Recent("shop", halves=100, checks=20, discarded={"UNDECIDED": 3}), []),
        (Recent("shop", halves=100, checks=21), ["CHECKED_OFTEN/shop"]),
        (Recent("shop", checks=1), ["CHECKED_OFTEN/shop"]),
        (Recent("shop", halves=9, discarded={"TOO_LARGE": 1, "UNDECIDED": 1}), ["DISCARDED/shop"]),
        (Recent("shop", halves=9, quantiles={"half_to_visible": [1, 2, 1_001]}), ["SLOW/shop"]),
        (Recent("shop", halves=9, quantiles={"half_to_visible": [1, 2, 1_000], "half_to_op": [9_999] * 3}), []),
        (Recent("shop", halves=9, quantiles={"half_to_visible": None}), []),
    ],
)
def test_what_was_unusual_in_the_last_minutes_is_told(recent: Recent, expected: list[str]) -> None:
    assert keys(recent=[recent]) == expected


def test_a_hung_transaction_and_a_relay_that_stands_are_told_by_partition() -> None:
    hung = Partition("orders", 2, 110, 100, 61_000, "shop-7")
    behind = Partition("outbox.half", 1, 50, 50, 0, relay_lag=7, relay_lag_ms=90_000)
    fine = Partition("outbox.half", 0, 50, 49, 59_000, relay_lag=7, relay_lag_ms=0)
    found = alerts(ChannelStatus(NOW, partitions=[hung, behind, fine]), LIMITS)
    assert [alert.key for alert in found] == ["HUNG_TRANSACTION/orders/2", "RELAY_BEHIND/outbox.half/1"]
    assert found[0].since_ms == NOW - 61_000
    assert "of shop-7 is open at offset 100 and keeps back 10 offsets" in found[0].detail


def test_an_alert_is_told_when_it_begins_and_when_it_is_over() -> None:
    wrong = alerts(look(Waiting("shop", UNDECIDED, None, 1, NOW - 700_000)), LIMITS)
    first = news(wrong, {}, "outbox", look())
    [(key, record)] = first.records
    assert key == "outbox/DANGLING/shop"
    assert json.loads(record) == {
        "version": 1,
        "alert": "DANGLING",
        "state": "firing",
        "channel": "outbox",
        "subject": "shop",
        "since_ms": NOW - 100_000,
        "value": 700_000,
        "threshold": 600_000,
        "detail": "its oldest half is not decided after 700 s",
    }
    assert news(wrong, {}, "outbox", look()).records == first.records  # after a crash: the same again
    assert news(wrong, first.firing, "outbox", look(at=NOW + 1)).records == ()
    over = news([], first.firing, "outbox", look(at=NOW + 5))
    [(key, record)] = over.records
    assert key == "outbox/DANGLING/shop"
    told = json.loads(record)
    assert (told["state"], told["since_ms"], told["until_ms"]) == (
        "resolved",
        NOW - 100_000,
        NOW + 5,
    )
    assert over.firing == {}


def test_a_job_that_is_behind_tells_of_nothing_that_waits_and_takes_nothing_back() -> None:
    waits = [Waiting("shop", UNDECIDED, None, 1, NOW - 700_000), Waiting("shop", UNDELIVERED, None, 1, NOW - 700_000)]
    relay = [Partition("outbox.half", 1, 50, 50, 0, relay_lag=7, relay_lag_ms=90_000)]
    behind = ChannelStatus(NOW, waits, partitions=relay)
    [wrong] = alerts(behind, LIMITS)
    assert wrong.key == "RELAY_BEHIND/outbox.half/1"
    before = {"DANGLING/shop": NOW - 9, "UNDELIVERED/shop": NOW - 8, "SLOW/shop": NOW - 7}
    told = news([wrong], before, "outbox", behind)
    assert [(key, json.loads(record)["state"]) for key, record in told.records] == [
        (f"outbox/{wrong.key}", "firing"),
        ("outbox/SLOW/shop", "resolved"),
    ]
    assert told.firing == {wrong.key: wrong.since_ms, "DANGLING/shop": NOW - 9, "UNDELIVERED/shop": NOW - 8}
    caught_up = news([], told.firing, "outbox", look())
    assert {key for key, _ in caught_up.records} == {f"outbox/{key}" for key in told.firing}


def test_what_waits_is_as_old_as_what_is_read(tmp_path: Path) -> None:
    begun = ChannelStatus(NOW, [Waiting("shop", UNDECIDED, 600, 1, NOW - 650_000)], until_ms=NOW - 100_000)
    assert alerts(begun, LIMITS) == []
    write_metrics(tmp_path / "outbox.prom", begun, {}, 0)
    assert samples(tmp_path / "outbox.prom")["outbox_watch_oldest_seconds", frozenset(("shop", UNDECIDED))] == 550


def test_an_offset_that_stands_below_the_end_stands_since_it_was_first_seen_there() -> None:
    place = ("orders", 0)
    first = standing({place: 10}, {place: 7}, {}, NOW)
    assert first == {place: OpenTransaction(7, NOW)}
    assert standing({place: 12}, {place: 7}, first, NOW + 5) == first
    assert standing({place: 12}, {place: 8}, first, NOW + 5) == {place: OpenTransaction(8, NOW + 5)}
    assert standing({place: 12}, {place: 12}, first, NOW + 5) == {}


def test_a_transaction_stands_since_it_began_where_kafka_knows() -> None:
    known, gone, unknown = ("a", 0), ("a", 1), ("b", 0)
    found = dict.fromkeys((known, gone, unknown), OpenTransaction(7, NOW))
    holders = {known: Holder("shop-7", NOW - 9), gone: Holder("producer id 4", None)}
    assert held(found, holders) == {
        known: OpenTransaction(7, NOW - 9, "shop-7"),
        gone: OpenTransaction(7, NOW, "producer id 4"),
        unknown: OpenTransaction(7, NOW),
    }


def test_a_batch_takes_its_share_of_each_partition_and_one_offset_at_least() -> None:
    position = {("a", 0): 100, ("b", 0): 0, ("c", 0): 5}
    ends = {("a", 0): 1_100, ("b", 0): 1, ("c", 0): 5, ("new", 3): 3}
    assert plan(position, ends, 2_000) == {("a", 0): (100, 1_100), ("b", 0): (0, 1), ("new", 3): (0, 3)}
    cut = plan(position, ends, 100)
    assert cut == {("a", 0): (100, 199), ("b", 0): (0, 1), ("new", 3): (0, 1)}
    assert advanced(position, cut) == {("a", 0): 199, ("b", 0): 1, ("c", 0): 5, ("new", 3): 1}


def test_many_batches_read_everything_once() -> None:
    position: dict[tuple[str, int], int] = {}
    ends = {("a", 0): 1_003, ("a", 1): 17, ("b", 0): 1}
    seen = []
    while spans := plan(position, ends, 50):
        assert sum(end - start for start, end in spans.values()) <= 50 + len(ends)
        seen += [(place, offset) for place, span in spans.items() for offset in range(*span)]
        position = advanced(position, spans)
    assert len(seen) == len(set(seen)) == sum(ends.values())


def test_a_step_is_read_as_it_was_written() -> None:
    place = ("outbox.half", 1)
    step = CountedBatch(
        3,
        NOW,
        {"outbox.half": "id"},
        {place: 7},
        NOW - 1,
        {place: OpenTransaction(5, NOW)},
        {"A/b": NOW},
        {"shop": {"halves": 1}},
    )
    assert CountedBatch.parse(step.encode()) == step


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 1}', '{"format": 2}'])
def test_what_is_no_step_is_refused(text: str) -> None:
    with pytest.raises(OutputError):
        CountedBatch.parse(text)


def test_totals_add_up() -> None:
    once = added({}, {"shop": {"halves": 2, "checks": 0}})
    assert added(once, {"shop": {"halves": 1, "discarded/X": 1}, "": {"halves": 1}}) == {
        "shop": {"halves": 3, "discarded/X": 1},
        "": {"halves": 1},
    }


def samples(file: Path) -> dict[tuple[str, frozenset[str]], float]:
    families = text_string_to_metric_families(file.read_text())
    return {(one.name, frozenset(one.labels.values())): one.value for family in families for one in family.samples}


def test_the_file_for_prometheus_shows_the_last_look_only(tmp_path: Path) -> None:
    file = tmp_path / "outbox.prom"
    totals = {"shop": {"halves": 5, "checks": 2, "discarded/TOO_LARGE": 1}}
    look = ChannelStatus(
        NOW,
        [Waiting("shop", UNDECIDED, 600, 2, NOW - 90_000), Waiting("shop", UNDECIDED, None, 1, NOW - 95_000)],
        [Recent("shop", quantiles={"half_to_op": [1, 2, 3], "half_to_visible": None})],
        [Partition("orders", 0, 12, 10, 4_000), Partition("outbox.half", 0, 9, 9, 0, relay_lag=3, relay_lag_ms=1_500)],
    )
    write_metrics(file, look, totals, 4)
    expected: dict[tuple[str, ...], float] = {
        ("messages_total", "shop", "halves"): 5,
        ("check_requests_total", "shop"): 2,
        ("discarded_messages_total", "shop", "TOO_LARGE"): 1,
        ("waiting", "shop", UNDECIDED, "600"): 2,
        ("waiting", "shop", UNDECIDED, "+Inf"): 1,
        ("oldest_seconds", "shop", UNDECIDED): 95,
        ("latency_seconds", "shop", "half_to_op", "0.99"): 0.003,
        ("standing_seconds", "orders", "0"): 4,
        ("held_back", "orders", "0"): 2,
        ("relay_lag_seconds", "0"): 1.5,
        ("behind",): 4,
    }
    found = samples(file)
    assert {(name, *labels): found[f"outbox_watch_{name}", frozenset(labels)] for name, *labels in expected} == expected
    write_metrics(file, ChannelStatus(NOW + 1), totals, 0)
    found = samples(file)
    assert found["outbox_watch_messages_total", frozenset(("shop", "halves"))] == 5
    assert not any(name.startswith(("outbox_watch_waiting", "outbox_watch_standing")) for name, _ in found)
    assert [path.name for path in tmp_path.iterdir()] == ["outbox.prom"]


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"outbox\.prom cannot be written"):
        write_metrics(tmp_path / "absent" / "outbox.prom", ChannelStatus(NOW), {}, 0)


def settings(**given: Any) -> WatchSettings:
    return WatchSettings(**{"bootstrap_servers": "kafka:9092", "output": "figures", "topics": "orders", **given})


def test_names_of_topics_are_those_that_the_job_needs() -> None:
    internal = ("outbox.half", "outbox.op", "outbox.verdict", "outbox.check", "outbox.discard")
    assert settings().topic_names() == (*internal, "orders")
    assert settings(alerts_topic="alerts").topic_names() == (*internal, "orders", "alerts")
    made = settings(output="", real_time=True, alerts_topic="alerts", checkpoint="checkpoints/")
    assert made.topic_names() == ("outbox.check", "outbox.discard", "alerts")
    assert made.checkpoint_path == "checkpoints/watch"


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"output": ""}, "folder of the tables"),
        ({"real_time": True}, "needs alerts_topic and checkpoint"),
        ({"real_time": True, "alerts_topic": "a", "checkpoint": "c", "available_now": True}, "goes on until"),
        ({"real_time": True, "alerts_topic": "a", "checkpoint": "c", "trigger_seconds": 1}, "5 at least"),
        ({"alerts_topic": "a b"}, "not a name"),
        ({"alerts_topic": "outbox.op"}, "the channel's own"),
        ({"topics": "orders,outbox.half"}, "the channel's own"),
        ({"alerts_topic": "orders"}, "topics that are watched"),
    ],
)
def test_what_does_not_go_together_is_refused(given: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValidationError, match=complaint):
        settings(**given)
