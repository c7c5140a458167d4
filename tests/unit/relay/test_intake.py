"""What the consumer hands over reaches a worker without holes: librdkafka may lose what it had fetched."""

from collections.abc import Sequence
from typing import Any, cast
from unittest.mock import MagicMock, Mock

import pytest
from confluent_kafka import KafkaError, TopicPartition

from outbox._kafka.channel import ChannelDescription
from outbox._service.membership import MemberFenced
from outbox.protocol.names import Channel
from relay.half.serving.intake import ARRIVALS, Arrivals, Intake, LogEnds

HALF, OP, VERDICT = "outbox.half", "outbox.op", "outbox.verdict"


class _Record:
    def __init__(self, topic: str, offset: int, error: KafkaError | None = None) -> None:
        self.place, self._error = (topic, offset), error

    def topic(self) -> str:
        return self.place[0]

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self.place[1]

    def error(self) -> KafkaError | None:
        return self._error


class _Consumer:
    """Notes where it was told to read again, and lies about no end."""

    def __init__(self) -> None:
        self.sought: list[tuple[str, int]] = []
        self.paused: set[str] = set()
        self.end = 0

    def seek(self, place: TopicPartition) -> None:
        self.sought.append((place.topic, place.offset))

    def pause(self, places: Sequence[TopicPartition]) -> None:
        self.paused |= {place.topic for place in places}

    def resume(self, places: Sequence[TopicPartition]) -> None:
        self.paused -= {place.topic for place in places}

    def get_watermark_offsets(self, _place: TopicPartition, _timeout: float) -> tuple[int, int]:
        return 0, self.end


class _Worker:
    def __init__(self) -> None:
        self.fed: list[tuple[str, int]] = []
        self.waiting = (0, 0, 0)

    def sizes(self) -> tuple[int, int, int]:
        return self.waiting

    def feed(self, halves: Sequence[_Record], ops: Sequence[_Record], verdicts: Sequence[_Record]) -> None:
        self.fed += [record.place for record in (*halves, *ops, *verdicts)]


class _Desk:
    """An intake that reads one partition number from offset 10, of halves, ops and verdicts."""

    def __init__(self) -> None:
        self.consumer, self.worker = _Consumer(), _Worker()
        description = cast("ChannelDescription", _Description())
        self.intake = Intake(cast("Any", self.consumer), description, lambda: None)
        self.intake.start_at(0, [10, 10, 10])

    def hand_over(self, *records: _Record) -> None:
        self.intake.hand_over(cast("Any", records), {0: cast("Arrivals", self.worker)})

    def throttle(self, halves: int, ops: int, verdicts: int = 0) -> set[str]:
        self.worker.waiting = (halves, ops, verdicts)
        self.intake.throttle({0: cast("Arrivals", self.worker)})
        return set(self.consumer.paused)


class _Description:
    class half:  # noqa: N801 - an attribute
        name = HALF

    class op:  # noqa: N801 - an attribute
        name = OP

    class verdict:  # noqa: N801 - an attribute
        name = VERDICT

    channel = Channel("outbox")


def _records(topic: str, *offsets: int) -> list[_Record]:
    return [_Record(topic, offset) for offset in offsets]


def _end(topic: str, offset: int) -> _Record:
    return _Record(topic, offset, KafkaError(KafkaError._PARTITION_EOF))


@pytest.mark.parametrize("topic", [HALF, OP])
def test_what_follows_on_is_handed_over(topic: str) -> None:
    desk = _Desk()
    desk.hand_over(*_records(topic, 10, 11), _end(topic, 12))
    desk.hand_over(*_records(topic, 12))
    assert desk.worker.fed == [(topic, 10), (topic, 11), (topic, 12)]
    assert desk.consumer.sought == []


@pytest.mark.parametrize("topic", [HALF, OP])
@pytest.mark.parametrize("offsets", [(15, 16), (10, 12)])
def test_a_gap_is_read_again_and_believed_if_it_is_there_again(topic: str, offsets: tuple[int, ...]) -> None:
    desk = _Desk()
    desk.hand_over(*_records(topic, *offsets))
    assert (desk.worker.fed, desk.consumer.sought) == ([], [(topic, 10)])
    desk.hand_over(*_records(topic, *offsets))
    assert desk.worker.fed == [(topic, offset) for offset in offsets]
    assert desk.consumer.sought == [(topic, 10)]


@pytest.mark.parametrize("topic", [HALF, OP])
def test_an_end_behind_what_was_handed_over_is_read_up_to_again(topic: str) -> None:
    desk = _Desk()
    desk.hand_over(_end(topic, 12))
    assert desk.consumer.sought == [(topic, 10)]
    desk.hand_over(*_records(topic, 10, 11), _end(topic, 12))
    assert desk.worker.fed == [(topic, 10), (topic, 11)]
    assert desk.consumer.sought == [(topic, 10)]


def test_an_early_end_never_makes_a_gap_of_halves_believed() -> None:
    desk = _Desk()
    for _ in range(3):
        desk.hand_over(_end(HALF, 15))
    desk.hand_over(*_records(HALF, 15))
    assert desk.worker.fed == []
    assert desk.consumer.sought == [(HALF, 10), (HALF, 10)]


@pytest.mark.parametrize(("topic", "verdict"), [(OP, False), (VERDICT, True)])
def test_ops_end_where_they_end_twice(topic: str, *, verdict: bool) -> None:
    """What is not there at the second look is none of ours, and nobody waits for it."""
    desk = _Desk()
    desk.consumer.end = 12
    desk.hand_over(_end(topic, 12))
    assert not desk.intake.is_at_op_end(0, verdict=verdict)
    desk.hand_over(_end(topic, 12))
    assert desk.intake.is_at_op_end(0, verdict=verdict)
    assert not desk.intake.is_at_op_end(0, verdict=not verdict)


def test_a_gap_that_a_former_worker_saw_is_looked_at_twice_by_the_next() -> None:
    desk = _Desk()
    desk.hand_over(*_records(HALF, 15))
    desk.intake.start_at(0, [10, 10, 10])
    desk.hand_over(*_records(HALF, 15))
    assert desk.worker.fed == []
    assert desk.consumer.sought == [(HALF, 10), (HALF, 10)]


def test_a_full_inbox_pauses_its_partition_until_half_of_it_is_done() -> None:
    desk = _Desk()
    assert desk.throttle(ARRIVALS - 1, 0) == set()
    assert desk.throttle(ARRIVALS, 0) == {HALF}
    assert desk.throttle(ARRIVALS // 2 + 1, ARRIVALS) == {HALF, OP}
    assert desk.throttle(ARRIVALS // 2, ARRIVALS // 2 + 1) == {OP}
    assert desk.throttle(0, 0) == set()
    assert desk.throttle(0, 0, ARRIVALS) == {VERDICT}


def test_what_belongs_to_nobody_is_left_alone() -> None:
    desk = _Desk()
    desk.intake.hand_over(cast("Any", [*_records(HALF, 99), _end(OP, 99)]), {})
    assert desk.consumer.sought == []


def _unpackable(offset: int) -> _Record:
    return _Record(HALF, offset, KafkaError(KafkaError._BAD_COMPRESSION, "Decompression failed"))


def test_a_consumer_whose_name_another_process_has_is_of_no_further_use() -> None:
    with pytest.raises(MemberFenced, match="fenced"):
        _Desk().hand_over(_Record(HALF, 0, KafkaError(KafkaError._FATAL, "fenced")))


def test_record_that_cannot_be_unpacked_is_named() -> None:
    """Its batch may begin below what is read next."""
    desk = _Desk()
    desk.hand_over(*_records(HALF, 10, 11), _unpackable(10))
    assert {place: found.offset for place, found in desk.intake.unreadable().items()} == {(HALF, 0): 12}
    desk.hand_over(*_records(HALF, 12))
    assert desk.intake.unreadable() == {}


def test_record_that_is_passed_by_leaves_an_empty_one() -> None:
    desk, worker = _Desk(), Mock(spec=Arrivals)
    desk.hand_over(_unpackable(10))
    desk.intake.pass_by((HALF, 0), 10, worker)
    ((record,), *others), _ = worker.feed.call_args
    assert (record.offset(), record.value(), others) == (10, None, [[], []])
    assert (desk.consumer.sought, desk.intake.unreadable()) == ([(HALF, 11)], {})


def test_intake_is_behind_until_all_records_are_handed_over() -> None:
    desk, ends = _Desk(), {HALF: 10, OP: 10, VERDICT: 10}

    def is_behind() -> bool:
        return desk.intake.is_behind(0, lambda topic, _partition: ends[topic])

    assert not is_behind()
    ends[OP] = 12
    assert is_behind()
    desk.hand_over(*_records(OP, 10, 11))
    assert not is_behind()
    ends[VERDICT] = 11
    assert is_behind()


def test_intake_is_not_behind_an_aborted_transaction() -> None:
    """Its records and its marker have offsets, and a second look shows none of them."""
    desk = _Desk()
    desk.hand_over(_end(HALF, 13))
    assert desk.intake.is_behind(0, lambda _topic, _partition: 13)
    desk.hand_over(_end(HALF, 13))
    assert not desk.intake.is_behind(0, lambda topic, _partition: 13 if topic == HALF else 10)


def test_a_kafka_that_answers_nothing_is_a_reason_not_to_be_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[dict[str, tuple[int, ...]]] = [{"half": (7,)}, {}, {}, {"half": (8,)}]
    now = [100.0]
    monkeypatch.setattr("relay.half.serving.intake.end_offsets", lambda *_: answers.pop(0))
    monkeypatch.setattr("relay.half.serving.intake.time.monotonic", lambda: now[0])
    admin: Any = MagicMock()
    ends, seen = LogEnds(admin, {"half": 1, "op": 1}), []
    while answers:
        ends._look()
        now[0] += 10
        seen.append(ends.not_ready())
    assert seen == [None, "Kafka has not answered for 10 s", "Kafka has not answered for 20 s", None]
    assert ends.of("half", 0) == 8
