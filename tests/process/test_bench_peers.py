"""The peers of the benchmarks: their locks and settings, how drains are counted, and what becomes of one that fails."""

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import pytest

from benchmarks.draining import check_each_once, drain_of
from benchmarks.peers.contest import Peers, compete
from benchmarks.peers.debezium_settings import DEFAULT, TUNED, connector_properties
from benchmarks.peers.jars import CONNECT_LOCK, DEBEZIUM_LOCK, ROCKETMQ_LOCK
from benchmarks.peers.jvm import PeerError
from outbox._jars.lock_file import read_lock
from stack.servers import all_locks


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
