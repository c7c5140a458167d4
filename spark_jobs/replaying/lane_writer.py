"""Writes one lane: its records in their order, in Kafka transactions that carry the lane's progress.

Each transaction takes the lane over first and reads the ledger then: no other process can commit any more what the
ledger does not show, so what it shows is left out, and the rest is written. A process that was killed anywhere is
followed by another that goes on exactly where it stopped; one that was only asleep is fenced.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from outbox._failpoints import failpoint
from outbox.protocol.half import OutgoingHeaders
from outbox.protocol.names import REPLAY_HEADER, REPLAY_SOURCE_HEADER, Channel
from outbox.protocol.record import Record
from spark_jobs.replaying.kafka_transaction import FencedError, KafkaTransaction, TransactionFailedError
from spark_jobs.replaying.plan import LandedPlace, Lane, LaneProgress, LaneTarget, advanced
from spark_jobs.replaying.progress_log import PARTITION, Ledger, lane_key
from spark_jobs.runtime.errors import JobFailedError

ATTEMPTS = 5
PAUSE_SECONDS = 1.0


class LandedRecord(NamedTuple):
    """A record as it was landed.

    Args:
        hashed: The hash of its place.
        size: Bytes of key, value and headers.
        timestamp: ms since 1970.
    """

    place: LandedPlace
    hashed: int
    size: int
    key: bytes | None
    value: bytes | None
    headers: OutgoingHeaders
    timestamp: int


@dataclass(frozen=True, slots=True)
class Replay:
    """What all lanes of a replay have in common.

    Args:
        channel: The channel whose ledger it keeps.
        rows: Most records in a Kafka transaction.
        size: Most bytes in one, but for a single record that is larger.
        shares: What each lane is to have in the end.
        max_message_bytes: The largest record batch that each target topic takes.
    """

    id: str
    channel: Channel
    kafka: Mapping[str, str]
    rows: int
    size: int
    shares: Mapping[Lane, LaneTarget]
    max_message_bytes: Mapping[str, int]


class LaneWriter:
    """Writes one lane.

    Args:
        ledger: The replay's ledger; lanes that are written one after another may share it.
    """

    def __init__(self, replay: Replay, lane: Lane, ledger: Ledger) -> None:
        self._replay = replay
        self._lane = lane
        self._ledger = ledger
        self._transactional_id = replay.channel.replay_transactional_id(replay.id, *lane)
        self._progress: LaneProgress | None = None

    def write(self, records: Iterable[LandedRecord]) -> int:
        """Write what the ledger does not show.

        Returns:
            How many were written now.
        """
        self._progress = self._ledger.read().progress.get(self._lane)
        before = self._rows()
        for part in split_records(records, self._replay.rows, self._replay.size):
            self._write(part)
        found, planned = self._progress, self._replay.shares[self._lane]
        if found is None or LaneTarget(found.rows, found.checksum) != planned:
            raise JobFailedError(
                f"Replay {self._replay.id} has written {self._rows()} records to {self._lane}, and its plan has "
                f"{planned.rows}, or others: the table was changed while it ran. Begin a replay with an id of its own."
            )
        return self._rows() - before

    def _rows(self) -> int:
        return 0 if self._progress is None else self._progress.rows

    def _write(self, part: Sequence[LandedRecord]) -> None:
        """Write what is not written of a part; again while that fails, after a look at what became of it."""
        failure: TransactionFailedError | None = None
        for attempt in range(ATTEMPTS):
            if not self._unwritten(part):
                return
            time.sleep(PAUSE_SECONDS * attempt)
            try:
                self._attempt(part)
            except TransactionFailedError as error:
                failure = error
            except FencedError as error:
                raise JobFailedError(
                    f"Another process writes replay {self._replay.id} to {self._lane}. Stop one of them."
                ) from error
            else:
                return
        raise JobFailedError(f"Replay {self._replay.id} cannot write to {self._lane}: {failure}") from failure

    def _attempt(self, part: Sequence[LandedRecord]) -> None:
        limit = self._replay.max_message_bytes[self._lane.topic]
        with KafkaTransaction(self._replay.kafka, self._transactional_id, limit) as transaction:
            rest = self._look_up(part)
            if rest:
                self._wait_for_the_target()
                self._write_in(transaction, rest)

    def _look_up(self, part: Sequence[LandedRecord]) -> list[LandedRecord]:
        """Return what of a part the ledger does not show."""
        self._progress = self._ledger.read().progress.get(self._lane)
        return self._unwritten(part)

    def _wait_for_the_target(self) -> None:
        """Wait for open transactions on the target: they may be of this lane, and would end with its next commit."""
        self._ledger.wait_until_decided(*self._lane)

    def _write_in(self, transaction: KafkaTransaction, rest: Sequence[LandedRecord]) -> None:
        progress = advanced(self._progress, [(record.place, record.hashed) for record in rest])
        transaction.begin()
        transaction.write(self._outgoing(record) for record in rest)
        failpoint("replay.flushed")
        transaction.write([self._entry(progress)])
        failpoint("replay.ledger_written")
        transaction.commit()
        failpoint("replay.committed")
        self._progress = progress

    def _unwritten(self, part: Sequence[LandedRecord]) -> list[LandedRecord]:
        progress = self._progress
        return [record for record in part if progress is None or record.place > progress.last]

    def _outgoing(self, record: LandedRecord) -> Record:
        place = record.place
        headers: OutgoingHeaders = [
            *record.headers,
            (REPLAY_HEADER, self._replay.id.encode()),
            (REPLAY_SOURCE_HEADER, f"{place.topic}/{place.partition}/{place.offset}".encode()),
        ]
        return Record(*self._lane, record.key, record.value, headers, record.timestamp)

    def _entry(self, progress: LaneProgress) -> Record:
        topic, key = self._replay.channel.replay_ledger_topic, lane_key(self._replay.id, self._lane)
        return Record(topic, PARTITION, key, progress.encode(), [], time.time_ns() // 1_000_000)


def split_records(records: Iterable[LandedRecord], rows: int, size: int) -> Iterator[list[LandedRecord]]:
    """Yield records in parts, in their order.

    Args:
        rows: Most of them in a part.
        size: Most bytes in a part, but for a single record that is larger.
    """
    part: list[LandedRecord] = []
    total = 0
    for record in records:
        if part and (len(part) == rows or total + record.size > size):
            yield part
            part, total = [], 0
        part.append(record)
        total += record.size
    if part:
        yield part
