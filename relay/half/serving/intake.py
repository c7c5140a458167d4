"""The intake: what the consumer hands over to the workers' threads, by partition, without holes, and throttled."""

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import structlog
from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient

from outbox._kafka.admin import end_offsets
from outbox._kafka.channel import ChannelDescription
from outbox._kafka.consumed_records import is_unreadable
from outbox._service.membership import MemberFenced, refuse_missing_right
from outbox._service.periodic import Periodic
from outbox.protocol.names import Place


class Arrivals:
    """Records of one half partition, its op and its verdict partition, those of each in the order of their offsets.

    The consumer's thread adds records, the worker's thread takes them.
    """

    def __init__(self) -> None:
        self._halves: deque[Message] = deque()
        self._ops: tuple[deque[Message | int], deque[Message | int]] = (deque(), deque())
        """Of the op, and of the verdict partition. A number: the end of the partition, seen at that broker time."""
        self._ends_wanted = [False, False]
        self._wake = threading.Condition()
        self._enough = 1  # records for which the worker is woken
        self.is_stopping = False

    # --- the consumer's thread

    def feed(self, halves: Sequence[Message], ops: Sequence[Message], verdicts: Sequence[Message] = ()) -> None:
        with self._wake:
            self._halves.extend(halves)
            for waiting, new in zip(self._ops, (ops, verdicts), strict=True):
                waiting.extend(new)
            if sum(self.sizes()) >= self._enough:
                self._wake.notify()

    def wants_op_end(self, *, verdict: bool) -> bool:
        """Return whether the worker waits for the end of a partition, and has read all of it that is here."""
        return self._ends_wanted[verdict] and not self._ops[verdict]

    def add_op_end(self, broker_time: int, *, verdict: bool) -> None:
        """Add the fact that everything in the op or verdict partition at this broker time (ms) is here."""
        with self._wake:
            self._ops[verdict].append(broker_time)
            self._ends_wanted[verdict] = False
            self._wake.notify()

    def stop(self) -> None:
        with self._wake:
            self.is_stopping = True
            self._wake.notify()

    def sizes(self) -> tuple[int, int, int]:
        """Return how many records of the half, the op and the verdict partition wait here."""
        ops, verdicts = self._ops
        return len(self._halves), len(ops), len(verdicts)

    # --- the worker's thread

    def wait(self, seconds: float, enough: int = 1) -> None:
        """Wait for so many records, the end of a partition or a stop, at most for this time."""
        with self._wake:
            if sum(self.sizes()) < enough and not self.is_stopping:
                self._enough = enough
                self._wake.wait(seconds)
                self._enough = 1

    def next_half(self) -> int | None:
        """Return the offset of the first half; None: there is none."""
        return self._halves[0].offset() if self._halves else None

    def take_halves(self, most: int, limit: int) -> list[Message]:
        """Take halves below an offset, at most this number."""
        taken: list[Message] = []
        while self._halves and len(taken) < most and (self._halves[0].offset() or 0) < limit:
            taken.append(self._halves.popleft())
        return taken

    def take_ops(self, most: int, *, verdict: bool) -> list[Message | int]:
        """Take records of the op or verdict partition, and between them the times at which its end was seen."""
        waiting = self._ops[verdict]
        return [waiting.popleft() for _ in range(min(len(waiting), most))]

    def want_op_ends(self, *, wanted: bool) -> None:
        """Note whether a check or a parking waits for the ends of the op and the verdict partition."""
        self._ends_wanted = [wanted, wanted]


log = structlog.get_logger()

ARRIVALS = 10_000
"""Records of one partition that may wait for its worker; then it is paused, and librdkafka throws away what it has
fetched. Each of them takes about a kilobyte."""

_TIMEOUT = 0.5
"""For the end of a partition: while its leader is away, no worker gets records in this time."""


class Unreadable(NamedTuple):
    """Where a partition cannot be read on."""

    offset: int
    why: str
    since: float


class Intake:
    """Sorts what the consumer hands over to the workers; used by the consumer's thread only."""

    def __init__(self, consumer: Consumer, channel: ChannelDescription, odd: Callable[[], None]) -> None:
        self._consumer = consumer
        self._odd = odd  # called when Kafka reports an event of the channel's topics that is no record
        self._half_topic = channel.half.name
        self._op_topics = (channel.op.name, channel.verdict.name)
        self._group = channel.channel.relay_group
        self._next: dict[Place, int] = {}
        self._gaps: dict[Place, int] = {}  # the offset at which a gap was seen once
        self._ends: dict[Place, int] = {}  # the offset at which the end was seen too early, once
        self._empty_until: dict[Place, int] = {}  # nothing that can be read is below this offset
        self._unreadable: dict[Place, Unreadable] = {}
        self._paused: set[Place] = set()
        self._outside: set[Place] = set()

    def start_at(self, number: int, offsets: Sequence[int]) -> None:
        """Begin reading a partition number at these offsets; what an earlier worker read does not count."""
        for place, offset in zip(self._places(number), offsets, strict=True):
            self._next[place] = offset
            self._gaps.pop(place, None)
            self._ends.pop(place, None)
            self._empty_until.pop(place, None)
            self._unreadable.pop(place, None)

    def hand_over(self, messages: Iterable[Message], arrivals: Mapping[int, Arrivals]) -> None:
        found: dict[Place, list[Message]] = defaultdict(list)
        ends: dict[Place, int] = {}
        events: list[tuple[Message, KafkaError]] = []
        for message in messages:
            error, place = message.error(), (message.topic() or "", message.partition() or 0)
            if error is None:
                found[place].append(message)
            elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - librdkafka's own codes carry an underscore
                ends[place] = message.offset() or 0
            else:
                events.append((message, error))
        for number in arrivals.keys() & {number for _, number in found}:
            arrivals[number].feed(*(self._without_holes(place, found[place]) for place in self._places(number)))
        for (topic, number), end in ends.items():
            if number in arrivals:
                self._saw_end((topic, number), end)
        for message, error in events:  # after the records that came before them
            self._event(message, error)

    def _without_holes(self, place: Place, messages: list[Message]) -> list[Message]:
        """Return these records if they follow on what was read before, else none: they are read again.

        librdkafka may lose what it had fetched when a partition is paused, resumed or sought. The ledger holds every
        offset of a half that it is not shown for settled, so a hole would be a loss; and it moves past every op. A gap
        is believed only when a second look shows it again: then the log itself has it.
        """
        if not messages:
            return messages
        expected, first, last = self._next[place], messages[0].offset() or 0, messages[-1].offset() or 0
        if (first == expected and last - first + 1 == len(messages)) or self._gaps.get(place) == expected:
            self._next[place] = last + 1
            return messages
        self._gaps[place] = expected
        self._read_again(place, first)
        return []

    def _saw_end(self, place: Place, end: int) -> None:
        """Handle the end of a partition; behind what was handed over, its last records may have been lost.

        For halves that is never believed: the next one shows it, or that there is none. For ops it must be, in the end:
        while the end was not seen, no overdue transaction is asked about.
        """
        expected = self._next[place]
        if end <= expected:
            return
        if self._ends.get(place) != expected:
            self._ends[place] = expected
            self._read_again(place, end)
            return
        self._empty_until[place] = end
        if place[0] in self._op_topics:
            self._next[place] = end

    def _read_again(self, place: Place, found: int) -> None:
        topic, number = place
        expected = self._next[place]
        log.info("Gap in the records, read again", topic=topic, partition=number, expected=expected, found=found)
        self._consumer.seek(TopicPartition(topic, number, expected))

    def _event(self, message: Message, error: KafkaError) -> None:
        if error.code() in {KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE}:  # noqa: SLF001 - as above
            self._outside.add((message.topic() or "", message.partition() or 0))
            return
        if is_unreadable(error):
            self._cannot_read(message, error)
            return
        refuse_missing_right(error, "READ", {"group": self._group, "topic": message.topic() or self._half_topic})
        if error.fatal() or error.code() == KafkaError._FATAL:  # noqa: SLF001 - as above
            raise MemberFenced(error.str())
        log.warning("Consumer error", error=error.str())
        self._odd()

    def _cannot_read(self, message: Message, error: KafkaError) -> None:
        """Note that librdkafka cannot unpack what comes next; it tries again, about once in a second."""
        place = (message.topic() or "", message.partition() or 0)
        if place not in self._next:
            return
        offset = max(self._next[place], message.offset() or 0)  # the batch may begin below what is read next
        known = self._unreadable.get(place)
        if known is None or known.offset != offset:
            self._unreadable[place] = Unreadable(offset, error.str(), time.monotonic())

    def unreadable(self) -> dict[Place, Unreadable]:
        """Return where reading has stopped, because librdkafka cannot unpack what comes next."""
        return {place: found for place, found in self._unreadable.items() if self._next[place] <= found.offset}

    def pass_by(self, place: Place, offset: int, arrivals: Arrivals) -> None:
        """Go on behind a record that cannot be unpacked; the worker gets an empty one in its place."""
        del self._unreadable[place]
        if self._next[place] != offset:
            return  # what is missing before it is read again, or the error comes again
        topic, number = place
        record = Message(topic, number, offset, None, None, [], None, (TIMESTAMP_LOG_APPEND_TIME, 0))
        self._next[place] = offset + 1
        arrivals.feed(*([record] if topic == name else [] for name, _ in self._places(number)))
        self._consumer.seek(TopicPartition(topic, number, offset + 1))

    def take_outside(self) -> set[Place]:
        """Return the partitions whose next offset Kafka does not have any more, once each."""
        found, self._outside = self._outside, set()
        return found

    def is_at_op_end(self, number: int, *, verdict: bool) -> bool:
        """Return whether everything that the op or verdict partition holds now was handed over."""
        topic = self._op_topics[verdict]
        try:
            _, end = self._consumer.get_watermark_offsets(TopicPartition(topic, number), _TIMEOUT)
        except KafkaException as error:
            log.warning("End of a partition unknown", topic=topic, partition=number, error=str(error.args[0]))
            return False
        return end <= self._next[topic, number]

    def is_behind(self, number: int, end_of: Callable[[str, int], int]) -> bool:
        """Return whether a topic of a partition number has records that were not handed over."""
        return any(
            end_of(*place) > max(self._next[place], self._empty_until.get(place, 0)) for place in self._places(number)
        )

    def throttle(self, arrivals: Mapping[int, Arrivals]) -> None:
        """Pause partitions of which too many records wait for the worker, resume them when half of it is done."""
        for number, waiting_here in arrivals.items():
            for place, waiting in zip(self._places(number), waiting_here.sizes(), strict=True):
                if waiting >= ARRIVALS and place not in self._paused:
                    self._pause([place])
                elif waiting <= ARRIVALS // 2 and place in self._paused:
                    self._resume([place])

    def pause(self, number: int) -> None:
        """Read no more of a partition number without a worker."""
        self._pause(self._places(number))

    def assigned(self, partitions: Sequence[TopicPartition], idle: Sequence[TopicPartition]) -> None:
        """Take new partitions of the consumer, of which some have no worker.

        For librdkafka a partition that was paused stays so in the next assignment.
        """
        self._resume([(place.topic, place.partition) for place in partitions])
        if idle:
            self._pause([(place.topic, place.partition) for place in idle])

    def read_from(self, committed: Sequence[TopicPartition]) -> None:
        """Go on at the checkpoints of a partition number, unless the consumer cannot seek yet."""
        for place in committed:
            self._consumer.seek(TopicPartition(place.topic, place.partition, place.offset))
        self._resume([(place.topic, place.partition) for place in committed])

    def _places(self, number: int) -> list[Place]:
        return [(topic, number) for topic in (self._half_topic, *self._op_topics)]

    def _pause(self, places: Sequence[Place]) -> None:
        self._consumer.pause([TopicPartition(*place) for place in places])
        self._paused.update(places)

    def _resume(self, places: Sequence[Place]) -> None:
        self._consumer.resume([TopicPartition(*place) for place in places])
        self._paused.difference_update(places)


LOOK_SECONDS = 10.0


class LogEnds:
    """The log end offsets of some topics, as of the last look.

    They count what an open Kafka transaction hides from the relay, too.
    """

    def __init__(self, admin: AdminClient, partitions: Mapping[str, int]) -> None:
        self._admin = admin
        self._partitions = partitions
        self._ends: Mapping[str, tuple[int, ...]] = {}
        self._silent_since = 0.0  # monotonic; 0: the last look was answered
        self.watch = Periodic("log ends", self._look, LOOK_SECONDS)

    def _look(self) -> None:
        began, found = time.monotonic(), end_offsets(self._admin, self._partitions)
        self._silent_since = 0.0 if found else self._silent_since or began
        self._ends = {**self._ends, **found}

    def not_ready(self) -> str | None:
        """Return why nothing can be delivered, if no broker answered the last look."""
        since = self._silent_since
        return f"Kafka has not answered for {time.monotonic() - since:.0f} s" if since else None

    def of(self, topic: str, partition: int) -> int:
        """Return the log end offset of a partition; 0 as long as it is not known."""
        return self._ends[topic][partition] if topic in self._ends else 0
