"""Callback rows, checkpoints and discard records made by hand: what a relay and an application would have left."""

import os
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from confluent_kafka import Producer, TopicPartition

from checker.connection import connect
from checker.rules.settlement import Ages, ChannelProgress, HalfPartition
from checker.upkeep.walk import OPTIONS, Purged, Undelivered, Walk
from outbox._kafka.admin import end_offset
from outbox._kafka.channel import ChannelDescription
from outbox._postgres.callback_table import CallbackTable
from outbox._settings.declared import CheckerDatabase
from outbox.protocol.checkpoint import HalfCheckpoint
from outbox.protocol.discard import DiscardReason, Manifest, manifest_key
from outbox.protocol.half import Truth
from outbox.protocol.identifiers import make_transaction_id
from outbox.protocol.op import OpKind
from outbox.protocol.positions import Positions
from relay.half.ledger.deliveries import malformed
from relay.half.state.half_records import Half
from tests.support.harness import Site

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
A_DAY = Ages(DAY_MS, DAY_MS, DAY_MS)


@dataclass(frozen=True, slots=True)
class Made:
    transaction_id: str
    offset: int


def make_rows(
    site: Site,
    topic_id: str,
    offsets: Sequence[int],
    *,
    state: str = "C",
    partition: int = 0,
    age_ms: int = 2 * DAY_MS,
    service: str = "orders",
    made: Sequence[Made] = (),
) -> list[Made]:
    """Insert a row of that age for each offset; or these, if some are given."""
    made_ms = time.time_ns() // 1_000_000 - age_ms
    rows = list(made) or [Made(make_transaction_id(made_ms, os.urandom(10)), offset) for offset in offsets]
    with (
        site.connect() as connection,
        connection.cursor().copy(f"COPY {site.tables.transaction} FROM STDIN".encode()) as copy,
    ):
        for row in rows:
            created = time.strftime("%Y-%m-%d %H:%M:%S+00", time.gmtime(made_ms / 1000))
            place = (topic_id, partition, row.offset, row.offset, "0")
            copy.write_row((row.transaction_id, service, state, site.name, *place, created))
    return rows


def commit_checkpoint(
    site: Site,
    channel: ChannelDescription,
    checkpoint: HalfCheckpoint,
    *,
    partition: int = 0,
    text: str | None = None,
    filled: bool = True,
) -> None:
    """Commit a checkpoint of a half partition, as long as it claims, as a relay would, or with a wrong string."""
    if filled:
        _fill_half_partition(site, channel, partition, checkpoint.head)
    metadata = checkpoint.encode(channel.half.id, partition) if text is None else text
    site.commit(TopicPartition(channel.half.name, partition, checkpoint.offset, metadata))


def _fill_half_partition(site: Site, channel: ChannelDescription, partition: int, end: int) -> None:
    """Let a half partition be as long as its checkpoint says, with what no relay is going to read."""
    found = end_offset(site.admin, channel.half.name, partition)
    assert found is not None
    producer = Producer(site.kafka())
    for _ in range(found, end):
        producer.produce(channel.half.name, b"filler", partition=partition)
    assert producer.flush(10) == 0


def discard(site: Site, channel: ChannelDescription, row: Made, *, removed: bool = False) -> None:
    place = (channel.half.id, 0, DiscardReason.TOO_LARGE, "by hand", OpKind.COMMIT)
    positions = (Positions.first(1), ((0, row.offset),), 0)
    manifest = Manifest(row.transaction_id, "orders", Truth.ROW, *place, *positions)
    value = None if removed else manifest.encode()
    site.produce(channel.channel.discard_topic, value, manifest_key(row.transaction_id), 0)


def discard_malformed(site: Site, channel: ChannelDescription, offset: int) -> None:
    """Write the manifest of a half that cannot be parsed, as a relay does: under an id of its own."""
    manifest = malformed(Half(offset, 1, None, None, (), None, "no control headers"), channel.half.id, 0)
    site.produce(channel.channel.discard_topic, manifest.encode(), manifest_key(manifest.transaction_id), 0)


def database_of(site: Site) -> CheckerDatabase:
    return CheckerDatabase(dsn=site.postgres_url, table_prefix=site.name)


def purge(
    site: Site, progress: ChannelProgress, keep_settled_ms: int = DAY_MS, keep_tombstones_ms: int = 30 * DAY_MS
) -> Purged:
    total = Purged()
    with connect(database_of(site), "upkeep", OPTIONS) as connection:
        ages = Ages(keep_settled_ms, keep_tombstones_ms, DAY_MS)
        assert walk_of(site, progress, ages).run(connection, progress, total.update) is not None
    return total


def audit(
    site: Site, progress: ChannelProgress, read: Callable[[], ChannelProgress], max_age_ms: int = 0
) -> list[Undelivered]:
    """Look once for what is not delivered, as a checker that does not purge would."""
    walk = Walk(CallbackTable(site.tables), site.name, Ages(DAY_MS, DAY_MS, max_age_ms), read, purges=False)
    with connect(database_of(site), "upkeep", OPTIONS) as connection:
        found = walk.run(connection, progress, lambda _: None)
    assert found is not None
    return found


def walk_of(site: Site, progress: ChannelProgress, ages: Ages = A_DAY) -> Walk:
    """Return the walk of a checker, to which Kafka shows this for good."""
    return Walk(CallbackTable(site.tables), site.name, ages, lambda: progress)


def settled_to(topic_id: str, offsets: Mapping[int, int]) -> ChannelProgress:
    """Return the progress of a channel whose half partitions are settled up to these offsets."""
    partitions = {number: HalfPartition(0, end, HalfCheckpoint(end, end)) for number, end in offsets.items()}
    return ChannelProgress(topic_id, partitions, {})


def meta(site: Site) -> dict[str, str]:
    return dict(site.sql(f"SELECT key, value FROM {site.tables.meta} WHERE key LIKE 'purged%'"))


def watermark(site: Site, channel: ChannelDescription, partition: int = 0) -> int | None:
    found = meta(site).get(f"purged/{channel.half.id}/{partition}")
    return None if found is None else int(found)


def any_topic_id() -> str:
    return str(uuid.uuid4())
