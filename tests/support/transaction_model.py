"""A coordinator of the old protocol, a producer like librdkafka, and an EndTxn at a chosen moment (KAFKA-17754)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

Report = Callable[[KafkaError | None, Message], None]


@dataclass
class Open:
    messages: list[bytes] = field(default_factory=list)
    offset: int | None = None


@dataclass
class Coordinator:
    """What brokers know of a transactional id and a group; `late_at`: the request before which an EndTxn is late."""

    late_at: int | None = None
    delay: float = 0.0  # how long the repetition of the delayed EndTxn takes, s
    masked: bool = True  # whether a fatal error leaves a flush as SystemError, without saying which
    now: float = 0.0
    epoch: int = 0
    visible: list[bytes] = field(default_factory=list)
    offset: int = 0
    _open: Open | None = None
    _late: tuple[int, int] | None = None  # epoch of the delayed EndTxn, and requests until it arrives

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def request(self) -> None:
        """Some request is on its way; the delayed EndTxn may overtake it."""
        if self._late is not None:
            epoch, left = self._late
            self._late = (epoch, left - 1) if left > 1 else None
            if left == 1 and epoch == self.epoch:
                self._commit()

    def init(self) -> int:
        """InitProducerId: fences the former producer, aborts what it left open."""
        self.request()
        self.epoch += 1
        self._open = None
        return self.epoch

    def register(self, epoch: int) -> None:
        """AddPartitionsToTxn, AddOffsetsToTxn: begins a transaction if none is open."""
        self.request()
        self._require(epoch)
        self._open = self._open or Open()

    def produce(self, epoch: int, message: bytes) -> KafkaError | None:
        """Produce: refused unless its partition is in the open transaction."""
        self.request()
        self._require(epoch)
        if self._open is None:
            return KafkaError(KafkaError.INVALID_TXN_STATE)
        self._open.messages.append(message)
        return None

    def commit_offset(self, epoch: int, offset: int) -> None:
        self.request()
        self._require(epoch)
        if self._open is None:
            raise KafkaException(KafkaError(KafkaError.INVALID_TXN_STATE))
        self._open.offset = offset

    def end(self, epoch: int) -> None:
        """EndTxn; the first one may be delayed: the client times out, repeats it, and hears of success."""
        self.request()
        self._require(epoch)
        if self.late_at is not None:
            self._late, self.late_at = (epoch, self.late_at), None
            self.now += self.delay
        self._commit()

    def abort(self, epoch: int) -> None:
        """EndTxn, too, but the other way."""
        self.request()
        self._require(epoch)
        self._open = None

    def _require(self, epoch: int) -> None:
        if epoch != self.epoch:
            raise KafkaException(KafkaError(KafkaError._FENCED))

    def _commit(self) -> None:
        """What is open becomes visible; if nothing is, it was committed before."""
        ended, self._open = self._open or Open(), None
        self.visible += ended.messages
        if ended.offset is not None:
            self.offset = ended.offset


class Producer:
    """A transactional producer of a coordinator; it has the methods of confluent-kafka's that the relay calls."""

    def __init__(self, coordinator: Coordinator, config: dict[str, Any]) -> None:
        self._coordinator = coordinator
        self._report: Report = config["on_delivery"]
        self._queue: list[bytes] = []
        self._epoch = -1
        self._registered = False
        self._fatal: KafkaException | None = None
        self._refused: KafkaException | None = None

    def init_transactions(self, _timeout: float) -> None:
        self._epoch = self._coordinator.init()

    def begin_transaction(self) -> None:
        """Begin; the coordinator hears of it with the first request."""
        if self._fatal is not None:
            raise self._fatal
        self._registered = False
        self._refused = None

    def produce(self, _topic: str, value: bytes, *_: object) -> None:
        self._queue.append(value)

    def poll(self, _timeout: float) -> None:
        """Nothing is ever waited for."""

    def flush(self, _timeout: float) -> int:
        queue, self._queue = self._queue, []
        try:
            for message in queue:
                self._send(message)
        except KafkaException as error:
            if error.args[0].code() != KafkaError._FENCED:
                raise
            self._fatal = error
            if not self._coordinator.masked:
                raise
            raise SystemError("flush returned NULL without setting an exception") from None  # as confluent-kafka does
        return 0

    def _send(self, message: bytes) -> None:
        if not self._registered:
            self._coordinator.register(self._epoch)
            self._registered = True
        error = self._coordinator.produce(self._epoch, message)
        if error is not None:
            self._refused = KafkaException(error)
            self._report(error, Message("real", 0, 0, None, message))

    def send_offsets_to_transaction(self, offsets: Sequence[TopicPartition], _metadata: bytes, _timeout: float) -> None:
        """Send offsets at once: librdkafka does not flush before."""
        self._require_abort()
        self._coordinator.register(self._epoch)
        self._coordinator.commit_offset(self._epoch, offsets[0].offset)

    def commit_transaction(self, _timeout: float) -> None:
        self.flush(-1)
        self._require_abort()
        self._coordinator.end(self._epoch)

    def abort_transaction(self, _timeout: float) -> None:
        self.purge()
        self._coordinator.abort(self._epoch)

    def _require_abort(self) -> None:
        if self._refused is not None:
            raise self._refused

    def purge(self) -> None:
        self._queue.clear()
