"""Many transactions at once, by the library's own parts: halves with their acknowledgements, rows, op markers."""

from __future__ import annotations

import os
import time
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from outbox import Message, Outbox
from outbox._publish.draft import Draft
from outbox.protocol.identifiers import make_transaction_id
from outbox.protocol.op import OpEntry, OpKind
from outbox.protocol.partitioner import half_partition
from tests.support.harness import Site

AT_ONCE = 2_000


def publish_bulk(
    site: Site, outbox: Outbox, messages: Iterable[Message], *, ops: bool = True, each: int = 1
) -> list[str]:
    """Commit messages in their order, so many of them in a transaction.

    Args:
        site: Where.
        outbox: The library's connection to Kafka.
        messages: Of all transactions.
        ops: Whether the op markers are sent; else the checker must decide.
        each: Messages in a transaction.

    Returns:
        The ids of the messages.
    """
    entries = send_halves(site, outbox, messages, each=each)
    columns = (
        "transaction_id, producer_group, state, channel, half_topic_id, half_partition, first_offset, last_offset,"
        " positions"
    )
    with (
        site.connect() as connection,
        connection.cursor().copy(f"COPY {site.tables.transaction} ({columns}) FROM STDIN".encode()) as copy,
    ):
        for entry in entries:
            place = (entry.topic_id, entry.partition, entry.first_offset, entry.last_offset, str(entry.positions))
            copy.write_row((entry.transaction_id, outbox.settings.group, "C", site.name, *place))
    if ops:
        for entry in entries:
            outbox._sender.send_op(entry)
    return [f"{entry.transaction_id}/{position}" for entry in entries for position in entry.positions]


def send_halves(site: Site, outbox: Outbox, messages: Iterable[Message], *, each: int = 1) -> list[OpEntry]:
    """Send the halves only; the op entries that commits would entitle to."""
    with site.connect() as connection:
        row = connection.execute(f"SELECT value FROM {site.tables.meta} WHERE key = 'incarnation'".encode()).fetchone()
    incarnation = str(row[0]) if row else ""
    channel = outbox._sender.channel
    drafts: dict[int, list[Draft]] = defaultdict(list)
    for some in _batched(messages, each):
        draft = Draft(make_transaction_id(time.time_ns() // 1_000_000, os.urandom(10)), outbox._sender.visibility)
        for message in some:
            draft.add(message)
        id_ = uuid.UUID(draft.transaction_id).bytes
        drafts[half_partition(outbox.settings.group, draft.ordering_key, id_, channel.partitions)].append(draft)
    return [
        OpEntry(OpKind.COMMIT, draft.transaction_id, channel.half.id, partition, draft.positions, first, last)
        for partition, of_partition in drafts.items()
        for draft, first, last in _send(outbox, partition, of_partition, incarnation)
    ]


def _send(
    outbox: Outbox, partition: int, drafts: Sequence[Draft], incarnation: str
) -> Iterator[tuple[Draft, int, int]]:
    """Each draft with the offsets of its first and last half."""
    for start in range(0, len(drafts), AT_ONCE):
        some = drafts[start : start + AT_ONCE]
        halves = [half for draft in some for _, half in draft.take_unsent(outbox.settings.group, incarnation)]
        offsets = iter(outbox._sender.send_halves(partition, halves))
        for draft in some:
            own = list(islice(offsets, len(draft)))
            yield draft, own[0], own[-1]


def _batched(messages: Iterable[Message], size: int) -> Iterator[list[Message]]:
    left = iter(messages)
    while some := list(islice(left, size)):
        yield some
