"""The writer of one lane on a real Kafka: killed, asleep or in doubt, it leaves each record once and in order."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from outbox._kafka.admin import end_offset
from outbox._service.exit_codes import Exit, UnsafeError
from outbox.protocol.record import Record
from spark_jobs.replaying import lane_writer
from spark_jobs.replaying import progress_log as ledger
from spark_jobs.replaying.kafka_transaction import KafkaTransaction, TransactionFailedError
from spark_jobs.replaying.lane_writer import LaneWriter
from spark_jobs.replaying.plan import LandedPlace, Lane, advanced
from spark_jobs.replaying.progress_log import Ledger, lane_key, make_ledger
from spark_jobs.runtime.errors import JobFailedError
from tests.support.harness import Service, Site, wait_until
from tests.support.servers import Servers
from tests.support.writing_lanes import REPLAY_ID, landed_records, replay_of, write

RECORDS = 10
WANTED = [b"%d" % offset for offset in range(RECORDS)]


@pytest.fixture(scope="module")
def shared(servers: Servers) -> Iterator[Site]:
    """A site whose tests have replays of their own: they write to topics of their own."""
    with Site(servers.bootstrap_servers, servers.postgres_url) as made:
        yield made


@pytest.fixture
def topic(shared: Site, request: pytest.FixtureRequest) -> str:
    """The target of one test; its lane has it in its name, and so no other test's progress."""
    number = abs(hash(request.node.nodeid)) % 10**12
    shared.create_topics(f"t{number}")
    make_ledger(shared.kafka(), shared.channel, 1)
    return shared.topic(f"t{number}")


def visible(site: Site, topic: str) -> list[bytes | None]:
    return [record.value for record in site.read(topic.removeprefix(f"{site.name}."))]


def start(site: Site, topic: str, failpoint: str = "") -> Service:
    arguments = (site.bootstrap_servers, site.name, topic, str(RECORDS))
    return site.start_module("tests.support.writing_lanes", *arguments, failpoint=failpoint)


# After the first of them the next run waits half a minute for the end of what was written.
LATER = [
    pytest.param(place, marks=pytest.mark.long)
    for place in ("ledger_written:1", "produced:1", "committed:1", "committed:4")
]


@pytest.mark.parametrize("failpoint", ["flushed:1", "flushed:3", *LATER])
@pytest.mark.long
def test_killed_anywhere_each_record_is_there_once_and_in_order(shared: Site, topic: str, failpoint: str) -> None:
    assert start(shared, topic, f"replay.{failpoint}").wait() == -signal.SIGKILL
    assert len(visible(shared, topic)) < RECORDS or failpoint == "committed:4"
    again = start(shared, topic)
    assert again.wait() == Exit.OK, again.output()
    assert visible(shared, topic) == WANTED
    assert write(shared, topic, landed_records(RECORDS)) == 0
    assert visible(shared, topic) == WANTED


def test_one_that_was_asleep_is_fenced_and_writes_no_more(shared: Site, topic: str) -> None:
    asleep = start(shared, topic, "replay.flushed:2:stop")
    wait_until(lambda: "State:\tT" in _status(asleep))
    assert write(shared, topic, landed_records(RECORDS)) == RECORDS - 3
    asleep.process.send_signal(signal.SIGCONT)
    assert asleep.wait() == Exit.FAILED
    assert "Another process writes replay again" in asleep.output()
    assert visible(shared, topic) == WANTED


def _status(service: Service) -> str:
    with open(f"/proc/{service.process.pid}/status", encoding="utf-8") as file:  # noqa: PTH123 - not a file of ours
        return file.read()


@pytest.mark.long
@pytest.mark.parametrize("outcome", ["committed", "aborted"])
def test_a_commit_in_doubt_is_looked_up(
    shared: Site, topic: str, outcome: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit, failures = KafkaTransaction.commit, iter([True])

    def in_doubt(transaction: KafkaTransaction) -> None:
        fails = next(failures, False)
        if outcome == "committed" or not fails:
            commit(transaction)
        if fails:
            raise TransactionFailedError("no answer")

    monkeypatch.setattr(KafkaTransaction, "commit", in_doubt)
    assert write(shared, topic, landed_records(RECORDS)) == RECORDS
    assert visible(shared, topic) == WANTED


def test_what_another_has_written_before_the_take_over_is_left_out(
    shared: Site, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    others, take_over = iter([True]), KafkaTransaction.__init__

    def taking_over(made: KafkaTransaction, *arguments: Any) -> None:
        if next(others, False):  # another process is faster
            assert write(shared, topic, landed_records(RECORDS)) == RECORDS
        take_over(made, *arguments)

    monkeypatch.setattr(KafkaTransaction, "__init__", taking_over)
    write(shared, topic, landed_records(RECORDS))
    assert visible(shared, topic) == WANTED


def test_progress_of_a_lane_behind_an_open_transaction_is_waited_for(
    shared: Site, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = landed_records(RECORDS)
    replay, lane = replay_of(shared.bootstrap_servers, shared.name, topic, records), Lane(topic, 0)
    writer = LaneWriter(replay, lane, Ledger(replay.kafka, replay.channel, replay.id))
    ledger_topic = shared.channel.replay_ledger_topic
    other = Record(
        ledger_topic, 0, lane_key("other", lane), advanced(None, [(LandedPlace("x", 0, 0), 1)]).encode(), [], 1
    )
    with KafkaTransaction(replay.kafka, f"{topic}-other") as open_one:
        open_one.begin()
        open_one.write([other])
        _commit_beside(writer, records)
        looks = iter([False, True])

        def looking(admin: AdminClient, name: str, partition: int, *, stable: bool = False) -> int | None:
            if stable and next(looks, False):
                open_one.commit()
            return end_offset(admin, name, partition, stable=stable)

        monkeypatch.setattr(ledger, "end_offset", looking)
        assert write(shared, topic, records) == 0
    assert visible(shared, topic) == WANTED


def _commit_beside(writer: Any, records: Any) -> None:
    """Write all in one transaction, without a look at the ledger, which would wait."""
    progress = advanced(None, [(record.place, record.hashed) for record in records])
    with KafkaTransaction(writer._replay.kafka, writer._transactional_id) as transaction:
        transaction.begin()
        transaction.write([*map(writer._outgoing, records), writer._entry(progress)])
        transaction.commit()


def test_an_open_transaction_that_nobody_ends_is_named(
    shared: Site, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger, "_PATIENCE_SECONDS", 0.1)
    progress = advanced(None, [(LandedPlace("x", 0, 0), 1)])
    entry = Record(shared.channel.replay_ledger_topic, 0, lane_key("other", Lane(topic, 0)), progress.encode(), [], 1)
    with KafkaTransaction(shared.kafka(), f"{topic}-other") as open_one:
        open_one.begin()
        open_one.write([entry])
        with pytest.raises(UnsafeError, match="A Kafka transaction stays open"):
            write(shared, topic, landed_records(1))
        open_one.commit()  # the tests share the ledger
    assert visible(shared, topic) == []


def test_what_hangs_on_the_target_is_ended_before_anything_is_written(
    shared: Site, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be of this lane: its records would come with the next commit, and be there twice (KAFKA-20734)."""
    monkeypatch.setattr(ledger, "_PATIENCE_SECONDS", 0.1)
    with KafkaTransaction(shared.kafka(), f"{topic}-other") as open_one:
        open_one.begin()
        open_one.write([Record(topic, 0, b"key", b"hangs", [], 1)])
        with pytest.raises(UnsafeError, match=f"A Kafka transaction stays open in {topic}"):
            write(shared, topic, landed_records(1))
        open_one.commit()
    assert write(shared, topic, landed_records(1)) == 1


def test_records_that_are_not_those_of_the_plan_fail_the_replay(shared: Site, topic: str) -> None:
    planned, found = landed_records(RECORDS), landed_records(RECORDS - 1)
    replay = replay_of(shared.bootstrap_servers, shared.name, topic, planned)
    with (
        Ledger(replay.kafka, replay.channel, REPLAY_ID) as opened,
        pytest.raises(JobFailedError, match=r"has written 9 records .* and its plan has 10"),
    ):
        LaneWriter(replay, Lane(topic, 0), opened).write(found)


def test_record_that_kafka_refuses_aborts_its_transaction(
    shared: Site, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the record, and no other record of its Kafka transaction is visible."""
    monkeypatch.setattr(lane_writer, "PAUSE_SECONDS", 0.0)
    records = [*landed_records(2), landed_records(1, 2)[0]._replace(value=bytes(2_000_000))]
    with pytest.raises(JobFailedError, match="MSG_SIZE_TOO_LARGE"):
        write(shared, topic, records)
    assert visible(shared, topic) == []
