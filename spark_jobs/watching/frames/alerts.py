"""Alerts: what is wrong by a look and its thresholds, and what of it is news. Pure.

An alert has a stable key, which begins with the channel, so a compacted topic shows the last word on each. It is sent
when it begins and when it is over; after a crash it may be sent again, with the same key and the same `since`.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from spark_jobs.watching.frames.channel_status import ChannelStatus, Recent
from spark_jobs.watching.frames.messages import UNDECIDED, UNDELIVERED
from spark_jobs.watching.frames.per_minute import QUANTILES

FORMAT_VERSION = 1

FIRING, RESOLVED = "firing", "resolved"

ALERTS_SCHEMA = "key string, value string"
"""Alerts as Spark's Kafka sink takes them."""


class AlertKind(enum.StrEnum):
    """What is wrong."""

    DANGLING = "DANGLING"
    UNDELIVERED = "UNDELIVERED"
    DISCARDED = "DISCARDED"
    CHECKED_OFTEN = "CHECKED_OFTEN"
    SLOW = "SLOW"
    HUNG_TRANSACTION = "HUNG_TRANSACTION"
    RELAY_BEHIND = "RELAY_BEHIND"


AGED = frozenset({AlertKind.DANGLING, AlertKind.UNDELIVERED})
"""Kinds that only a job without lag can find."""


@dataclass(frozen=True, slots=True)
class Thresholds:
    """From when on something is wrong.

    Args:
        dangling_ms: Age of an undecided half.
        undelivered_ms: Age of a committed one that is not visible.
        hung_ms: Time for which an open transaction keeps readers back.
        relay_lag_ms: Age of a half that the relay has not read.
        check_percent: Check requests for a hundred halves, over the last minutes.
        slow_ms: 99th percentile from half to visible, over the last minutes; 0: never.
    """

    dangling_ms: int
    undelivered_ms: int
    hung_ms: int
    relay_lag_ms: int
    check_percent: int
    slow_ms: int


@dataclass(frozen=True, slots=True)
class Alert:
    """Something that is wrong.

    Args:
        kind: What.
        subject: Of what: a producer group, or a topic and partition.
        since_ms: Since when, ms since 1970.
        value: The figure.
        threshold: Its bound.
        detail: One sentence for people.
    """

    kind: AlertKind
    subject: str
    since_ms: int
    value: int
    threshold: int
    detail: str

    @property
    def key(self) -> str:
        """Its name in its channel, at each sending."""
        return f"{self.kind}/{self.subject}"


def alerts(look: ChannelStatus, limits: Thresholds) -> list[Alert]:
    """All that is wrong."""
    return [*_waiting(look, limits), *_recent(look, limits), *_partitions(look, limits)]


def _waiting(look: ChannelStatus, limits: Thresholds) -> Iterator[Alert]:
    if look.until_ms is None:
        return
    bounds = {
        UNDECIDED: (AlertKind.DANGLING, limits.dangling_ms, "its oldest half is not decided"),
        UNDELIVERED: (AlertKind.UNDELIVERED, limits.undelivered_ms, "its oldest committed half is not visible"),
    }
    for state, (kind, bound, detail) in bounds.items():
        for group, oldest in look.oldest(state).items():
            if (age := look.until_ms - oldest) > bound:
                yield Alert(kind, group or "", oldest + bound, age, bound, f"{detail} after {age // 1_000} s")


def _recent(look: ChannelStatus, limits: Thresholds) -> Iterator[Alert]:
    for one in look.recent:
        group, undeliverable = one.group or "", one.undeliverable
        if undeliverable:
            told = ", ".join(f"{count} {reason}" for reason, count in sorted(undeliverable.items()))
            messages = sum(undeliverable.values())
            yield Alert(AlertKind.DISCARDED, group, look.at_ms, messages, 0, f"messages were discarded: {told}")
        if one.checks * 100 > limits.check_percent * max(one.halves, 1):
            detail = f"{one.checks} check requests for {one.halves} halves"
            percent = one.checks * 100 // max(one.halves, 1)
            yield Alert(AlertKind.CHECKED_OFTEN, group, look.at_ms, percent, limits.check_percent, detail)
        if limits.slow_ms and (slowest := _slowest(one)) > limits.slow_ms:
            detail = f"one message in a hundred took {slowest} ms or more to become visible"
            yield Alert(AlertKind.SLOW, group, look.at_ms, slowest, limits.slow_ms, detail)


def _slowest(one: Recent) -> int:
    values = one.quantiles.get("half_to_visible")
    return values[QUANTILES.index(0.99)] if values else 0


def _partitions(look: ChannelStatus, limits: Thresholds) -> Iterator[Alert]:
    for one in look.partitions:
        place = f"{one.topic}/{one.number}"
        if one.standing_ms > limits.hung_ms:
            since = look.at_ms - one.standing_ms
            whose = f" of {one.holder}" if one.holder else ""
            detail = f"a Kafka transaction{whose} is open at offset {one.stable} and keeps back {one.held_back} offsets"
            yield Alert(AlertKind.HUNG_TRANSACTION, place, since, one.standing_ms, limits.hung_ms, detail)
        if one.relay_lag_ms and one.relay_lag_ms > limits.relay_lag_ms:
            since = look.at_ms - one.relay_lag_ms + limits.relay_lag_ms
            detail = f"the relay has not read {one.relay_lag} offsets"
            yield Alert(AlertKind.RELAY_BEHIND, place, since, one.relay_lag_ms, limits.relay_lag_ms, detail)


@dataclass(frozen=True, slots=True)
class NewAlerts:
    """What is to be sent.

    Args:
        firing: All that is wrong: key and since when, ms since 1970.
        records: Keys and values of the records with what is new of it.
    """

    firing: Mapping[str, int]
    records: tuple[tuple[str, str], ...]


def news(now: list[Alert], before: Mapping[str, int], channel: str, look: ChannelStatus) -> NewAlerts:
    """Return what has begun, and what is over.

    Args:
        now: All that is wrong.
        before: What was wrong at the look before: key and since when. While the job is behind, alerts that it cannot
            judge then neither begin nor end.
        channel: The channel.
        look: The look.
    """
    unknown = AGED if look.until_ms is None else frozenset()
    firing = {key: since for key, since in before.items() if key.partition("/")[0] in unknown}
    firing |= {alert.key: before.get(alert.key, alert.since_ms) for alert in now}
    begun = [(f"{channel}/{alert.key}", _firing(alert, channel)) for alert in now if alert.key not in before]
    over = [
        (f"{channel}/{key}", _resolved(key, since, channel, look.at_ms))
        for key, since in before.items()
        if key not in firing
    ]
    return NewAlerts(firing, (*begun, *over))


def _firing(alert: Alert, channel: str) -> str:
    told = {"value": alert.value, "threshold": alert.threshold, "detail": alert.detail}
    return json.dumps(_record(alert.key, FIRING, channel, alert.since_ms) | told)


def _resolved(key: str, since_ms: int, channel: str, at_ms: int) -> str:
    return json.dumps(_record(key, RESOLVED, channel, since_ms) | {"until_ms": at_ms})


def _record(key: str, state: str, channel: str, since_ms: int) -> dict[str, object]:
    kind, _, subject = key.partition("/")
    return {
        "version": FORMAT_VERSION,
        "alert": kind,
        "state": state,
        "channel": channel,
        "subject": subject,
        "since_ms": since_ms,
    }
