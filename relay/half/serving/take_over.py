"""Takes half partitions over: fences the former owner, restores the ledger, and creates the worker (R17, R18).

What a half partition wrote to real topics is recognised by its author, with whether its halves are still to be
delivered.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import closing, suppress
from functools import partial

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from outbox._failpoints import failpoint
from outbox._kafka.channel import ChannelDescription
from outbox._service.channels.channel_context import thread_pool
from outbox.errors import ConfigurationError, KafkaUnreachable, OutboxError
from outbox.protocol.checkpoint import parse_half_checkpoint
from outbox.protocol.half import ANY_PARTITION
from relay.delivery.at_least_once_delivery import Delivery, PlainDelivery
from relay.delivery.producer import DeliveryError
from relay.delivery.sending import BatchFeedback
from relay.delivery.topic_lookup import HangingTransactions, TopicLookups
from relay.delivery.transactional_delivery import TransactionalDelivery, request_seconds
from relay.half.kafka.half_reader import Decoder, DiscardReader, HalfReader, PartitionReaders
from relay.half.kafka.offset_commits import OffsetCommits
from relay.half.ledger.ledger import Ledger
from relay.half.ledger.pending_transactions import BodyPolicy
from relay.half.serving.check_back import CheckBack, CheckSender
from relay.half.serving.commits import Commits, GroupMetadata
from relay.half.serving.restore import read_checkpoints, verify_checkpoints, verify_discards, without_lost_ops
from relay.half.serving.worker import PartitionWorker
from relay.half.state.check_schedule import CheckPolicy
from relay.half.state.half_records import Half
from relay.half.state.parking import ParkingPolicy
from relay.recovery.author import Found, Own, Written, backwards, written
from relay.recovery.hanging_checkpoint import Checkpointed, end_hanging, refuse_undone_end, why_unreadable
from relay.recovery.hanging_transactions import OwnHangingTransactions
from relay.recovery.transaction_state import UndecidedError
from relay.settings import RelaySettings


def is_owed(ledger: Ledger, transaction_id: str, offset: int) -> bool:
    """Return whether a half that was read is not settled yet, or is in the discard topic."""
    transaction = ledger.find(transaction_id)
    if transaction is not None:  # stragglers of it may pend when all else of it is settled
        return any(half.offset == offset for half in transaction.all_halves())
    return ledger.discards.holds(transaction_id) and any(
        offset == known for _, known in ledger.discards.refused(transaction_id).offsets
    )


FETCHED_AT_ONCE = 20

_DIGITS = 20
"""More than any offset has."""


class HalfAuthor:
    """Recognises the records of a half partition."""

    def __init__(self, ledger: Ledger, halves: HalfReader) -> None:
        self._ledger = ledger
        self._halves = halves

    def last_own(self, found: Sequence[Found], in_hand: Collection[int]) -> Own | None:
        """See `Author`. Records of other channels, and copies of the own ones, are passed over."""
        own = written_halves(found, self._ledger.partition)
        for part in backwards(0, len(own), FETCHED_AT_ONCE):
            halves = self._halves.find(own[index][1] for index in part)
            for index in reversed(part):
                record, offset = own[index]
                is_pending = is_owed(self._ledger, record.transaction_id, offset)
                if is_pending or is_made_of(record, halves.get(offset)):
                    return Own(record.record, record.offset, is_pending or self._is_ahead(offset, in_hand))
        return None

    def _is_ahead(self, offset: int, in_hand: Collection[int]) -> bool:
        """Whether the checkpoint does not settle a half that is not pending."""
        progress = self._ledger.progress
        return offset >= progress.head() or offset in progress.unsettled or offset in in_hand


class CheckpointAuthor:
    """Recognises the records of a half partition that a checkpoint owes."""

    def __init__(
        self, kafka: Mapping[str, str], channel: ChannelDescription, number: int, committed: TopicPartition | None
    ) -> None:
        if committed is None:
            raise UndecidedError(
                f"{channel.half.name}/{number} has no checkpoint older than the one that hangs, so the relay "
                "cannot find out which records are its own; see docs/operations/recovery.md"
            )
        self._kafka = kafka
        self._channel = channel
        self._number = number
        self._checkpoint = parse_half_checkpoint(committed.metadata or "", committed.offset, channel.half.id, number)

    def last_own(self, found: Sequence[Found], in_hand: Collection[int]) -> Own | None:
        """See `Author`. What the checkpoint does not owe is passed over."""
        del in_hand
        owed = [own for own in written_halves(found, self._number) if self._checkpoint.owes(own[1])]
        halves = self._read({offset for _, offset in owed}) if owed else {}
        for record, offset in reversed(owed):
            if is_made_of(record, halves.get(offset)):
                return Own(record.record, record.offset, is_owed=True)
        return None

    def _read(self, offsets: Collection[int]) -> Mapping[int, Half]:
        decoder = Decoder(self._channel.discard.max_message_bytes, self._channel.verdict.name)
        with closing(HalfReader(self._kafka, self._channel.channel, self._number, decoder)) as halves:
            return halves.find(offsets)


def written_halves(found: Iterable[Found], partition: int) -> list[tuple[Written, int]]:
    """Return what a relay wrote for a half partition, with the half offsets; the halves may be of another channel."""
    own = written(found, str(partition))
    return [(one, int(one.place)) for one in own if one.place.isdigit() and len(one.place) <= _DIGITS]


def is_made_of(found: Written, half: Half | None) -> bool:
    """Whether a record is what was made of a half; services that forward headers make others like it elsewhere."""
    control, record = half.control if half else None, found.record
    if control is None or (control.transaction_id, control.topic) != (found.transaction_id, record.topic):
        return False
    return control.partition in {ANY_PARTITION, record.partition}


def parking_policy(settings: RelaySettings) -> ParkingPolicy:
    return ParkingPolicy(
        settings.service_pending_max,
        settings.service_pending_max_bytes,
        settings.undecided_max_age_ms,
        settings.check_max,
        settings.pending_max,
        settings.listener_max_age_ms,
        settings.keep_discarded_ms,
    )


class TakeOver:
    """The steps of a take-over; each may fail, and the caller decides what follows."""

    def __init__(
        self,
        settings: RelaySettings,
        admin: AdminClient,
        channel: ChannelDescription,
        consumer: Consumer,
        group: GroupMetadata,
        commits: OffsetCommits,
        checks: CheckSender,
        lookups: TopicLookups,
    ) -> None:
        self._settings = settings
        self._admin = admin
        self._channel = channel
        self._consumer = consumer
        self._group = group
        self._commits = commits
        self._checks = checks
        self._lookups = lookups
        self._feedback: dict[int, BatchFeedback] = {}

    def feedback_of(self, number: int) -> BatchFeedback:
        """Return what failed batches taught about a half partition."""
        settings, topic = self._settings, self._channel.channel.discard_topic
        return self._feedback.setdefault(
            number, BatchFeedback(settings.batch_policy(), topic, request_seconds(settings.kafka))
        )

    def forget(self, number: int) -> None:
        """Drop the feedback about a half partition that has another owner."""
        self._feedback.pop(number, None)

    def fence(self, number: int) -> Delivery:
        """Return an initialised producer for a half partition; a former owner cannot write any more."""
        kafka, channel = self._settings.polled_connection(), self._channel.channel
        transactional_id, patience = channel.transactional_id(number), self.feedback_of(number).volume.patience
        if self._settings.delivery == "at_least_once":
            commit = self._commits.serve(number)
            return PlainDelivery(kafka, transactional_id, channel.discard_topic, commit, patience)
        return TransactionalDelivery(kafka, transactional_id, patience, channel.relay_group)

    def restore(self, number: int) -> tuple[Ledger, list[TopicPartition]]:
        """Return the ledger of the committed checkpoints, and where to go on reading its three partitions.

        Unsettled halves below that place are read by the worker.
        """
        failpoint("relay.fenced")
        settings, channel = self._settings, self._channel
        deliver_again = settings.distrusted_checkpoint == "deliver_again"
        committed = read_checkpoints(self._consumer, channel, number, deliver_again=deliver_again)
        if not deliver_again:
            owner = Checkpointed.half_partition(channel.channel, number)
            refuse_undone_end(settings.connection(), owner, committed[0], settings.hanging_transaction)
        verify_discards(self._admin, channel, number)
        checkpoints = verify_checkpoints(
            self._consumer,
            channel,
            number,
            committed,
            deliver_again=deliver_again,
            skip_lost=settings.skips_lost(number),
        )
        ledger = Ledger(
            channel.half.id,
            number,
            without_lost_ops(self._consumer, channel, number, checkpoints),
            CheckPolicy(settings.transaction_timeout_ms, settings.check_interval_ms, settings.check_interval_max_ms),
            parking_policy(settings),
            BodyPolicy(bytes=settings.body_bytes),
        )
        begins = ledger.checkpoints()
        starts = (begins.half.head, begins.op.offset, begins.verdict.offset)
        places = [TopicPartition(at.topic, number, start) for at, start in zip(committed, starts, strict=True)]
        return ledger, places

    def why_unreadable(self, error: KafkaException, number: int) -> KafkaUnreachable:
        """Return why the checkpoints of a half partition cannot be read now."""
        owner = Checkpointed.half_partition(self._channel.channel, number)
        return why_unreadable(error, self._settings.connection(), owner.group, owner.place)

    def worker(self, ledger: Ledger, delivery: Delivery) -> PartitionWorker:
        """Return the worker of a half partition, not started."""
        kafka, channel, number = self._settings.connection(), self._channel, ledger.partition
        feedback, decoder = self.feedback_of(number), Decoder(channel.discard.max_message_bytes, channel.verdict.name)
        halves = HalfReader(kafka, channel.channel, number, decoder)
        readers = PartitionReaders(halves, DiscardReader(kafka, channel, number), decoder)
        gate = self._lookups.gate(number)
        hanging = self._hanging(ledger, delivery, halves)
        return PartitionWorker(
            ledger,
            readers,
            self._lookups.lookup(ledger.deliveries.queue, gate, hanging, feedback.refusals),
            Commits(ledger, channel, delivery, self._group.for_commit),
            CheckBack(ledger, self._checks, readers),
            feedback,
        )

    def _hanging(self, ledger: Ledger, delivery: Delivery, halves: HalfReader) -> HangingTransactions:
        if not isinstance(delivery, TransactionalDelivery):
            return HangingTransactions()
        kafka, group = self._settings.connection(), self._channel.channel.relay_group
        return OwnHangingTransactions(kafka, self._admin, group, HalfAuthor(ledger, halves), delivery)

    def end_hanging(self, number: int) -> None:
        """End a hanging transaction that hides the checkpoint of a half partition (R51)."""
        settings, channel = self._settings, self._channel
        kafka, owner = settings.connection(), Checkpointed.half_partition(channel.channel, number)
        author_of = partial(CheckpointAuthor, kafka, channel, number)
        end_hanging(kafka, self._admin, channel.channel, owner, author_of, settings.hanging_transaction)


class Fencing:
    """The take-overs that wait for Kafka to fence the former owner. Only the service's thread asks."""

    def __init__(self, fence: Callable[[int], Delivery]) -> None:
        self._fence = fence
        self._begun: dict[int, Future[Delivery]] = {}

    def begin(self, numbers: Collection[int]) -> None:
        """Begin to fence the former owners of half partitions, unless that is under way."""
        new = [number for number in numbers if number not in self._begun]
        if not new:
            return
        pool = thread_pool(len(new))
        for number in new:
            self._begun[number] = pool.submit(self._fence, number)
        pool.shutdown(wait=False)

    def take_done(self, seconds: float = 0.0) -> Iterator[tuple[int, Delivery | Exception]]:
        """Yield what is done, all at the latest after so many seconds: a producer, or why there is none."""
        wait(self._begun.values(), seconds)
        for number in [number for number, future in self._begun.items() if future.done()]:
            future = self._begun.pop(number)
            try:
                yield number, future.result()
            except ConfigurationError:
                raise
            except Exception as error:  # noqa: BLE001 - it is about this half partition alone (R81)
                yield number, error

    def drop(self, numbers: Collection[int]) -> None:
        """Wait for half partitions that are ours no longer: a producer that comes later would fence the next owner."""
        for number in self._begun.keys() & set(numbers):
            with suppress(DeliveryError, OutboxError):
                self._begun.pop(number).result().close()

    def drop_all(self) -> None:
        """Wait for all, as `drop`."""
        self.drop(list(self._begun))
