"""Many transactions at once, by the library's own parts: halves with their acknowledgements, rows, op markers."""

import os
import time
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

from outbox import HalfOutbox, Message
from outbox._half.draft import Draft
from outbox.protocol.identifiers import lock_number, make_transaction_id
from outbox.protocol.op import OpEntry, OpKind
from outbox.protocol.partitioner import half_partition
from tests.support.harness import Site

AT_ONCE = 2_000

T = TypeVar("T")

_LOCKS = b"SELECT count(pg_advisory_xact_lock(number)) FROM unnest(CAST(%s AS bigint[])) AS number"
_COLUMNS = (
    "transaction_id, service, state, channel, half_topic_id, half_partition, first_offset, last_offset, positions"
)


def publish_bulk(
    site: Site, outbox: HalfOutbox, messages: Iterable[Message], *, ops: bool = True, each: int = 1
) -> list[str]:
    """Commit messages in order, `each` in a transaction, and return their ids; without `ops` the checker decides."""
    ids: list[str] = []
    for some in _batched(messages, AT_ONCE * each):
        entries = _commit(site, outbox, some, each)
        if ops:
            for entry in entries:
                outbox._sender.send_op(entry)
        ids += [f"{entry.transaction_id}/{position}" for entry in entries for position in entry.positions]
    return ids


def _commit(site: Site, outbox: HalfOutbox, messages: Sequence[Message], each: int) -> list[OpEntry]:
    """Send halves and insert their rows, under the locks that keep the checker from fencing them meanwhile."""
    drafts = _drafts(messages, each)
    with site.connect() as connection, connection.transaction():
        connection.execute(_LOCKS, ([lock_number(draft.transaction_id) for draft in drafts],))
        entries = _send_all(outbox, drafts, site.incarnation())
        with connection.cursor().copy(f"COPY {site.tables.transaction} ({_COLUMNS}) FROM STDIN".encode()) as copy:
            for entry in entries:
                place = (entry.topic_id, entry.partition, entry.first_offset, entry.last_offset, str(entry.positions))
                copy.write_row((entry.transaction_id, outbox.settings.service, "C", site.name, *place))
    return entries


def send_halves(site: Site, outbox: HalfOutbox, messages: Iterable[Message], *, each: int = 1) -> list[OpEntry]:
    """Send the halves only; the op entries that commits would entitle to."""
    return _send_all(outbox, _drafts(messages, each), site.incarnation())


def _drafts(messages: Iterable[Message], each: int) -> list[Draft]:
    return [_draft(some) for some in _batched(messages, each)]


def _draft(messages: Iterable[Message]) -> Draft:
    draft = Draft(make_transaction_id(time.time_ns() // 1_000_000, os.urandom(10)))
    for message in messages:
        draft.add([message])
    return draft


def _send_all(outbox: HalfOutbox, drafts: Iterable[Draft], incarnation: str) -> list[OpEntry]:
    """Send the halves of transactions, each half partition in their order."""
    channel, service = outbox._sender.channel, outbox.settings.service
    placed: dict[int, list[Draft]] = defaultdict(list)
    for draft in drafts:
        id_ = uuid.UUID(draft.transaction_id).bytes
        placed[half_partition(service, draft.ordering_key, id_, channel.partitions)].append(draft)
    return [
        OpEntry(OpKind.COMMIT, draft.transaction_id, channel.half.id, partition, draft.positions, first, last)
        for partition, of_partition in placed.items()
        for draft, first, last in _send(outbox, partition, of_partition, incarnation)
    ]


def _send(
    outbox: HalfOutbox, partition: int, drafts: Sequence[Draft], incarnation: str
) -> Iterator[tuple[Draft, int, int]]:
    for some in _batched(drafts, AT_ONCE):
        service, topic = outbox.settings.service, outbox.settings.channel.half_topic
        halves = [half for draft in some for _, half in draft.take_unsent(service, incarnation, topic, partition)]
        offsets = iter(outbox._sender.send_halves(halves))
        for draft in some:
            own = list(islice(offsets, len(draft)))
            yield draft, own[0], own[-1]


def _batched(given: Iterable[T], size: int) -> Iterator[list[T]]:
    left = iter(given)
    while some := list(islice(left, size)):
        yield some
