"""The peers of the benchmarks: their locks and settings, how drains are counted, and what becomes of one that fails."""

import json
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import pytest

from benchmarks.draining import check_each_once, drain_of
from benchmarks.peers.contest import Peers, compete
from benchmarks.peers.debezium_settings import (
    DEFAULT,
    TUNED,
    connector_properties,
)
from benchmarks.peers.jars import CONNECT_LOCK, DEBEZIUM_LOCK, ROCKETMQ_LOCK, peer_versions
from benchmarks.peers.jvm import PeerError
from benchmarks.peers.latency import _unless_too_slow
from benchmarks.reading import Arrival, Reading, first_new, first_times
from benchmarks.steady import Steady
from outbox._jars.lock_file import read_lock
from stack.servers import KAFKA_LOCK, all_locks


class Failing(AbstractContextManager[str]):
    def __init__(self, error: Exception) -> None:
        self._error = error

    def __enter__(self) -> str:
        raise self._error

    def __exit__(self, *_: object) -> None:
        """Is never reached."""


POSTGRES = "postgresql://outbox:secret@127.0.0.1:20001/outbox"


@pytest.mark.parametrize("lock", [ROCKETMQ_LOCK, CONNECT_LOCK, DEBEZIUM_LOCK])
def test_every_jar_of_a_peer_has_its_checksum_and_setup_does_not_fetch_it(lock: Path) -> None:
    content = read_lock(lock)
    assert set(content.roots) <= set(content.sha256)
    assert lock not in all_locks()


def test_connect_is_of_the_brokers_version() -> None:
    assert peer_versions()["Kafka Connect"] == read_lock(KAFKA_LOCK).roots[0].version


def test_debezium_as_it_comes_is_not_tuned_and_tuned_is() -> None:
    default, tuned = (connector_properties(variant, POSTGRES) for variant in (DEFAULT, TUNED))
    assert "poll.interval.ms" not in default
    assert tuned["poll.interval.ms"] == 10
    assert not [name for name in default if name.startswith("producer.override")]
    assert (tuned["slot.name"], tuned["table.include.list"]) == ("debezium_tuned", "public.debezium_tuned")
    assert (default["database.port"], default["database.password"]) == ("20001", "secret")


def test_a_drain_is_counted_from_the_first_look_without_control_records() -> None:
    drain = drain_of([(11.0, 110), (12.0, 600), (13.0, 1_100)], messages=1_000, start=10.0)
    assert (drain.per_second, drain.to_first) == (450, 1)


def test_a_drain_that_one_look_saw_is_counted_from_the_start() -> None:
    assert drain_of([(12.0, 1_000)], messages=1_000, start=10.0).per_second == 500


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ([b"a", b"b"], "of 3 messages 1 are missing, and 0 came again"),
        ([b"a", b"b", b"b"], "of 3 messages 1 are missing, and 1 came again"),
        ([b"a", b"b", b"c", b"a"], "of 3 messages 0 are missing, and 1 came again"),
    ],
)
def test_a_drain_that_lost_or_doubled_is_no_drain(keys: list[bytes], said: str) -> None:
    check_each_once([b"a", b"b", b"c"], 3)
    with pytest.raises(AssertionError, match=said):
        check_each_once(keys, 3)


def test_what_comes_again_does_not_move_the_first_time(tmp_path: Path) -> None:
    path = tmp_path / "seen"
    reading = Reading(path)
    assert not reading.began()
    path.write_text("\na 10 0 5\nb 11 1 6\na 12 0 7\nc 1")
    assert reading.began()
    assert first_times(reading.arrivals()) == {"a": 10, "b": 11}
    with path.open("a") as file:
        file.write("3 0 8\n")
    assert first_times(reading.arrivals()) == {"a": 10, "b": 11, "c": 13}
    assert reading.arrivals()[-1] == Arrival("c", 13, 0, 8)
    assert len(reading.arrivals()) == 4


def test_it_goes_on_with_the_first_message_that_nobody_had_seen() -> None:
    seen = [Arrival("a", 10, 0, 0), Arrival("b", 20, 1, 0)]  # the second one was visible at the death, and read later
    again = [Arrival("a", 30, 0, 2), Arrival("b", 31, 1, 2)]
    new = [Arrival("d", 41, 1, 3), Arrival("c", 40, 0, 3)]
    assert first_new([*seen, *again], {0: 1, 1: 1}) is None  # with the abort of what was open, nothing has gone on
    assert first_new([*seen, *again, *new], {0: 1, 1: 1}) == new[1]


def test_a_peer_that_cannot_start_is_told_of_with_its_reason() -> None:
    with ExitStack() as running:
        peers = Peers(running)
        assert peers.start("rocketmq", Failing(PeerError("broker ended (1)\nthe log says more"))) is None
        found = compete({"ours": lambda: 2.0}, {}, peers, 3)
    figure = found.figure("x", "what is fast", "ms", ("ours", "rocketmq"), float)
    record = figure.record()
    assert (record["ours"], record["runs"], record["baseline"], record["baseline_value"]) == (2, 3, "RocketMQ", None)
    assert record["not_measured"] == "PeerError: broker ended (1)"


def test_a_peer_that_fails_once_drops_out_and_the_others_go_on() -> None:
    with ExitStack() as running:
        peers = Peers(running)
        found = compete(
            {"ours": lambda: 1.0}, {"polling": lambda: 2.0, "rocketmq": _failing_the_second_time()}, peers, 3
        )
    assert found.found == {"ours": [1.0] * 3, "polling": [2.0] * 3}
    assert found.reasons == {"rocketmq": "TimeoutError: nothing came"}


def test_peer_that_does_not_settle_is_left_out() -> None:
    """What it leaves is removed, so that it does not disturb the others."""
    done: list[str] = []

    def rests() -> None:
        raise AssertionError("not within 120 s: the polling relay has not emptied its table")

    with ExitStack() as running:
        peers = Peers(running, cleared={"polling": lambda: done.append("cleared")})
        rest = {"ours": lambda: done.append("ours"), "polling": rests}
        found = compete({"ours": lambda: 1.0}, {"polling": lambda: 2.0}, peers, 3, rest)
    assert found.found == {"ours": [1.0] * 3}
    assert found.reasons["polling"].endswith("the polling relay has not emptied its table")
    assert done == ["ours", "cleared", "ours", "ours"]


def test_a_peer_that_says_nonsense_or_fails_to_warm_up_drops_out() -> None:
    with ExitStack() as running:
        peers = Peers(running, ["debezium_tuned"])
        peers.warm("rocketmq", lambda: json.loads("nonsense"))
        peers.warm("debezium_tuned", lambda: 1 / 0)
    assert peers.reasons["rocketmq"].startswith("JSONDecodeError")
    assert peers.reasons["debezium_tuned"] == "left out of this run"


def _failing_the_second_time() -> Callable[[], float]:
    runs: list[int] = []

    def run() -> float:
        runs.append(1)
        if len(runs) > 1:
            raise TimeoutError("nothing came")
        return 3.0

    return run


def test_ours_may_not_fail() -> None:
    def fails() -> float:
        raise TimeoutError

    with ExitStack() as running, pytest.raises(TimeoutError):
        compete({"ours": fails}, {}, Peers(running), 3)


def test_a_peer_that_is_left_out_is_not_started() -> None:
    with ExitStack() as running:
        peers = Peers(running, ["rocketmq"])
        assert peers.start("rocketmq", Failing(KeyError("it was started"))) is None
    assert peers.reasons == {"rocketmq": "left out of this run"}


def test_an_application_that_did_not_reach_the_rate_was_not_measured_at_it() -> None:
    with ExitStack() as running:
        runs = {"exactly_once": lambda: Steady([1.0, 2.0], 1_990.0)}
        slow = {"polling": lambda: Steady([1.0, 2.0], 850.0)}
        found = _unless_too_slow(compete(runs, slow, Peers(running), 3), 2_000)
    assert (len(found.found["exactly_once"]), found.found["polling"]) == (3, [])
    assert found.reasons["polling"] == "the application reached 850 of 2,000 transactions/s"
