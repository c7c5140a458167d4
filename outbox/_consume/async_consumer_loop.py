"""Consume with aiokafka as `consumer_loop` does with confluent-kafka; the states of a message are the same."""

from __future__ import annotations

import asyncio
import inspect
import logging
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import Any

from outbox._postgres.optional_packages import extra

with extra("aiokafka", "Inbox.run_async()"):
    import greenlet  # type: ignore[import-untyped]  # noqa: F401 - untyped; `Inbox.once_async()` needs it
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord, TopicPartition
    from aiokafka.errors import CommitFailedError, IllegalStateError, KafkaError

from outbox._consume.trial import DEAD_LETTER_BYTES, DEAD_LETTER_SECONDS, Trial, no_such_topic
from outbox.errors import ConfigurationError

log = logging.getLogger("outbox")

_POLL_MS = 500
_BATCH = 100
"""Records between two commits of offsets."""
_RESTART_SECONDS = 1.0
_STOP_SECONDS = 5.0
"""For each of the two things that are last asked of Kafka: to store offsets, and to let the consumer go."""
_OURS = {"enable_auto_commit": False, "isolation_level": "read_committed"}
_REFUSED = {"group_id", "key_deserializer", "value_deserializer", *_OURS}


@contextmanager
def set_by_signal() -> Iterator[asyncio.Event]:
    """Yield an event that SIGTERM or SIGINT sets inside the block; the application's own handlers are called, too."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    before: dict[int, Any] = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def ask(number: int, frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(stop.set)
        if callable(before[signal.SIGTERM]) and callable(before[number]):  # else that of SIGINT is asyncio's
            before[number](number, frame)

    for number in before:
        signal.signal(number, ask)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@dataclass
class AsyncConsumerLoop:
    """Takes records until it is asked to stop; see `ConsumerLoop`.

    Args:
        kafka: Arguments of `AIOKafkaConsumer`.
    """

    group: str
    handle: Callable[[ConsumerRecord], Awaitable[None]]
    kafka: Mapping[str, Any]
    topics: Sequence[str]
    dead_letters: str | None
    attempts: int
    first_pause: float
    stop: asyncio.Event

    def __post_init__(self) -> None:
        """Refuse arguments that the loop sets itself."""
        if clash := _REFUSED & self.kafka.keys():
            raise ConfigurationError(
                f"run_async() sets {', '.join(sorted(clash))} itself. Remove it from the arguments."
            )

    async def run(self) -> None:
        """Consume; a consumer that has failed is replaced by another one."""
        while not self.stop.is_set():
            arguments = {"auto_offset_reset": "earliest", **self.kafka, **_OURS, "group_id": self.group}
            consumer = AIOKafkaConsumer(*self.topics, **arguments)
            try:
                async with self._until_stopped():
                    await consumer.start()
                await self._find_dead_letters(consumer)
                while not self.stop.is_set():
                    await self._take_some(consumer)
            except (KafkaError, TimeoutError) as error:  # the consumer does not repeat it by itself
                log.warning("Consumer group %s: %s", self.group, str(error) or "Kafka does not answer")
                with suppress(TimeoutError):
                    await asyncio.wait_for(self.stop.wait(), _RESTART_SECONDS)
            finally:
                await _end(consumer)

    @asynccontextmanager
    async def _until_stopped(self) -> AsyncIterator[None]:
        """Wait for Kafka in the block as long as aiokafka does; once the loop is asked to stop, some seconds more."""

        async def hurry() -> None:
            await self.stop.wait()
            limit.reschedule(asyncio.get_running_loop().time() + _STOP_SECONDS)

        async with asyncio.timeout(None) as limit:
            watch = asyncio.create_task(hurry())
            try:
                yield
            finally:
                watch.cancel()

    async def _take_some(self, consumer: AIOKafkaConsumer) -> None:
        """Handle what has come, and commit its offsets."""
        done: dict[TopicPartition, int] = {}
        for partition, records in (await consumer.getmany(timeout_ms=_POLL_MS, max_records=_BATCH)).items():
            for record in records:
                if self.stop.is_set() or not await self._is_done(consumer, partition, record):
                    break
                done[partition] = record.offset + 1
        if ours := {partition: offset for partition, offset in done.items() if partition in consumer.assignment()}:
            with suppress(CommitFailedError, IllegalStateError):  # rebalanced: the records come again, and are not new
                async with self._until_stopped():
                    await consumer.commit(ours)

    async def _is_done(self, consumer: AIOKafkaConsumer, partition: TopicPartition, record: ConsumerRecord) -> bool:
        """Handle a record, as often as need be; return False if it was left."""
        place = record.topic, record.partition, record.offset
        trial = Trial(place, self.attempts, self.first_pause, self.dead_letters)
        while True:
            try:
                if trial.is_over:
                    await self._bury(consumer, record, trial)
                else:
                    await self.handle(record)
            except Exception as error:  # noqa: BLE001 - the handler is the application's
                pause = trial.failed(error)
            else:
                return True
            if not await self._is_still_ours(consumer, partition, pause):
                return False

    async def _find_dead_letters(self, consumer: AIOKafkaConsumer) -> None:
        """End the loop if their topic does not exist."""
        if topic := self.dead_letters:
            async with asyncio.timeout(DEAD_LETTER_SECONDS):
                if topic not in await consumer.topics():
                    raise no_such_topic(topic)

    async def _bury(self, consumer: AIOKafkaConsumer, record: ConsumerRecord, trial: Trial) -> None:
        """Write a record to the topic of dead letters, with the reason."""
        topic = self.dead_letters or ""
        await self._find_dead_letters(consumer)
        known = inspect.signature(AIOKafkaProducer).parameters
        arguments = {name: value for name, value in self.kafka.items() if name in known}
        arguments["request_timeout_ms"] = round(1000 * DEAD_LETTER_SECONDS)
        arguments["max_request_size"] = DEAD_LETTER_BYTES
        async with AIOKafkaProducer(**arguments, enable_idempotence=True) as producer:
            key, value, headers = trial.letter(self.group, record.key, record.value, record.headers)
            await producer.send_and_wait(topic, value, key, headers=headers)
        trial.log_written()

    async def _is_still_ours(self, consumer: AIOKafkaConsumer, partition: TopicPartition, seconds: float) -> bool:
        """Wait as a member of the group; return whether the partition was ours all the time."""
        ends = time.monotonic() + seconds
        while (left := ends - time.monotonic()) > 0:
            if self.stop.is_set() or partition not in consumer.assignment():
                return False
            consumer.pause(partition)
            early = await consumer.getmany(partition, timeout_ms=min(round(1000 * left), _POLL_MS))
            if early and partition in consumer.assignment():  # it was lost meanwhile, and is ours again
                consumer.seek(partition, early[partition][0].offset)
        if partition not in consumer.assignment():
            return False
        consumer.resume(partition)
        return True


async def _end(consumer: AIOKafkaConsumer) -> None:
    """Stop a consumer. A Kafka that does not answer will miss it by itself, for which aiokafka has no limit.

    Then its tasks are cancelled, and its connections aborted: to close one with TLS waits for the other side.
    """
    if (coordinator := consumer._coordinator) is not None:  # noqa: SLF001 - `stop()` alone has no limit
        try:
            async with asyncio.timeout(_STOP_SECONDS):
                await coordinator.close()
        except (KafkaError, TimeoutError):
            await coordinator._stop_heartbeat_task()  # noqa: SLF001 - as above
            await coordinator._stop_commit_offsets_refresh_task()  # noqa: SLF001 - as above
            for connection in consumer._client._conns.values():  # noqa: SLF001 - as above
                if (writer := connection._writer) is not None:  # noqa: SLF001 - as above
                    writer.transport.abort()
    await consumer.stop()
