"""Who wrote a record that readers of a real topic do not see yet, and whether it is still to be delivered."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from outbox.protocol.names import MESSAGE_ID_HEADER, ORIGIN_HEADER
from outbox.protocol.record import Record


class Found(NamedTuple):
    """A record of a real topic."""

    record: Record
    offset: int


class Own(NamedTuple):
    """A record that an owner, or a former owner, wrote to a real topic."""

    record: Record
    offset: int
    is_owed: bool  # whether its message is still to be delivered: the Kafka transaction of this record was aborted


class Author(Protocol):
    """Recognises the records of one owner: of a half partition, or of a table source."""

    def last_own(self, found: Sequence[Found], in_hand: Collection[int]) -> Own | None:
        """Return the last of these records, by ascending offsets, that the owner wrote; None: it wrote none of them."""


class Written(NamedTuple):
    """A record of a real topic that a relay wrote."""

    record: Record  # the record, as it could be written once more
    offset: int
    transaction_id: str
    place: bytes  # what its origin header has behind the owner's name: a half offset, or the id of a row, of any form


def written(found: Iterable[Found], owner: str) -> Iterator[Written]:
    """Yield those of some records that a relay wrote for an owner, by their origin headers."""
    for record, offset in found:
        headers: dict[str, Any] = dict(record.headers)
        transaction_id: bytes = (headers.get(MESSAGE_ID_HEADER) or b"").rpartition(b"/")[0]
        origin, _, place = (headers.get(ORIGIN_HEADER) or b"").partition(b"/")
        if transaction_id and place and origin == owner.encode():
            yield Written(record, offset, transaction_id.decode(errors="replace"), place)


def backwards(start: int, stop: int, size: int) -> Iterator[range]:
    """Yield offsets in spans of a size, the last ones first: what is looked for is near the end."""
    while stop > start:
        yield range(max(start, stop - size), stop)
        stop -= size
