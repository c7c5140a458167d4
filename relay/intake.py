"""The intake: what the consumer hands over, sorted by partition, without holes, and throttled."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

import structlog
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from outbox.channel import ChannelDescription
from relay.partition import PartitionWorker
from relay.restore import outside_the_topic

log = structlog.get_logger()

_TIMEOUT = 2.0


class Intake:
    """Stands between the consumer and the workers; belongs to the consumer's thread.

    Args:
        consumer: The subscribed consumer.
        channel: The channel.
        odd: Called when Kafka says something of the channel's topics that is no record.
    """

    def __init__(self, consumer: Consumer, channel: ChannelDescription, odd: Callable[[], None]) -> None:
        self._consumer = consumer
        self._odd = odd
        self._half_topic = channel.half.name
        self._op_topic = channel.op.name
        self._next_half: dict[int, int] = {}
        self._next_op: dict[int, int] = {}
        self._gaps: dict[int, int] = {}  # partition: offset at which a gap was seen once
        self._paused: set[tuple[str, int]] = set()

    def start_at(self, number: int, half: int, op: int) -> None:
        """Reading of a partition number begins at these offsets."""
        self._next_half[number], self._next_op[number] = half, op

    def hand_over(self, messages: Iterable[Message], workers: Mapping[int, PartitionWorker]) -> None:
        """Feed the workers.

        Raises:
            UnsafeError: A checkpoint lies outside its topic.
            KafkaException: The consumer cannot go on.
        """
        halves: dict[int, list[Message]] = defaultdict(list)
        ops: dict[int, list[Message]] = defaultdict(list)
        for message in messages:
            error = message.error()
            if error is None:
                (halves if message.topic() == self._half_topic else ops)[message.partition() or 0].append(message)
            else:
                self._event(message, error)
        for number in workers.keys() & (halves.keys() | ops.keys()):
            workers[number].feed(self._without_holes(number, halves[number]), ops[number])
            if ops[number]:
                self._next_op[number] = (ops[number][-1].offset() or 0) + 1

    def _without_holes(self, number: int, halves: list[Message]) -> list[Message]:
        """These halves if they follow on what was read before, else none: they are read again.

        The ledger holds every offset that it is not shown for settled, so a hole in what the consumer hands over would
        be a loss. A gap is believed only when a second look shows it again: then the log itself has it.
        """
        if not halves:
            return halves
        expected, first, last = self._next_half[number], halves[0].offset() or 0, halves[-1].offset() or 0
        if (first == expected and last - first + 1 == len(halves)) or self._gaps.get(number) == expected:
            self._next_half[number] = last + 1
            return halves
        log.warning("a gap in the half partition, reading it again", partition=number, expected=expected, found=first)
        self._gaps[number] = expected
        self._consumer.seek(TopicPartition(self._half_topic, number, expected))
        return []

    def _event(self, message: Message, error: KafkaError) -> None:
        if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - librdkafka's own codes carry an underscore
            if message.topic() == self._op_topic:
                self._next_op[message.partition() or 0] = message.offset() or 0
        elif error.code() in {KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE}:  # noqa: SLF001 - as above
            raise outside_the_topic(message.topic() or "", message.partition() or 0)
        elif error.fatal():
            raise KafkaException(error)
        else:
            log.warning("consumer", error=error.str())
            self._odd()

    def is_at_op_end(self, number: int) -> bool:
        """Whether everything that the op partition holds now was handed over."""
        try:
            _, end = self._consumer.get_watermark_offsets(TopicPartition(self._op_topic, number), _TIMEOUT)
        except KafkaException as error:
            log.warning("the end of an op partition cannot be seen", partition=number, error=str(error.args[0]))
            return False
        return end <= self._next_op[number]

    def throttle(self, workers: Mapping[int, PartitionWorker]) -> None:
        """Pause partitions whose worker has a full inbox, resume them when it has room again."""
        for number, worker in workers.items():
            for place, is_full in zip(self._places(number), worker.inbox_full(), strict=True):
                if is_full and place not in self._paused:
                    self._pause([place])
                elif not is_full and place in self._paused:
                    self._resume([place])

    def pause(self, number: int) -> None:
        """Read no more of a partition number that nobody works on."""
        self._pause(self._places(number))

    def assigned(self, partitions: Sequence[TopicPartition], idle: Sequence[TopicPartition]) -> None:
        """The consumer has new partitions, of which some are not worked on.

        For librdkafka a partition that was paused stays so in the next assignment.
        """
        self._resume([(place.topic, place.partition) for place in partitions])
        if idle:
            self._pause([(place.topic, place.partition) for place in idle])

    def read_from(self, committed: Sequence[TopicPartition]) -> None:
        """Go on at the checkpoints of a partition number.

        Raises:
            KafkaException: The consumer cannot seek yet.
        """
        for place in committed:
            self._consumer.seek(TopicPartition(place.topic, place.partition, place.offset))
        self._resume([(place.topic, place.partition) for place in committed])

    def _places(self, number: int) -> list[tuple[str, int]]:
        return [(self._half_topic, number), (self._op_topic, number)]

    def _pause(self, places: Sequence[tuple[str, int]]) -> None:
        self._consumer.pause([TopicPartition(*place) for place in places])
        self._paused.update(places)

    def _resume(self, places: Sequence[tuple[str, int]]) -> None:
        self._consumer.resume([TopicPartition(*place) for place in places])
        self._paused.difference_update(places)
