"""Half mode: what the relay knows of halves and decisions, and from where it goes on."""

import time
from collections.abc import Collection, Iterable, Iterator, Sequence

from confluent_kafka import OFFSET_INVALID, Consumer, Message, TopicPartition
from confluent_kafka.admin import AdminClient

from outbox._kafka.channel import ChannelDescription, _is_new
from outbox._kafka.topic_contract import _COMMON, _COMPACT, _ENVELOPE, RETENTION_MS, topic_settings
from outbox._rules.broker_clock import BrokerClock
from outbox.protocol.checkpoint import HalfCheckpoint, OpCheckpoint, _open
from outbox.protocol.discard import Manifest
from outbox.protocol.half import HalfControl, Truth
from outbox.protocol.names import Channel, Place
from outbox.protocol.op import OpEntry, OpSource, refuse_misplaced
from relay.half.kafka.half_reader import Decoder
from relay.half.ledger.deliveries import Deliveries
from relay.half.ledger.ledger import Ledger
from relay.half.ledger.op_decisions import Contradiction, Decisions, EarlyOp, Obeyed
from relay.half.ledger.partition_progress import OpProgress, Progress, Unsettled
from relay.half.ledger.pending_transactions import Lanes
from relay.half.ledger.plain_halves import PlainHalves, _commits, _lane, _Road
from relay.half.serving.commits import PROGRESS_SECONDS, Commits
from relay.half.serving.intake import Intake, Unreadable
from relay.half.serving.restore import _without_lost_halves, lost_ops, read_checkpoints
from relay.half.serving.take_over import HalfAuthor
from relay.half.serving.worker import PartitionWorker
from relay.half.state.discard_index import Discards, ParkedHalves, from_manifest
from relay.half.state.half_records import Half
from relay.half.state.message_transaction import Event, State, Transaction
from relay.half.state.parking import Parking, Patience, Urgent
from tests.mutants.runner.catalogue import fails, mutant
from tests.mutants.runner.mutant import Harm


@mutant(Discards.leave, "discard index", Harm.DOUBLED)
@fails("unit/relay/test_discards.py::test_what_was_delivered_is_not_delivered_again_when_the_op_is_read_again")
def discard_index_after_delivery(self: Discards, transaction: Transaction) -> None:
    """What was delivered from the discard topic has left it, whatever a fetch would still return. Compaction is late:
    if the index still names it, the same op, read once more, has it delivered once more: doubled."""
    transaction.state = State.PENDING
    self.unpin(transaction.id)


@mutant(Ledger.restore_discards, "discard index", Harm.LOST)
@fails("unit/relay/test_discards.py::test_a_commit_whose_effect_was_not_committed_has_it_after_the_crash")
def discard_index_at_take_over(self: Ledger, manifests: Iterable[Manifest]) -> None:
    """What lies in the discard topic is known before anything else is read. A new owner that does not know what is
    parked takes the decision on it for one on halves that were settled long ago, and drops it: lost."""


@mutant(Discards.expire, "R91", Harm.LOST)
@fails("unit/relay/test_discards.py::test_what_an_operator_resumed_does_not_leave_by_age")
def r91_before_the_ops_are_read(self: Discards, now: int, soon_ms: int, ops_known_until: int) -> None:
    """A dead letter of halves leaves by age once each op is read that may have resumed it before. Without it a message
    that an operator has delivered is deleted instead: lost."""
    for manifest in list(self._refused.values()):
        if manifest.discarded_ms < now - self._keep_ms:
            self.remove(from_manifest(manifest))


@mutant(Ledger._due, "due time at restore", Harm.STUCK)
@fails("unit/relay/test_ledger.py::test_what_was_due_before_a_restart_is_due_at_once_after_it")
def due_time_at_restore(self: Ledger, half: Half, control: HalfControl) -> int:
    """A half is due by its own append time, also for a relay that reads it later. If the time counts from the reading,
    a relay that is restarted often never asks about anything: what has no op marker is stuck."""
    age = self._policy.transaction_timeout_ms if control.options.immunity is None else control.options.immunity
    return max(half.append_time, self.overdue.ops_known_until()) + age


@mutant(PartitionWorker._can_read_halves, "never pausing both partitions", Harm.STUCK)
@fails("unit/relay/test_partition_worker.py::test_ops_are_read_on_while_the_half_partition_stands_still")
def never_pausing_both_partitions(self: PartitionWorker) -> bool:
    """Ops for halves ahead may wait only while halves can be read. The op that decides a window's lowest half may lie
    behind more early ops than there is room for: if both wait for each other, it is for ever."""
    return True


@mutant(OpProgress.checkpoint, "op position", Harm.LOST)
@fails("unit/relay/test_ledger.py::test_an_op_that_comes_before_its_half_is_kept_and_pins_the_op_partition")
@fails("unit/relay/test_discards.py::test_a_commit_whose_effect_was_not_committed_has_it_after_the_crash")
@fails("unit/relay/test_discards.py::test_an_operator_has_pre_flight_look_again")
def op_position(self: OpProgress, needed: Iterable[int | None]) -> OpCheckpoint:
    """No op or verdict checkpoint passes an op whose half was not read, or whose effect is to come. It is not read
    again after a crash, and nobody asks about what an operator has decided in the discard topic: lost."""
    head = max(self.next, self._restored_head)
    return OpCheckpoint(head, head)


_event = Transaction.event


@mutant(Transaction.event, "R14", Harm.PHANTOM)
@fails("unit/relay/test_ledger.py::test_a_contradiction_is_looked_up_and_the_checker_wins")
@fails("unit/relay/test_ledger.py::test_a_third_op_of_a_producer_does_not_end_a_dispute")
@fails("unit/relay/test_ledger.py::test_commits_that_list_different_halves_contradict_each_other")
def r14_contradictions(self: Transaction, entry: OpEntry, source: OpSource) -> Event | None:
    """Ops that contradict each other are looked up, never first-wins. If a wrong or forged COMMIT is obeyed because it
    came first, the message of a transaction that was rolled back is delivered: a phantom."""
    found = _event(self, entry, source)
    return None if found is Event.CONTRADICTION else found


@mutant(_open, "R18", Harm.LOST)
@fails("unit/protocol/test_checkpoint.py::test_a_moved_offset_does_not_keep_its_string")
@fails("unit/protocol/test_checkpoint.py::test_a_string_of_another_topic_is_refused_with_the_reason")
@fails("unit/protocol/test_checkpoint.py::test_string_of_another_partition_is_refused")
def r18_string_that_proves_itself(text: str, offset: int, topic_id: str, partition: int, kind: str) -> str:
    """State is restored only from a string that proves version, topic, partition and offset. A string that was copied
    to another offset or partition, or that belongs to a recreated topic, calls halves settled that are not: lost."""
    body = text.rpartition(";")[0]
    return [*body.split(";", 3), "", "", ""][3]


@mutant(Progress.half_checkpoint, "R19", Harm.LOST)
@fails("unit/relay/test_ledger.py::test_an_undecided_half_pends")
@fails("unit/relay/test_ledger.py::test_order_is_kept_across_a_crash")
@fails("unit/relay/test_ledger.py::test_a_crash_between_the_halves_of_a_transaction_keeps_it_whole")
def r19_lowest_unsettled(self: Progress) -> HalfCheckpoint:
    """The committed offset is the lowest unsettled half, not the head. With the head, an undecided half is behind the
    committed offset: the next owner never reads it again, and its message is lost when its transaction commits."""
    return HalfCheckpoint(self.head(), self.head())


@mutant(Unsettled.settle, "R20", Harm.STUCK)
@fails("unit/relay/test_unsettled.py::test_rolled_back_offsets_leave_checkpoint_when_space_frees")
def r20_named_for_ever(self: Unsettled, offsets: Iterable[int]) -> None:
    """What was settled without a delivery is named no more as soon as there is room, whatever makes it. If only the
    next rollback looked again, a lowest offset of that kind would keep all that is committed above it for ever."""
    for offset in offsets:
        self._remove(range(offset, offset + 1))


@mutant(Urgent.without_expected_answer, "R21", Harm.OUT_OF_ORDER)
@fails("unit/relay/test_parking.py::test_after_an_outage_nobody_is_parked_while_the_answers_come_in")
@fails("unit/relay/test_parking.py::test_the_oldest_of_a_service_that_is_answered_for_are_asked_about_at_once")
def r21_answered_for(
    self: Urgent, undecided: Iterable[Transaction], now: int, patience: Patience
) -> Iterator[Transaction]:
    """A service whose checks are being answered is not parked for want of room. After an outage decisions come
    scattered, and fill the checkpoint string. Without it the undecided are parked while answers come."""
    yield from undecided


@mutant(Commits.is_due, "R22", Harm.STUCK)
@fails("unit/relay/test_partition_worker.py::test_an_idle_partition_commits_hourly")
def r22_heartbeat(self: Commits) -> bool:
    """An idle partition commits hourly. Kafka forgets the offsets of a group that commits nothing for a week, and a
    transactional id likewise. The relay's next start finds no checkpoint, and waits for somebody to look."""
    return self._ledger.checkpoints() != self._committed and time.monotonic() - self._committed_at >= PROGRESS_SECONDS


@mutant(_is_new, "R22", Harm.DOUBLED)
@fails("integration/relay/test_discard.py::test_create_after_lost_offsets_refuses_used_partitions")
def r22_initial_checkpoint(admin: AdminClient, place: tuple[str, int], created: Collection[str]) -> bool:
    """An initial checkpoint is committed only where nothing was ever settled. Kafka forgets the offsets of a group
    without members after a week, and the half topic keeps its halves for longer: all come again."""
    return True


@mutant(read_checkpoints, "R22", Harm.DOUBLED)
@fails("unit/relay/test_restore.py::test_a_partition_without_a_checkpoint_is_not_served")
def r22_no_guess(
    consumer: Consumer, channel: ChannelDescription, number: int, *, deliver_again: bool = False
) -> list[TopicPartition]:
    """A missing checkpoint stops the relay; no offset is guessed. A relay that takes a group whose offsets are gone for
    a new channel reads the half topic from its beginning, and delivers again what was delivered."""
    places = [TopicPartition(topic.name, number) for topic in (channel.half, channel.op, channel.verdict)]
    half, op, verdict = consumer.committed(places, 10.0)
    if OFFSET_INVALID not in {half.offset, op.offset}:
        return [half, op, verdict]
    return [
        TopicPartition(half.topic, number, 0, HalfCheckpoint(0, 0).encode(channel.half.id, number)),
        TopicPartition(op.topic, number, 0, OpCheckpoint(0, 0).encode(channel.op.id, number)),
        verdict,
    ]


@mutant(BrokerClock.now, "R25", Harm.STUCK)
@fails("unit/relay/test_overdue.py::test_the_clock_knows_nothing_before_it_saw_something")
@fails("unit/relay/test_overdue.py::test_the_clock_goes_on_by_itself_after_the_newest_append")
@fails("unit/relay/test_overdue.py::test_an_older_append_does_not_turn_the_clock_back")
def r25_no_client_clock(self: BrokerClock, monotonic: int) -> int:
    """Ages are broker append times plus monotonic time; no clock of a client decides anything. With one that is behind,
    nobody is ever overdue; with one that is ahead, slow transactions are fenced that were in time."""
    return time.time_ns() // 1_000_000


_park = Ledger._park


@mutant(Ledger._park, "R26", Harm.LOST)
@fails("unit/relay/test_discards.py::test_the_checker_is_asked_on_and_brings_it_back")
def r26_discarded_is_no_verdict(self: Ledger, transaction: Transaction, why: str) -> ParkedHalves:
    """What lies in the discard topic undecided goes on being asked about, and comes back. A transaction of which nobody
    heard for a day is parked. If its database comes back with a committed row and nobody asks, its message is lost."""
    move = _park(self, transaction, why)
    transaction.due = -1  # so its entry on the clock is void
    return move


@mutant(Decisions._count_unknown, "R26", Harm.OUT_OF_ORDER)
@fails("unit/relay/test_ledger.py::test_an_unknown_answer_counts_once_and_moves_the_number_of_the_check")
def r26_unknown_counts_once(self: Decisions, transaction: Transaction, entry: OpEntry) -> None:
    """An answer UNKNOWN counts once, by the number of its check. Ops are read again after each hand-over: if each
    reading counts, a few restarts of the relay give a transaction up, out of its order."""
    self._counts["unknown"] += 1
    transaction.unknown_answers += 1
    transaction.last_answer = entry.reason
    self._parking.answered_unknown(transaction)


@mutant(Deliveries._is_free, "R28", Harm.OUT_OF_ORDER)
@fails("unit/relay/test_ledger.py::test_one_ordering_key_keeps_the_order_of_first_halves")
@fails("unit/relay/test_ledger.py::test_one_that_waits_for_its_halves_holds_its_ordering_key")
@fails("unit/relay/test_ledger.py::test_order_is_kept_across_a_crash")
def r28_order(self: Deliveries, transaction: Transaction) -> bool:
    """Later transactions of a (service, ordering key) wait behind an undecided earlier one, whose op marker may be
    lost. If they pass it, consumers see the new state of an order before the old one: out of order."""
    decision = transaction.decision
    if transaction.state is not State.COMMITTED or decision is None or decision.last_offset >= self._progress.next_half:
        return False
    return self._discards.is_whole(transaction) if transaction.discarded else self._pending.holds(transaction)


@mutant(_without_lost_halves, "R38", Harm.LOST)
@fails("integration/relay/test_discard.py::test_halves_that_are_gone_from_the_topic_stop_the_relay")
def r38_lost_halves(
    topic: str, number: int, checkpoint: HalfCheckpoint, start: int, *, skip_lost: bool
) -> HalfCheckpoint:
    """Halves that were removed before they were settled are never passed without an operator's word. Without it,
    committed messages that retention removed before they were delivered are lost, and nobody hears of it."""
    return checkpoint.without(start)[0]


@mutant(lost_ops, "R38", Harm.STUCK)
@fails("integration/relay/test_halts.py::test_lost_ops_are_decided_by_checks")
def r38_lost_ops(consumer: Consumer, topic: str, number: int, checkpoint: OpCheckpoint) -> int:
    """An op partition whose next op was removed goes on from its beginning. Without it the relay reads from an offset
    that is gone, and the half partition is taken over again for ever."""
    return 0


@mutant(Decoder._why_skipped, "R40", Harm.STUCK)
@fails("unit/relay/test_poison.py::test_decoder_skips_only_what_it_cannot_read")
def r40_skip(self: Decoder, message: Message) -> str | None:
    """An operator's skip passes by a record that halts its half partition. Without it the half partition stands still
    for as long as the half topic has the record: 14 days, or what the topic is set to."""
    return None


@mutant(Obeyed.contradiction, "R42", Harm.LOST)
@fails("unit/relay/test_obeyed.py::test_ledger_op_against_a_settled_decision_is_an_event")
def r42_contradiction_of_what_was_obeyed(self: Obeyed, source: OpSource, entry: OpEntry) -> Contradiction | None:
    """A decision that contradicts one that was obeyed is an event, after the transaction was settled, too. Without it,
    a forged or late ROLLBACK before the COMMIT loses a committed message, and no counter, log or alarm shows it."""
    return None


@mutant(Deliveries._is_read, "R44", Harm.LOST)
@fails("unit/relay/test_parking.py::test_transaction_waits_for_its_deferred_halves")
def r44_deferred_halves_of_a_transaction(self: Deliveries, transaction: Transaction, decision: OpEntry) -> bool:
    """A decided transaction waits for those of its halves that are deferred. Without the rule it is taken for one that
    lacks a position, and is discarded as INCOMPLETE although all of its halves are in the half topic."""
    return decision.last_offset < self._progress.next_half


@mutant(Parking.is_full, "R44", Harm.STUCK)
@fails("unit/relay/test_parking.py::test_service_at_its_limit_does_not_hold_up_others")
@fails("unit/relay/test_parking.py::test_flood_is_deferred_after_a_restart_too")
def r44_service_at_its_limit(self: Parking, service: str) -> bool:
    """A service at its limit holds up nobody. Without the rule its halves are kept until the half partition is
    full. Then nothing is read until they are parked, and another service's committed message waits so long."""
    return False


@mutant(Parking._age_limit, "R45", Harm.STUCK)
@fails("unit/relay/test_parking.py::test_listener_without_answer_is_parked_after_its_own_age")
def r45_listener_age(self: Parking, transaction: Transaction) -> int:
    """A listener transaction that nobody answers for is parked after its own age, not after that of rows. Without it,
    the first undecided transaction of a service whose listener is gone blocks its ordering key for a day."""
    return self._policy.undecided_max_age_ms


@mutant(Parking._age_limit, "R45", Harm.OUT_OF_ORDER)
@fails("unit/relay/test_parking.py::test_listener_that_had_no_time_to_answer_is_not_parked")
def r45_time_to_answer(self: Parking, transaction: Transaction) -> int:
    """A listener has had time to answer before its transaction is parked for its age. Without it, a relay that comes
    back after hours parks what a running listener would decide within seconds."""
    age = self._policy.undecided_max_age_ms
    return min(age, self._policy.listener_max_age_ms) if transaction.truth is Truth.LISTENER else age


@mutant(Intake.unreadable, "R49", Harm.STUCK)
@fails("unit/relay/test_intake.py::test_record_that_cannot_be_unpacked_is_named")
def r49_unreadable(self: Intake) -> dict[Place, Unreadable]:
    """A record that cannot be unpacked halts its half partition at a named offset. Without it the relay reads the same
    offset for ever, is ready, and delivers nothing that lies behind the record."""
    return {}


@mutant(topic_settings, "R52", Harm.STUCK)
@fails("unit/outbox/test_contract.py::test_channel_that_stores_compressed_batches_is_warned_of")
@fails("integration/relay/test_poison.py::test_broker_refuses_a_batch_that_unpacks_to_too_much")
def r52_uncompressed(channel: Channel) -> dict[str, dict[str, str]]:
    """Internal topics do not store compressed batches. A batch of 3 kB that unpacks to 90 MB comes to each relay, and a
    few of them take more memory than it has: it is ended again and again, and all stands still."""
    delete = {**_COMMON, "cleanup.policy": "delete", "retention.ms": str(RETENTION_MS)}
    return {
        channel.half_topic: delete,
        channel.op_topic: delete,
        channel.verdict_topic: delete,
        channel.check_topic: {**delete, **_ENVELOPE},
        channel.discard_topic: {**_COMPACT, **_ENVELOPE},
    }


@mutant(refuse_misplaced, "R65", Harm.LOST)
@fails("unit/protocol/test_op.py::test_rank_is_proven_by_the_topic_of_the_record")
@fails("unit/relay/test_poison.py::test_decoder_drops_an_op_of_a_source_of_another_topic")
def r65_rank_by_header(source: OpSource, *, verdict: bool) -> None:
    """Rank is proven by place; a header alone proves none. An application that writes `checker` into the op topic
    overrules its producers: what committed is dropped or what did not is shown, and nobody looks the row up."""


@mutant(Lanes.is_held, "R28", Harm.OUT_OF_ORDER)
@fails("unit/relay/test_plain_halves.py::test_the_order_of_a_key_is_kept_here_and_behind_the_ledger")
def r28_plain_half_behind_the_ledger(self: Lanes, service: str, key: bytes) -> bool:
    """A half that needs no decision of its own waits behind those of its key that are in the ledger. Without it, it
    leaves past the ledger with its op marker, and overtakes an earlier one that is undecided: out of order."""
    return False


@mutant(_lane, "R28", Harm.OUT_OF_ORDER)
@fails("unit/relay/test_plain_halves.py::test_the_order_of_a_key_is_kept_here_and_behind_the_ledger")
def r28_plain_halves_of_one_key(half: Half) -> tuple[str, bytes] | None:
    """Plain halves of one key leave in their order. Without it the one whose marker comes first leaves first, and the
    messages of its key are out of order on their real topic."""
    return None


@mutant(_commits, "R14", Harm.PHANTOM)
@fails("unit/relay/test_plain_halves.py::test_only_the_one_marker_that_commits_a_half_lets_it_leave")
def r14_any_op_on_a_plain_half(ops: Sequence[EarlyOp], half: Half) -> bool:
    """Past the ledger leaves only what one op marker of its producer commits as it is. Without it, a half of which a
    ROLLBACK was read, or two ops that contradict each other, is delivered: a phantom."""
    return True


@mutant(_Road.passes, "R24", Harm.STUCK)
@fails("unit/relay/test_plain_halves.py::test_what_gate_or_pre_flight_would_refuse_goes_to_the_ledger")
def r24_plain_half_without_a_topic(self: _Road, half: Half) -> bool:
    """Plain halves pass gate and pre-flight, too. Without it, one that its topic will never take fails each batch."""
    return True


@mutant(PlainHalves._found_elsewhere, "R24", Harm.LOST)
@fails("unit/relay/test_plain_halves.py::test_what_is_not_plain_goes_to_the_ledger_behind_all_before_it")
def r24_half_of_a_transaction_of_several(self: PlainHalves) -> set[str]:
    """What has several halves, here or in the ledger, is no plain half: a transaction is delivered whole. Without it
    its first half leaves alone, and an op on the others finds no transaction: they are lost, or come much later."""
    return set()


@mutant(PlainHalves.lowest, "an op before its half", Harm.STUCK)
@fails("unit/relay/test_plain_halves.py::test_an_op_on_a_half_that_waits_is_not_lost")
def op_on_a_half_that_waits(self: PlainHalves, below: int) -> int:
    """The op of a half that was read and is not in the ledger is kept. Without it, it counts as lost: check-back must
    answer, and an alarm names halves as missing that are there."""
    return below


@mutant(HalfAuthor._is_ahead, "R31", Harm.DOUBLED)
@fails("unit/relay/test_hanging_transactions.py::test_the_last_own_record_tells_how_its_transaction_had_ended")
def r31_half_that_is_not_in_the_ledger(self: HalfAuthor, offset: int, in_hand: Collection[int]) -> bool:
    """What the checkpoint names unsettled is owed, also where the ledger has no transaction of it: deferred halves, and
    plain ones. Without it, records that hang of them are ended as committed, and delivered once more: doubled."""
    return offset >= self._ledger.progress.head() or offset in in_hand
