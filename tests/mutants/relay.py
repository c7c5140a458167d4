"""The relay: its batches, its Kafka transactions, its partitions and its process."""

import logging
import math
import time
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

from confluent_kafka import KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient

from outbox._half.draft import PlannedHalf, _too_large
from outbox._kafka import admin as administration
from outbox._kafka.admin import REQUEST_TIMEOUT
from outbox._postgres.limited_connection import LimitedConnection
from outbox._rules.topic_description import Replicas, TopicDescription
from outbox._service.channels.channel_threads import ChannelThread
from outbox._service.membership import not_joined, refuse_missing_right
from outbox.message import Message
from outbox.protocol.names import Channel, is_platform_topic
from outbox.protocol.record import Record
from relay.delivery.producer import BatchProducer, ClientLog, DeliveryError
from relay.delivery.rules.allow_list import EVERYTHING, AllowList
from relay.delivery.rules.outgoing import Finding, OutgoingTransaction
from relay.delivery.rules.preflight import LookAgain, RealTopic, T, inspect, refused
from relay.delivery.rules.topic_gate import Gate
from relay.delivery.rules.volume import Volume
from relay.delivery.sending import Blame, Refusals
from relay.delivery.transactional_delivery import OFFSETS_SECONDS, Ready, TransactionalDelivery, _is_suspicious, at_once
from relay.half.kafka.half_reader import keepable
from relay.half.ledger.op_decisions import Waiting
from relay.half.partitions.ownership import Halts, Stalls, _Progress
from relay.half.serving.commits import GroupMetadata
from relay.half.serving.served import ServedPartitions
from relay.half.serving.take_over import Fencing
from relay.half.serving.worker import PartitionWorker
from relay.half.state.half_records import Half
from relay.half.state.message_transaction import Transaction
from relay.recovery.hanging_checkpoint import Checkpointed, Word, decided, refuse_undone_end
from relay.recovery.hanging_transactions import OwnHangingTransactions
from relay.recovery.transaction_state import Decision, Outcome
from relay.service import RelayService
from relay.settings import require_allow_list
from tests.mutants.runner.catalogue import fails, mutant
from tests.mutants.runner.mutant import Harm


@mutant(BatchProducer.flush, "flush before offsets", Harm.LOST)
@fails("unit/relay/test_delivery.py::test_a_late_end_of_a_transaction_never_costs_a_message")
def flush_before_offsets(self: BatchProducer) -> None:
    """A batch is flushed before its offsets are sent: librdkafka does not do so. Unflushed messages leave after them: a
    late EndTxn of the old protocol commits the offsets, the messages are refused, and the relay goes on: lost."""


@mutant(ServedPartitions._give_way, "giving up after _FENCED", Harm.STUCK)
@fails("integration/relay/test_fenced_relay.py::test_a_relay_that_was_fenced_leaves_the_new_owner_alone")
def giving_up_after_fencing(self: ServedPartitions, number: int) -> None:
    """A relay that was fenced serves the partition again only in a new generation of its group. If it takes that back
    after a moment, it fences the new owner, which does the same: the partition is stuck."""
    self.ownership.try_later(number, time.monotonic())


@mutant(GroupMetadata.for_commit, "R15", Harm.DOUBLED)
@fails("unit/outbox/test_membership.py::test_offsets_are_not_committed_without_a_generation")
def r15_generation_of_the_group(self: GroupMetadata) -> bytes:
    """Offsets are committed with metadata of a generation. Without one Kafka checks nothing: a relay that has lost its
    partitions moves their checkpoint all the same, and messages come twice, or not at all."""
    return self.newest


@mutant(TransactionalDelivery._fill, "R15", Harm.LOST)
@fails("unit/relay/test_delivery.py::test_a_late_end_of_a_transaction_never_costs_a_message")
def r15_offsets_last(
    self: TransactionalDelivery,
    records: Iterable[Record],
    offsets: Sequence[TopicPartition],
    group_metadata: bytes,
    ready: Ready = at_once,
) -> None:
    """In a Kafka transaction of the relay the offsets come last. A late EndTxn (KAFKA-17754) ends the next transaction
    in its midst: with the offsets first it commits them without the rest of the messages: lost."""
    self._producer.client.send_offsets_to_transaction(list(offsets), group_metadata, OFFSETS_SECONDS)
    self._producer.produce(records)
    self._producer.flush()


@mutant(PartitionWorker.run, "R17", Harm.LOST)
@fails("unit/relay/test_partition_worker.py::test_it_ends_at_the_first_error")
def r17_after_an_error(self: PartitionWorker) -> None:
    """After an error neither the producer nor the ledger is used again. What that handed out it holds for settled: its
    next checkpoint is beyond the messages of the Kafka transaction that failed, and they are lost."""
    self._restore_discards()
    self._restore_halves()
    while not self.arrivals.is_stopping:
        self._wait()
        try:
            self._read()
            self._settle()
        except DeliveryError as error:
            self.failure = error
            self._commit([], 0)


_LOG = ClientLog.log


@mutant(ClientLog.log, "R17", Harm.DOUBLED)
@fails("unit/relay/test_remedy.py::test_a_lost_connection_or_answer_is_trouble_and_other_lines_are_not")
def r17_error_that_is_not_logged_again(
    self: ClientLog, level: int, _form: str, facility: str, client: str, text: str
) -> None:
    """A lost connection is noticed although librdkafka logs it only twice in 30 s. The commit looks healthy else, and
    the request that was sent first ends the next Kafka transaction."""
    if level >= logging.INFO:
        _LOG(self, level, _form, facility, client, text)


@mutant(_is_suspicious, "R17", Harm.DOUBLED)
@fails("unit/relay/test_delivery.py::test_after_a_slow_commit_a_late_end_changes_nothing")
def r17_fresh_producer(seconds: float) -> bool:
    """A producer whose commit took long is not used again. librdkafka may have sent EndTxn twice: the first one ends
    the next transaction in its midst, what was written is visible, and written anew: doubled."""
    return False


_consumer_config = RelayService._consumer_config


@mutant(RelayService._consumer_config, "R22", Harm.LOST)
@fails("integration/relay/test_discard.py::test_halves_that_are_deleted_under_a_running_relay_stop_it")
def r22_offset_out_of_range(self: RelayService) -> dict[str, object]:
    """A checkpoint outside its topic stops the relay; the consumer does not choose another place to begin. Retention,
    or somebody, deletes halves under a relay that is behind. One that goes on with what is left loses them."""
    return {**_consumer_config(self), "auto.offset.reset": "earliest"}


@mutant(inspect, "R24", Harm.STUCK)
@fails("unit/relay/test_preflight.py::test_one_bad_message_stops_its_whole_transaction")
def r24_pre_flight(
    transaction: OutgoingTransaction,
    topics: Mapping[str, RealTopic | None],
    channel: Channel,
    now: int | None = None,
    allowed: AllowList = EVERYTHING,
    more: int = 0,
    *,
    bodies: bool = True,
) -> Finding | None:
    """Whole transactions pass pre-flight before they enter a batch. One message to a topic that was deleted, or that is
    too large for it, fails its Kafka transaction, again and again: the half partition is stuck."""
    return None


@mutant(Transaction.lacks, "R24", Harm.LOST)
@fails("unit/relay/test_preflight.py::test_a_transaction_that_lacks_a_listed_position_is_incomplete")
@fails("unit/relay/test_preflight.py::test_a_message_whose_body_is_not_here_is_not_delivered")
def r24_what_a_transaction_lacks(self: Transaction) -> Finding | None:
    """A transaction of which a listed half is gone is not delivered in part. Without it the others are delivered, and
    readers see half of a change: the rest is lost, and no discard names it."""
    return None


@mutant(OwnHangingTransactions.end, "R31", Harm.DOUBLED)
@fails("unit/relay/test_hanging_transactions.py::test_a_transaction_that_was_just_handed_out_is_owed")
def r31_what_was_left_open(
    self: OwnHangingTransactions, topics: Mapping[str, int], in_hand: Collection[int] = frozenset()
) -> Mapping[str, str]:
    """What former transactions left open on a real topic is ended before anything is written there. A broker without a
    leader for the partition has skipped the end of an aborted transaction. The next commit commits it, too: doubled."""
    return {}


@mutant(Refusals.failed, "R33", Harm.STUCK)
@fails("unit/relay/test_partition_worker.py::test_refused_topic_waits_and_the_others_go_on")
@fails("unit/relay/test_refusals.py::test_closed_topic_opens_after_its_pause")
def r33_topic_to_blame(self: Refusals, found: Blame, cost: int, now: int) -> Mapping[str, int]:
    """A real topic whose records Kafka did not acknowledge is closed for a while in its half partition. Without that
    the batch that failed is written again as it was, and fails again: all its other topics wait, too."""
    return {}


@mutant(Volume.timed_out, "R34", Harm.STUCK)
@fails("unit/relay/test_volume.py::test_backlog_drains_over_a_thin_line")
@fails("unit/relay/test_partition_worker.py::test_batch_after_a_time_out_is_half_as_large")
def r34_batch_for_the_line(self: Volume, messages: int, size: int, *, is_single: bool) -> None:
    """After a time-out the next batch is half as large. Without that a batch that the connection cannot carry in time
    is sent again from its beginning, and never gets through."""


@mutant(Halts.of_all, "R36", Harm.STUCK)
@fails("unit/relay/test_ownership.py::test_halts_of_some_partitions_leave_the_others")
@fails("integration/relay/test_halts.py::test_damaged_checkpoint_halts_only_its_partition")
def r36_halt_alone(self: Halts, partitions: int) -> Exception | None:
    """A half partition that cannot go on halts alone. Without it one damaged checkpoint ends the relay, and each one
    that takes its place: all half partitions stand still."""
    return next(iter(self._causes.values()), None) if partitions else None


@mutant(keepable, "R37", Harm.STUCK)
@fails("unit/relay/test_poison.py::test_discarded_stub_fits_the_discard_topic")
@fails("integration/relay/test_poison.py::test_half_that_unpacks_to_too_much_leaves_as_a_stub")
def r37_stub(half: Half, most: int) -> Half:
    """A half that the discard topic cannot keep leaves as a stub. Without it the Kafka transaction that discards it
    fails for ever, and all behind it in its half partition stands still."""
    return half


@mutant(refuse_missing_right, "R43", Harm.STUCK)
@fails("unit/outbox/test_membership.py::test_missing_right_is_refused_by_name")
def r43_missing_right(error: KafkaError, rights: str, names: Mapping[str, str]) -> None:
    """A service without a right that it cannot work without ends and names the right. Without it, a relay that may not
    join its group logs one warning and serves nothing: a rolling update replaces good relays by such ones."""


@mutant(not_joined, "R43", Harm.STUCK)
@fails("unit/outbox/test_membership.py::test_membership_without_a_generation_is_not_ready")
def r43_not_joined(group_metadata: bytes, group: str) -> str | None:
    """A service is ready only as a member of its group. Without it, a relay that cannot join is ready and serves
    nothing: a rolling update replaces good relays by it, and what is published is stuck."""
    return None


@mutant(_too_large, "R48", Harm.LOST)
@fails("unit/outbox/test_publish_limits.py::test_relay_delivers_each_message_that_publish_accepts")
@fails("unit/outbox/test_publish_limits.py::test_relay_discards_as_too_large_what_publish_refuses")
def r48_headers_at_publish(message: Message, planned: PlannedHalf, topic: TopicDescription) -> str:
    """`publish()` accepts only what the relay can deliver. A message that only the relay finds too large is committed
    with its transaction and discarded: nobody reads it, and nothing told the application."""
    return "the message is too large" if message.size() > topic.max_record_bytes else ""


@mutant(Stalls.observe, "R50", Harm.STUCK)
@fails("unit/relay/test_ownership.py::test_batch_that_fails_again_and_again_is_no_progress")
def r50_progress(self: Stalls, partition: int, settled: int, now: float, *, has_work: bool) -> None:
    """Only a checkpoint that was never reached before is progress. Without it a half partition whose batch fails again
    and again counts as moving: each take-over begins at a lower checkpoint, and the relay stays ready."""
    found = self._found.setdefault(partition, _Progress(settled, now, has_work))
    if settled != found.most or not has_work:
        found.since = now
    found.most, found.has_work = settled, has_work


@mutant(TransactionalDelivery._require_stable, "R51", Harm.DOUBLED)
@fails("unit/relay/test_delivery.py::test_slow_commit_whose_checkpoint_hangs_ends_the_worker")
def r51_checkpoint_after_a_slow_commit(self: TransactionalDelivery, offsets: Sequence[TopicPartition]) -> None:
    """After a commit that may have been sent twice, a relay goes on only once Kafka returns its checkpoint. Without it,
    the next transaction, if it is aborted, takes a committed checkpoint along that hangs: its messages come twice."""


@mutant(decided, "R51", Harm.DOUBLED)
@fails("unit/relay/test_hanging.py::test_committed_transaction_is_ended_after_a_note")
@fails("unit/relay/test_hanging.py::test_decision_that_is_not_written_is_not_guessed")
def r51_decision_of_kafka(kafka: Mapping[str, str], admin: AdminClient, owner: Checkpointed) -> Decision:
    """A hanging transaction is ended as its coordinator decided it. Without it, its checkpoint is always dropped: the
    relay delivers messages again that readers have already seen."""
    return Decision(Outcome.ABORTED, None)


@mutant(refuse_undone_end, "R51", Harm.DOUBLED)
@fails("unit/relay/test_hanging.py::test_committed_transaction_is_ended_after_a_note")
def r51_note_before_the_end(
    kafka: Mapping[str, str], owner: Checkpointed, checkpoint: TopicPartition | None, word: Word
) -> None:
    """A note names the checkpoint that is not gone on from, should the end of a committed transaction be cut off.
    Without it, a relay goes on from the checkpoint before that one, and delivers messages twice."""


@mutant(is_platform_topic, "R63", Harm.PHANTOM)
@fails("unit/relay/test_allow.py::test_topics_of_other_platforms_are_protected_until_they_are_named")
@fails("unit/relay/test_preflight.py::test_one_bad_message_stops_its_whole_transaction")
def r63_topics_of_other_platforms(topic: str) -> bool:
    """Topics of other platforms are no real topics unless the allow-list names them. Without it, anybody who may
    publish writes to Connect's own topics: one record changes what every application of the cluster reads."""
    return False


@mutant(ChannelThread._stopped, "R66", Harm.STUCK)
@fails("unit/outbox/test_channel_threads.py::test_a_channel_that_fails_leaves_the_others")
@fails("integration/relay/test_channels.py::test_a_broken_channel_does_not_stop_the_other")
def r66_failure_of_a_channel(self: ChannelThread, error: Exception, seconds: float) -> float:
    """A failure of a channel stays in it. Without it the process ends with the first channel that fails, as a process
    of one channel does: all channels stand still."""
    self._stop_wanted.set()
    return 0.0


@mutant(require_allow_list, "R69", Harm.PHANTOM)
@fails("unit/relay/test_allow.py::test_production_requires_a_list_and_takes_the_explicit_word")
def r69_production_without_a_list(profile: str, allowed: Mapping[str, Sequence[str]] | None, channel: str = "") -> None:
    """In production a relay serves a channel only with an allow-list. Without it, a file from which the list was lost,
    by a slip or while it is written, opens every topic to every service."""


@mutant(administration.describe_topics, "R79", Harm.STUCK)
@fails("unit/outbox/test_targets.py::test_another_broker_is_asked_where_one_takes_a_request_and_answers_none")
def r79_broker_that_answers_none(
    admin: AdminClient, topics: Sequence[str], timeout: float = REQUEST_TIMEOUT, *, writing: bool = False
) -> dict[str, TopicDescription]:
    """Another broker is asked for descriptions of topics where one does not answer. Without it all owners of a process
    wait with the thread that asked a broker that is being stopped, and an application's first publication fails."""
    return administration._describe(admin, topics, timeout, writing=writing)


@mutant(BatchProducer.saw_broker_leave, "R79", Harm.STUCK)
@fails("unit/relay/test_delivery.py::test_when_a_broker_left_the_next_batch_has_a_fresh_producer")
def r79_broker_that_left(self: BatchProducer) -> bool:
    """A producer is used no more once a broker has left that it may take for the group's coordinator. Without it its
    `send_offsets_to_transaction` then waits without any time limit, and the half partition stands still."""
    return False


@mutant(TransactionalDelivery._wake_seconds, "R79", Harm.STUCK)
@fails("unit/relay/test_delivery.py::test_who_waits_for_the_groups_coordinator_is_woken")
def r79_wait_for_the_coordinator(self: TransactionalDelivery) -> float:
    """A producer that waits for the coordinator of its group is woken. The coordinator may move and leave the cluster
    while offsets are on their way. librdkafka then waits until another connection comes or goes: for ever, perhaps."""
    return math.inf


@mutant(LimitedConnection._limited, "R79", Harm.STUCK)
@fails("unit/outbox/test_limited_connection.py::test_a_session_without_an_answer_is_given_up")
def r79_silence_of_the_database(
    self: LimitedConnection, steps: Generator[Any, Any, Any], call: Any
) -> Generator[Any, Any, Any]:
    """A session of a database that does not answer is given up. Without it a table source on a dead line, or of a
    frozen server process, waits for ever: its rows stay, the relay is ready, and no log line names the cause."""
    del call
    return (yield from steps)


@mutant(BatchProducer.take_over, "R79", Harm.STUCK)
@fails("unit/relay/test_delivery.py::test_an_error_that_is_kept_keeps_no_client")
def r79_client_of_a_kept_error(self: BatchProducer, seconds: float) -> None:
    """No frame of an error refers to the client. Where a broker has left, a thread of each client that is kept uses
    a whole processor, and a relay that fails again and again has more of them each time."""
    client = self.client
    client.init_transactions(seconds)


@mutant(Replicas.are_few, "R80", Harm.STUCK)
@fails("unit/relay/test_preflight.py::test_replicas_on_lost_brokers_are_not_in_sync")
def r80_brokers_that_are_lost(self: Replicas, lost: AbstractSet[int] = frozenset()) -> bool:
    """A replica on a broker that this process has lost is not in sync, whatever Kafka says: its session lasts for a
    while. What is written to a topic that needs it has no end until it is back, and all topics of the owner wait."""
    return len(self.in_sync) < self.needed


_turn = Gate.turn


@mutant(Gate.turn, "R80", Harm.STUCK)
@fails("unit/relay/test_gate.py::test_metadata_from_before_a_broker_was_lost_is_dropped")
@fails("unit/relay/test_gate.py::test_closed_topic_is_described_as_soon_as_the_brokers_have_changed")
def r80_metadata_from_before(self: Gate, now: int, *, is_stale: bool = False) -> set[str]:
    """What was known of real topics before a broker was lost is dropped. It lists all replicas as in sync, and a Kafka
    transaction on a topic that needs the dead broker has no end: its owner waits with all topics."""
    return _turn(self, now)


@mutant(Waiting.add, "R85", Harm.STUCK)
@fails("unit/relay/test_ledger.py::test_a_decision_that_waits_is_read_again_after_a_take_over")
@fails("unit/relay/test_ledger.py::test_of_decisions_that_wait_only_the_newest_are_read_again")
def r85_decisions_that_wait(self: Waiting, transaction_id: str, offset: int) -> None:
    """A take-over reads the op of what is decided and waits once more. Without it each message that waited for a broker
    waits another minute, or until a checker runs, when its half partition was taken over meanwhile."""


@mutant(ServedPartitions._halt_unforeseen, "R81", Harm.STUCK)
@fails("unit/relay/test_served.py::test_a_worker_that_fails_unforeseen_halts_its_half_partition")
@fails("unit/relay/test_served.py::test_a_take_over_that_fails_unforeseen_halts_its_half_partition")
def r81_half_partition(self: ServedPartitions, number: int, error: BaseException) -> None:
    """An unforeseen error halts the half partition that it is about. Without it one record that meets a bug ends the
    relay, again after each restart: all tables and half partitions stand still."""
    raise RuntimeError(f"partition {number} failed") from error


@mutant(refused, "R83", Harm.STUCK)
@fails("unit/relay/test_partition_worker.py::test_before_a_dead_letter_the_topic_is_looked_at_once_more")
@fails("unit/relay/test_table_admission.py::test_before_a_dead_letter_the_topic_is_described_once_more")
def r83_second_look(
    transactions: Sequence[T], judge: Callable[[T], Finding | None], look_again: LookAgain
) -> dict[T, Finding]:
    """Before a dead letter whose reason depends on a topic, the topic is described once more. An application sees a
    limit that was raised and publishes; the relay remembers the old one, and the message waits for an operator."""
    return {transaction: finding for transaction in transactions if (finding := judge(transaction))}


@mutant(Fencing.drop, "waiting for a take-over", Harm.STUCK)
@fails("unit/relay/test_served.py::test_no_producer_comes_after_its_half_partition_was_given_up")
def waiting_for_a_take_over(self: Fencing, numbers: Collection[int]) -> None:
    """What is given up while its producer is being initialised is waited for. A producer that comes after the half
    partition has its next owner fences that one, which gives way until the group has a new generation."""
    for number in numbers:
        self._begun.pop(number, None)
