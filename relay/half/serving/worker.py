"""The worker of one half partition: a thread that feeds its ledger and writes its Kafka transactions.

The consumer belongs to the service's thread, which hands records over (`Arrivals`). Any error ends the thread; the
service then takes the partition over again, from the committed checkpoint (R17, R18).
"""

import math
import threading
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from itertools import chain

import structlog

from outbox._failpoints import failpoint
from outbox._rules.broker_clock import BrokerClock
from outbox._service.channels.channel_context import current_channel, enter_channel
from outbox._settings.declared import SOON_MS
from outbox.protocol.record import Record
from relay.delivery.rules.volume import rest
from relay.delivery.sending import BatchFeedback, Sending
from relay.delivery.topic_lookup import TopicLookup
from relay.half.kafka.half_reader import PartitionReaders
from relay.half.ledger.ledger import Ledger
from relay.half.serving import half_telemetry as report
from relay.half.serving.check_back import CheckBack
from relay.half.serving.commits import Commits
from relay.half.serving.hand_out import Batch, HandOut
from relay.half.serving.intake import Arrivals
from relay.half.state.half_records import OpRecord

READ_AT_ONCE = 5_000
READ_FIRST = 500
"""Records of each topic in the first turn after a take-over, then twice as many each time: delivery goes on at once."""
TICK_SECONDS = 0.05
IDLE_TICK_SECONDS = 0.5
"""Pause while nothing pends: a process may have hundreds of idle half partitions. Records end it."""
HALVES_AWAITED_SECONDS = 1.0
"""Time that ops for halves ahead wait for more halves; then they are passed, and check-back answers."""
RECALL_AT_ONCE = 2_000
"""Deferred halves that are read again in one turn: others must not wait for them."""
COUNT_SECONDS = 1.0
"""Pause between two counts of what waits: they cost more, the more waits."""
EXPIRE_SECONDS = 60.0
"""Pause between two looks for old dead letters, of which there may be hundreds of thousands."""
ASK_AT_ONCE = 500
"""Check requests of one turn: after an outage very many are due, and each listener's needs its message."""
ASK_WHILE_BEHIND = 50
"""Check requests of one turn while halves wait to be read: those may be decided already."""

log = structlog.get_logger()


class PartitionWorker(threading.Thread):
    """The owner of one half partition."""

    def __init__(
        self,
        ledger: Ledger,
        readers: PartitionReaders,
        lookup: TopicLookup,
        commits: Commits,
        check_back: CheckBack,
        feedback: BatchFeedback,
    ) -> None:
        super().__init__(name=f"partition-{ledger.partition}", daemon=True)
        self.partition = ledger.partition
        self._channel = current_channel()
        self.failure: BaseException | None = None
        self.arrivals = Arrivals()
        self.ready = False  # whether all that the checkpoints name is restored
        self._ledger = ledger
        self._readers = readers
        self._lookup = lookup
        self._commits = commits
        self._check_back = check_back
        self._feedback = feedback
        self._sending = Sending(commits.delivery, lookup.gate, feedback, {"partition": ledger.partition})
        self._hand_out = HandOut(ledger, readers, lookup, commits.channel.channel, feedback.volume)
        self._rests_until = 0.0  # s of monotonic time: until then what comes is collected
        self._clock = BrokerClock()
        self._at_once = READ_FIRST
        self._half_read_at = time.monotonic()
        self._counted: Counter[str] = Counter()
        self._counted_at = self._expired_at = -math.inf
        self._deferring: Sequence[str] = ()  # services
        self._writing = False

    # --- called by the service's thread

    def op_end_wanted_at(self, *, verdict: bool) -> int | None:
        """Return the broker's time now (ms), if a check or a parking waits for the end of a partition."""
        return self._clock.now(_ms()) if self.arrivals.wants_op_end(verdict=verdict) else None

    def skips(self, topic: str, offset: int) -> bool:
        """Return whether an operator wants this record skipped, as far as the discard topic was read."""
        return self.ready and (topic, offset) in self._readers.decoder.skipped

    def settled(self) -> int:
        """Return the committed checkpoints as one number that grows with each record that is settled."""
        return self._commits.settled()

    def has_work(self) -> bool:
        """Return whether there is something to read or to write."""
        return self._writing or any(self.arrivals.sizes()) or self._ledger.deliveries.queue.has_some()

    def head(self) -> int:
        """Return the offset of the half that is read next; more may have arrived."""
        return self._ledger.progress.head()

    def stop(self, timeout: float) -> None:
        """Let the open Kafka transaction finish, then end the thread; the producer and the readers are closed.

        The readers of a thread that has not ended in time stay open until it has.
        """
        self.arrivals.stop()
        for reader in self._readers.both:
            reader.stop()
        self._lookup.stop()
        self.join(timeout)
        self._commits.delivery.close()
        if not self.is_alive():  # librdkafka must not be closed under a call; without a thread it closes by itself
            for reader in self._readers.both:
                reader.close()

    # --- the thread

    def run(self) -> None:
        """Read, decide, deliver, until asked to stop or something fails."""
        enter_channel(self._channel)
        try:
            self._restore_discards()
            self._restore_halves()
            self.ready = True
            failpoint("relay.restored")
            while not self.arrivals.is_stopping:
                self._wait()
                self._read()
                self._settle()
                self._ask_overdue()
        except BaseException as error:  # noqa: BLE001 - the service reads it, and takes the partition over again
            self.failure = error

    def _restore_discards(self) -> None:
        """Read the discard partition before anything is delivered."""
        discards = self._readers.discards
        self._ledger.restore_discards(discards.read_manifests())
        self._readers.decoder.skipped = discards.skipped()
        self._clock.saw(discards.newest_append, _ms())

    def _restore_halves(self) -> None:
        """Read the keys of all unsettled halves before anything is delivered, and when they are due."""
        began, count = time.monotonic(), 0
        for halves in self._readers.halves.read(chain.from_iterable(self._ledger.progress.half_checkpoint().unsettled)):
            if self.arrivals.is_stopping:
                return
            self._ledger.read_halves(halves)
            self._clock.saw(halves[-1].append_time, _ms())
            self._ledger.bodies.let_go(self._clock.now(_ms()))
            count += len(halves)
        self._ledger.restored()
        seconds = round(time.monotonic() - began, 3)
        log.info("Partition restored", partition=self.partition, unsettled=count, seconds=seconds)

    def _wait(self) -> None:
        if self._ledger.deliveries.queue.has_some():
            return
        rest = self._rests_until - time.monotonic()
        if rest > 0:
            self.arrivals.wait(rest, enough=self._feedback.volume.limit.messages)
        else:
            self.arrivals.wait(self._tick())

    def _tick(self) -> float:
        ledger = self._ledger
        is_idle = not (ledger.pending or ledger.plain or ledger.deliveries.queue)
        return IDLE_TICK_SECONDS if is_idle else TICK_SECONDS

    # --- in

    def _read(self) -> None:
        self._recall()
        self._read_halves()
        self._read_ops(verdict=False)
        self._read_ops(verdict=True)
        self._at_once = min(2 * self._at_once, READ_AT_ONCE)

    def _read_halves(self) -> None:
        """Take halves in steps: how many may be read depends on those before."""
        left = self._at_once
        while left > 0 and self._can_take_half():
            messages = self.arrivals.take_halves(left, self._ledger.read_limit(self.arrivals.next_half() or 0))
            halves = [self._readers.decoder.half(message) for message in messages]
            left -= len(halves)
            self._half_read_at = time.monotonic()
            self._clock.saw(max([half.append_time for half in halves]), _ms())
            self._ledger.plain.read(halves)

    def _can_take_half(self) -> bool:
        offset = self.arrivals.next_half()
        return offset is not None and offset < self._ledger.read_limit(offset)

    def _recall(self) -> None:
        """Read deferred halves again for which there is room by now."""
        for halves in self._readers.halves.read(self._ledger.deferred_wanted(RECALL_AT_ONCE)):
            self._ledger.read_deferred(halves)

    def _read_ops(self, *, verdict: bool) -> None:
        """Take ops or verdicts; while too many wait for halves that can still be read, leave them where they are."""
        if self._ledger.decisions.is_full() and self._can_read_halves():
            return
        records: list[OpRecord] = []
        for item in self.arrivals.take_ops(self._at_once, verdict=verdict):
            if isinstance(item, int):
                self._ledger.read_ops(records)
                self._ledger.overdue.ops_read_until(item, verdict=verdict)
                records = []
            else:
                records.append(self._readers.decoder.op(item))
        self._ledger.read_ops(records)

    def _can_read_halves(self) -> bool:
        if self.arrivals.next_half() is None:
            return time.monotonic() - self._half_read_at < HALVES_AWAITED_SECONDS
        return self._can_take_half()

    # --- out

    def _settle(self) -> None:
        now = self._clock.now(_ms())
        self._ledger.bodies.let_go(now)
        self._commits.delivery.renew()
        self._lookup.describe_closed(_ms())
        self._ledger.release_crowding()
        self._writing = True
        self._write(self._hand_out.next(now))
        self._writing = False
        self._count()

    def _write(self, batch: Batch) -> None:
        if batch:
            self._sending.send(batch.sent(), partial(self._commit, batch.records, batch.transactions()))
            if any(transaction.discarded for transaction in batch.ready):
                failpoint("relay.late_committed")
            report.report_batch(batch, self.partition)
        elif self._commits.is_due():
            self._commit([], 0)

    def _commit(self, records: Sequence[Record], transactions: int) -> None:
        self._commits.commit(records)
        seconds = max(rest(transactions, self._commits.channel.partitions), self._commits.delivery.rest_ms / 1_000)
        self._rests_until = time.monotonic() + seconds

    def _ask_overdue(self) -> None:
        now = self._clock.now(_ms())
        self._check_back.ask(now, ASK_AT_ONCE if self.arrivals.next_half() is None else ASK_WHILE_BEHIND)
        self.arrivals.want_op_ends(wanted=self._ledger.needs_op_end(now))

    def _count(self) -> None:
        ledger = self._ledger
        report.counted(ledger.counts - self._counted, self.partition)
        report.contradicted(ledger.decisions.take_contradictions(), self.partition)
        self._counted = ledger.counts.copy()
        if time.monotonic() - self._counted_at > COUNT_SECONDS:
            deferring = ledger.deferred.services()
            report.deferring(self._deferring, deferring, self.partition)
            self._deferring = deferring
            if time.monotonic() - self._expired_at > EXPIRE_SECONDS:
                ledger.discards.expire(self._clock.now(_ms()), SOON_MS, ledger.overdue.ops_known_until())
                self._expired_at = time.monotonic()
            report.set_waiting_figures(ledger, self._clock.now(_ms()))
            report.misplaced(ledger.dropped.take(self._clock.now(_ms())), self.partition)
            for reader in self._readers.both:
                reader.rest()
            self._counted_at = time.monotonic()


def _ms() -> int:
    return time.monotonic_ns() // 1_000_000
