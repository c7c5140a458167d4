"""`outbox relay --check`: what a relay would find, without joining the group or writing anything."""

from collections.abc import Iterator

from confluent_kafka import Consumer, KafkaException

from outbox._kafka.admin import admin_client, checked_properties
from outbox._kafka.channel import ChannelDescription, verify_channel
from outbox._service.exit_codes import UnsafeError
from outbox.errors import KafkaUnreachable
from outbox.operator.checks.checks import Examiner, Subject, examine
from outbox.operator.checks.finding import Finding
from relay.half.serving.restore import lost_ops, read_checkpoints, verify_checkpoints
from relay.recovery.hanging_checkpoint import Checkpointed, refuse_undone_end, why_unreadable
from relay.settings import RelaySettings

_UNREAD = "grant the right that is named, or look at the group's coordinator"


def examine_relay(settings: RelaySettings) -> Iterator[Finding]:
    """Yield settings, broker, contract, encryption, the checkpoints of all partitions, and the table sources."""
    yield from examine(Subject(Examiner.RELAY, settings, settings.tables), [_checkpoints])


def _checkpoints(subject: Subject) -> Iterator[Finding]:
    if subject.topics is None:
        return
    settings: RelaySettings = subject.settings
    channel = verify_channel(admin_client(settings.connection()), settings.channel_names())
    with checked_properties():
        consumer = Consumer(
            {
                **settings.connection(),
                "enable.auto.commit": False,
                "group.id": channel.channel.relay_group,  # never joined
                "isolation.level": "read_committed",
            }
        )
    try:
        for number in range(channel.partitions):
            yield _checkpoint(settings, consumer, channel, number)
    finally:
        consumer.close()


def _checkpoint(settings: RelaySettings, consumer: Consumer, channel: ChannelDescription, number: int) -> Finding:
    what, owner = f"partition {number}", Checkpointed.half_partition(channel.channel, number)
    try:
        committed = read_checkpoints(consumer, channel, number)
        refuse_undone_end(settings.connection(), owner, committed[0], settings.hanging_transaction)
        skip_lost = settings.skips_lost(number)
        half, op, verdict = verify_checkpoints(consumer, channel, number, committed, skip_lost=skip_lost)
        lost = {
            topic.name: lost_ops(consumer, topic.name, number, checkpoint)
            for topic, checkpoint in ((channel.op, op), (channel.verdict, verdict))
        }
    except UnsafeError as error:
        return Finding(what, str(error), "see docs/operations/recovery.md: starting at a guess would lose or double")
    except KafkaUnreachable as error:
        return Finding(what, str(error), _UNREAD)
    except KafkaException as error:
        why = why_unreadable(error, settings.connection(), owner.group, owner.place)
        return Finding(what, f"its checkpoint cannot be read: {why}", _UNREAD)
    for topic, count in lost.items():
        if count:
            problem = f"{count} offsets of {topic}/{number} are gone before they were read"
            fix = f"start the relay: check-back decides instead; then raise the retention of {topic}"
            return Finding(what, problem, fix)
    unsettled = sum(map(len, half.unsettled))
    waiting = f"{unsettled} halves unsettled" if unsettled else "nothing pending"
    positions = f"op offset {op.offset}, verdict offset {verdict.offset}"
    return Finding(what, "", f"half offset {half.offset}, read up to {half.head}, {waiting}; {positions}")
