"""What the hostile application does in its own channel, each a function; a seeded generator chooses."""

import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

import psycopg
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]  # public, but not in its __all__

from outbox.protocol.half import ANY_PARTITION, HalfControl, HalfOptions, Truth
from outbox.protocol.names import OPTIONS_HEADER, TARGET_HEADER, TRANSACTION_HEADER
from outbox.protocol.op import OpEntry, OpKind, OpSource, encode_op
from outbox.protocol.positions import Positions
from tests.support.harness import Site
from tests.torture.hostile.channel import PARTITIONS, SERVICE, HostileChannel
from tests.torture.hostile.mark import MARK, marked_id

FLOOD = 1_000
BODY = 900_000
HELD_SECONDS = (5.0, 45.0)
SECONDS = 15

_VALUE = MARK.encode()


@dataclass(slots=True)
class Attacker:
    """The hostile application: its clients, and what decides."""

    channel: HostileChannel
    victim_id: str
    chance: Random
    producer: Producer = field(init=False)
    site: Site = field(init=False)

    def __post_init__(self) -> None:
        self.site = self.channel.site
        more = {"message.timeout.ms": 10_000, "message.max.bytes": 4_000_000, "log_level": 0}
        self.producer = Producer({**self.site.kafka(), **more})

    def send(self, topic: str, value: bytes, headers: list[tuple[str, Any]], partition: int = 0, **how: Any) -> None:
        """Write a record to its half or op topic; whether it arrives is not waited for."""
        self.producer.produce(topic, value, _VALUE, partition, headers=headers, **how)
        self.producer.poll(0)

    def half(self, topic: str = "", value: bytes = _VALUE, **how: Any) -> tuple[str, int]:
        id_, place = marked_id(time.time_ns() // 1_000_000, self.chance), self.chance.randrange(PARTITIONS)
        options = HalfOptions(
            immunity=how.pop("immunity", None), incarnation=how.pop("incarnation", self.channel.incarnation)
        )
        service, target = how.pop("service", SERVICE), topic or self.site.topic("own")
        truth, partition = how.pop("truth", Truth.ROW), how.pop("partition", ANY_PARTITION)
        control = HalfControl(target, partition, id_, 0, service, truth, options).encode()
        self.send(self.site.channel.half_topic, value, [*how.pop("before", []), *control], place, **how)
        return id_, place

    def committed_half(self, topic: str = "", **how: Any) -> OpEntry:
        """Send a half, and the op marker that commits it; the marker's entry."""
        offsets: list[int] = []

        def sent(error: Any, message: Any) -> None:
            if error is None:
                offsets.append(message.offset())

        id_, place = self.half(topic, on_delivery=sent, **how)
        self.producer.flush(SECONDS)
        if not offsets:
            raise TimeoutError(f"Kafka did not take a half within {SECONDS} s")
        own = self.channel.description.half.id
        entry = OpEntry(OpKind.COMMIT, id_, own, place, Positions.first(1), offsets[0], offsets[0], reason=MARK)
        value, headers = encode_op([entry], OpSource.PRODUCER)
        self.send(self.site.channel.op_topic, value, list(headers), place)
        return entry

    def op(self, id_: str, place: int, kind: OpKind, source: OpSource = OpSource.PRODUCER, topic_id: str = "") -> None:
        """Send an op marker for a half of which it knows no offset: it names any."""
        offset = self.chance.randrange(1_000)
        own = topic_id or self.channel.description.half.id
        listed = (Positions.first(1), offset, offset) if kind is OpKind.COMMIT else (Positions.first(0), -1, -1)
        value, headers = encode_op([OpEntry(kind, id_, own, place, *listed, reason=MARK)], source)
        self.send(self.site.channel.op_topic, value, list(headers), place)

    def sql(self, statement: str, *values: Any) -> None:
        with self.site.connect(connect_timeout=3, options="-c lock_timeout=3s") as connection:
            connection.execute(statement.encode(), values)

    def row(self, **columns: Any) -> None:
        given = {"service": SERVICE, "topic": self.site.topic("own"), "key": _VALUE, "value": _VALUE, **columns}
        places = ", ".join(["%s"] * len(given))
        self.sql(f"INSERT INTO {self.site.tables.message} ({', '.join(given)}) VALUES ({places})", *given.values())


def _target(attacker: Attacker, suffixes: tuple[str, ...]) -> str:
    """Return a topic that it must not reach: the victim's, an internal one of either channel, or one of Kafka."""
    victim, own = attacker.channel.victim.name, attacker.site.name
    internal = [f"{name}.{end}" for name in (victim, own) for end in ("half", "op", "verdict", "check", "discard")]
    return attacker.chance.choice([f"{victim}.{suffix}" for suffix in suffixes] * 4 + [*internal, "__consumer_offsets"])


def _claim(attacker: Attacker, id_: str, place: int, positions: str, offset: int) -> None:
    half_id = attacker.channel.description.half.id
    attacker.sql(
        f"INSERT INTO {attacker.site.tables.transaction} (transaction_id, service, state, channel,"
        " half_topic_id, half_partition, first_offset, last_offset, positions)"
        " VALUES (%s, %s, 'C', %s, %s, %s, %s, %s, %s)",
        *(id_, SERVICE, attacker.site.name, half_id, place, offset, offset, positions),
    )


def _foreign_targets(attacker: Attacker) -> None:
    """Commit halves for topics that it must not reach, by op marker and in its callback table; some of its own, too."""
    for _ in range(5):
        attacker.committed_half(_target(attacker, ("a", "b")))
    entry = attacker.committed_half(_target(attacker, ("a", "b")), service="orders")
    attacker.committed_half()
    _claim(attacker, entry.transaction_id, entry.partition, str(entry.positions), entry.first_offset)


def _malformed(attacker: Attacker) -> None:
    good = HalfControl(attacker.site.topic("own"), -1, marked_id(1, attacker.chance), 0, SERVICE, Truth.ROW).encode()
    spoil = {
        TARGET_HEADER: [b"", b"../a:0", b"a:99999999999", b"\xff"],
        TRANSACTION_HEADER: [b"nonsense", b"1;x/0", b""],
        OPTIONS_HEADER: [b"trust-me", b"immunity=-1", b"ordering=%"],
    }
    for name, values in spoil.items():
        headers = [(other, value) for other, value in good if other != name]
        attacker.send(attacker.site.channel.half_topic, _VALUE, [*headers, (name, attacker.chance.choice(values))])
    attacker.send(attacker.site.channel.half_topic, _VALUE, [])
    attacker.send(attacker.site.channel.half_topic, _VALUE, [*good, *good])


def _newer_format(attacker: Attacker) -> None:
    place = attacker.chance.randrange(PARTITIONS)
    attacker.send(attacker.site.channel.half_topic, _VALUE, [(TRANSACTION_HEADER, b"2;x")], place)


def _huge(attacker: Attacker) -> None:
    for _ in range(10):
        attacker.committed_half(value=_VALUE + attacker.chance.randbytes(BODY))
    attacker.half(before=[(f"h{number}", bytes(20_000)) for number in range(40)])


def _many_services(attacker: Attacker) -> None:
    for _ in range(FLOOD // 2):
        attacker.half(service=f"{MARK}-{attacker.chance.randrange(1_000_000)}")


def _without_op(attacker: Attacker) -> None:
    for _ in range(FLOOD):
        attacker.half()


def _contradicting_ops(attacker: Attacker) -> None:
    for _ in range(20):
        id_, place = attacker.half()
        for kind in (OpKind.COMMIT, OpKind.ROLLBACK, OpKind.COMMIT, OpKind.UNKNOWN):
            attacker.op(id_, place, kind)


def _forged_verdicts(attacker: Attacker) -> None:
    for source in (OpSource.CHECKER, OpSource.OPERATOR):
        id_, place = attacker.half()
        attacker.op(id_, place, OpKind.COMMIT, source)
        attacker.op(id_, place, OpKind.DELIVER, source)


def _foreign_ops(attacker: Attacker) -> None:
    for place in range(PARTITIONS):
        id_ = marked_id(time.time_ns() // 1_000_000, attacker.chance)
        attacker.op(id_, place, OpKind.COMMIT, topic_id=attacker.victim_id)
        attacker.send(attacker.site.channel.op_topic, _VALUE, [("outbox-op", b"1;producer")], place)
        attacker.send(attacker.site.channel.op_topic, b"\xff\x00" + _VALUE, [], place)


def _newer_op(attacker: Attacker) -> None:
    place = attacker.chance.randrange(PARTITIONS)
    attacker.send(attacker.site.channel.op_topic, _VALUE, [("outbox-op", b"3;producer")], place)


def _strange_halves(attacker: Attacker) -> None:
    attacker.half(incarnation=str(uuid.UUID(int=attacker.chance.getrandbits(128))))
    attacker.half(truth=Truth.LISTENER)
    attacker.half(immunity=999_999_999_999)
    attacker.half(partition=99)
    attacker.half(f"{attacker.site.name}.missing")


def _broken_claims(attacker: Attacker) -> None:
    for positions in ("nonsense", "0-9999", "", "5", "0,0,0"):
        id_, place = attacker.half()
        _claim(attacker, id_, place, positions, attacker.chance.randrange(-5, 10**9))


_POISON: tuple[Mapping[str, Any], ...] = (
    {"partition": 99},
    {"partition": -7},
    {"topic": "../own"},
    {"topic": ""},
    {"header_names": ["outbox-id"], "header_values": [_VALUE]},
    {"header_names": ["a"]},
    {"timestamp": -1},
    {"value": _VALUE + bytes(2_000_000)},
)


def _poison_rows(attacker: Attacker) -> None:
    for columns in attacker.chance.sample(_POISON, 3):
        attacker.row(**columns)
    attacker.row(topic=_target(attacker, ("a", "b")))
    attacker.row(topic=f"{attacker.channel.victim.name}.a", service="orders")


def _flood_of_rows(attacker: Attacker) -> None:
    attacker.sql(
        f"INSERT INTO {attacker.site.tables.message} (service, topic, key, value)"
        " SELECT %s, %s, %s, %s FROM generate_series(1, %s)",
        *(SERVICE, attacker.site.topic("own"), _VALUE, _VALUE, FLOOD),
    )


def _source_set_back(attacker: Attacker) -> None:
    attacker.sql(f"UPDATE {attacker.site.tables.source} SET batch = 0, delivered = 0")


def _locked(attacker: Attacker) -> None:
    """Hold a lock on a table of its own; the next attacks wait."""
    names = attacker.site.tables
    table = attacker.chance.choice([names.transaction, names.message, names.source, names.meta])
    with psycopg.connect(attacker.site.postgres_url, options="-c lock_timeout=5s", connect_timeout=3) as connection:
        connection.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE".encode())
        time.sleep(attacker.chance.uniform(*HELD_SECONDS))  # how long it is held
        connection.rollback()


def _silent_database(attacker: Attacker) -> None:
    """Let its database take connections of relay and checker, and answer nothing, while attacks go on."""
    attacker.channel.loop.start(attacker.channel.proxy.hold(attacker.chance.uniform(*HELD_SECONDS)))


def _deleted_records(attacker: Attacker) -> None:
    topic = attacker.chance.choice([attacker.site.channel.half_topic, attacker.site.channel.op_topic])
    attacker.site.delete_records(topic, 0)


def _recreated(attacker: Attacker) -> None:
    """Delete a topic of its own, an internal or a real one, and make another one of the same name."""
    names = attacker.site.channel
    topic = attacker.chance.choice([names.half_topic, names.op_topic, attacker.site.topic("more")])
    for future in attacker.site.admin.delete_topics([topic]).values():
        future.result(SECONDS)
    time.sleep(attacker.chance.uniform(1, 5))  # while it is away
    for future in attacker.site.admin.create_topics([NewTopic(topic, PARTITIONS, 1)]).values():
        future.result(SECONDS)


ATTACKS: Mapping[str, tuple[Callable[[Attacker], None], float]] = {
    "halves for the other channel and for internal topics": (_foreign_targets, 8),
    "malformed halves": (_malformed, 5),
    "halves of a newer format": (_newer_format, 0.7),
    "op markers of a newer format": (_newer_op, 0.5),
    "huge bodies and headers": (_huge, 3),
    "floods of services": (_many_services, 2),
    "floods of halves without op marker": (_without_op, 2),
    "op markers that contradict each other": (_contradicting_ops, 4),
    "verdicts forged in the op topic": (_forged_verdicts, 4),
    "op markers for the other channel's half topic": (_foreign_ops, 4),
    "halves of strange options, partitions and topics": (_strange_halves, 3),
    "broken rows of the callback table": (_broken_claims, 4),
    "poisoned rows of the message table": (_poison_rows, 6),
    "floods of rows": (_flood_of_rows, 2),
    "progress of its table source set back": (_source_set_back, 0.7),
    "a lock on a table of its own": (_locked, 1),
    "a database of its own that does not answer": (_silent_database, 1),
    "records of its own topics deleted": (_deleted_records, 0.4),
    "a topic of its own deleted and recreated": (_recreated, 0.4),
}
"""What is done, and how often in proportion."""
