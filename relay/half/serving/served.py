"""The half partitions that a relay process serves: taken over, watched, given up, halted."""

import time
from collections.abc import Callable, Collection, Iterable, Sequence

import structlog
from confluent_kafka import Consumer, KafkaException

from outbox._kafka.topic_cache import TopicCache
from outbox._service.channels.channel_context import thread_pool
from outbox._service.contract_monitor import ContractWatch
from outbox._service.exit_codes import UnsafeError, reason_of
from outbox.errors import KafkaUnreachable, OutboxError
from outbox.protocol.errors import ProtocolError
from outbox.protocol.names import Place
from relay import metrics
from relay.delivery.at_least_once_delivery import Delivery
from relay.delivery.call_watch import calling
from relay.delivery.producer import DeliveryError
from relay.delivery.transactional_delivery import TRANSACTION_TIMEOUT_MS
from relay.half.kafka.offset_commits import OffsetCommits
from relay.half.partitions.ownership import Halts, Ownership, Stalls
from relay.half.serving.commits import GroupMetadata
from relay.half.serving.intake import Intake
from relay.half.serving.take_over import Fencing, TakeOver
from relay.half.serving.worker import PartitionWorker
from relay.recovery.hanging_checkpoint import HeldBackError

STOP_SECONDS = TRANSACTION_TIMEOUT_MS / 1000 + 5
FENCE_SECONDS = 3.0
"""Time for which an assignment waits for producers; one that takes longer is served when it is there."""

log = structlog.get_logger()


class ServedPartitions:
    """The workers, and the half partitions that wait for one."""

    def __init__(
        self,
        take_over: TakeOver,
        consumer: Consumer,
        intake: Intake,
        group: GroupMetadata,
        commits: OffsetCommits,
        contract: ContractWatch,
        topics: TopicCache,
        stopping: Callable[[], bool],
    ) -> None:
        self.workers: dict[int, PartitionWorker] = {}
        self.ownership = Ownership()
        self.halts = Halts()
        self._stalls = Stalls()
        self._take_over = take_over
        self._fencing = Fencing(self._fence)
        self._consumer = consumer
        self._intake = intake
        self._group = group
        self._commits = commits
        self._contract = contract
        self._topics = topics
        self._stopping = stopping

    # --- taken over

    def take_over(self, numbers: Sequence[int], *, assign: bool = False) -> dict[Place, int]:
        """Fence the former owners, read the checkpoints, and serve; those that Kafka lets wait are served later."""
        if not numbers or self._stopping():
            return {}
        self._fencing.begin(numbers)
        starts: dict[Place, int] = {}
        for number, delivery in self._fencing.take_done(FENCE_SECONDS if assign else 0.0):
            if isinstance(delivery, DeliveryError):
                self._not_fenced(number, delivery)
            elif isinstance(delivery, Exception):
                self._halt_unforeseen(number, delivery)
            elif self._stopping():  # each may wait for Kafka's time-outs
                delivery.close()
            else:
                starts |= self._serve(number, delivery, assign=assign)
        return starts

    def take_over_due(self) -> None:
        self.take_over(self.ownership.due(time.monotonic(), self._group.generation()))

    def _fence(self, number: int) -> Delivery:
        with calling(f"taking over half partition {number}"):
            return self._take_over.fence(number)

    def _not_fenced(self, number: int, error: DeliveryError) -> None:
        self._take_over.feedback_of(number).not_taken_over(partition=number)
        self.try_later(number, str(error))
        if error.fenced:
            self._give_way(number)

    def _serve(self, number: int, delivery: Delivery, *, assign: bool) -> dict[Place, int]:
        try:
            with calling(f"reading the checkpoint of half partition {number}"):
                ledger, committed = self._take_over.restore(number)
            if not assign:
                self._intake.read_from(committed)
            worker = self._take_over.worker(ledger, delivery)
        except (UnsafeError, ProtocolError) as error:
            delivery.close()
            self.halt(number, error)
            return {}
        except KafkaUnreachable as error:
            delivery.close()
            self._wait_for_end(number, error, str(error), assign=assign)
            return {}
        except KafkaException as error:
            delivery.close()
            why = self._take_over.why_unreadable(error, number)
            self._wait_for_end(number, why, f"reading its checkpoint failed: {why}", assign=assign)
            return {}
        except Exception as error:  # noqa: BLE001 - it must not reach the other ones
            delivery.close()
            self._halt_unforeseen(number, error)
            return {}
        self._intake.start_at(number, [place.offset for place in committed])
        self.workers[number] = worker
        self.ownership.served(number)
        self.halts.end([number])
        worker.start()
        return {(place.topic, place.partition): place.offset for place in committed}

    def _wait_for_end(self, number: int, error: KafkaUnreachable, reason: str, *, assign: bool) -> None:
        """Try later, after what hangs was ended (R51); not while the group waits for an assignment."""
        self.try_later(number, reason)
        if assign or not isinstance(error, HeldBackError):
            return
        try:
            self._take_over.end_hanging(number)
        except (DeliveryError, OutboxError) as failure:
            log.warning("Hanging transaction not ended", partition=number, reason=str(failure))

    def try_later(self, number: int, reason: str) -> None:
        """Try again after a pause to take a half partition over."""
        log.warning("Partition not taken over yet", partition=number, reason=reason)
        self.ownership.try_later(number, time.monotonic())

    def _give_way(self, number: int) -> None:
        """Leave a half partition to its other owner: serve it again only in a new generation of the group."""
        self.ownership.fenced(number, time.monotonic(), self._group.generation())

    # --- given up

    def revoke(self, numbers: Collection[int]) -> None:
        """Give half partitions up that the group has given to others, or may."""
        self._fencing.drop(numbers)
        self.halts.end(numbers)
        self._forget_stalls(numbers)
        self.give_up(numbers)
        for number in numbers:
            self._take_over.forget(number)
            self._intake.pause(number)  # one of the two may stay ours until the next step of the assignment

    def give_up_all(self, seconds: float) -> None:
        """Stop all workers, and take nothing over any more; see `give_up`."""
        self.give_up(list(self.workers), seconds)
        self._fencing.drop_all()

    def give_up(self, numbers: Iterable[int], seconds: float = STOP_SECONDS) -> None:
        """Stop workers; so many seconds are left for their open Kafka transactions."""
        workers = [self.workers.pop(number) for number in list(numbers) if number in self.workers]
        with thread_pool(max(len(workers), 1)) as pool:
            list(pool.map(lambda worker: worker.stop(seconds), workers))
        if late := [worker.partition for worker in workers if worker.is_alive()]:
            log.warning("Open batch did not end in time; the next owner repeats it", partitions=late)
        self._commits.finish(self._consumer, [worker.partition for worker in workers])
        for worker in workers:
            metrics.forget(worker.partition)

    def pause(self, number: int, reason: str) -> None:
        """Give a half partition up, and try later to take it over."""
        self.give_up([number])
        self._intake.pause(number)
        self.try_later(number, reason)

    def halt(self, number: int, cause: Exception) -> None:
        """Note that a half partition is not served until its cause is settled: nothing may be skipped (R36)."""
        log.error("Partition halted", partition=number, reason=str(cause))
        self.halts.halt(number, cause)
        self._forget_stalls([number])
        self.ownership.halted(number, time.monotonic())
        self._contract.soon()

    def _halt_unforeseen(self, number: int, error: BaseException) -> None:
        """Halt a half partition for an unforeseen error; the other ones go on (R81).

        Its traceback would keep all that pends in memory: it goes to the log alone.
        """
        log.error("Unforeseen error of a partition", partition=number, exc_info=error)
        self.halt(number, RuntimeError(reason_of(error)))

    # --- watched

    def replace_failed(self) -> None:
        """Replace workers that failed; give those up that were fenced until the next generation."""
        for number, worker in list(self.workers.items()):
            uncommitted = self._commits.failure(number)
            if worker.is_alive() and uncommitted is None:
                continue
            failure = uncommitted or worker.failure
            worker.failure = None  # its traceback would keep all that pends in memory
            self.give_up([number])
            metrics.FAILURES.labels(_cause(failure)).inc()
            self._topics.forget()
            self._contract.soon()
            self._replace(number, failure)

    def _replace(self, number: int, failure: BaseException | None) -> None:
        if isinstance(failure, ProtocolError):  # a newer format, or a checkpoint that cannot be written
            self._intake.pause(number)
            self.halt(number, failure)
            return
        if not isinstance(failure, (DeliveryError, OutboxError)):
            self._intake.pause(number)
            self._halt_unforeseen(number, failure or RuntimeError("its thread has ended"))
            return
        log.warning("Partition worker restarted", partition=number, reason=str(failure))
        self._intake.pause(number)
        if isinstance(failure, DeliveryError) and failure.fenced:
            self._give_way(number)
        else:
            self.ownership.try_later(number, time.monotonic())

    def look_for_stalls(self, is_behind: Callable[[int], bool]) -> None:
        """Compare the checkpoints of the partitions that are served with what there is to do (R50)."""
        now = time.monotonic()
        for number, worker in self.workers.items():
            if worker.ready:
                has_work = worker.has_work() or is_behind(number)
                self._stalls.observe(number, worker.settled(), now, has_work=has_work)
        for number, seconds in self._stalls.seconds(now).items():
            metrics.STALLED_SECONDS.labels(number).set(seconds)

    def _forget_stalls(self, numbers: Collection[int]) -> None:
        self._stalls.forget(numbers)
        for number in numbers:
            metrics.forget(number)

    def not_ready(self) -> str | None:
        """Return why the relay is not ready, for probes; None if all its partitions are served and move."""
        if why := self.halts.why() or self._stalls.why(time.monotonic()):
            return why
        restoring = (number for number, worker in self.workers.items() if not worker.ready)
        waiting = sorted({*self.ownership.waiting(), *restoring})
        return f"partitions {waiting} are not served yet" if waiting else None


def _cause(failure: BaseException | None) -> str:
    if isinstance(failure, DeliveryError):
        return "fenced" if failure.fenced else "kafka_transaction"
    return "cluster" if isinstance(failure, OutboxError) else "bug"
