"""One lane of a replay without Spark: in this process, and as a program that a test kills.

python -m tests.support.writing_lanes <bootstrap servers> <channel> <topic> <records>
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from outbox._service.exit_codes import Exit, fail
from outbox.protocol.names import Channel
from spark_jobs.replaying.lane_writer import LandedRecord, LaneWriter, Replay
from spark_jobs.replaying.plan import Checksum, LandedPlace, Lane, LaneTarget
from spark_jobs.replaying.progress_log import Ledger, make_ledger
from spark_jobs.runtime.errors import JobFailedError
from tests.support.harness import Site

REPLAY_ID = "again"
AT_ONCE = 3
"""Records in a Kafka transaction."""


def landed_records(count: int, first: int = 0) -> list[LandedRecord]:
    """Records of one landed partition, with the time of now."""
    now = time.time_ns() // 1_000_000
    return [
        LandedRecord(LandedPlace("orders", 0, offset), offset + 1, 5, b"key", b"%d" % offset, [], now)
        for offset in range(first, first + count)
    ]


def replay_of(bootstrap_servers: str, channel: str, topic: str, records: Sequence[LandedRecord]) -> Replay:
    """A replay with one lane: partition 0 of the topic."""
    share = LaneTarget(len(records), Checksum.of(sum(record.hashed for record in records)))
    kafka = {"bootstrap.servers": bootstrap_servers}
    return Replay(REPLAY_ID, Channel(channel), kafka, AT_ONCE, 1_000_000, {Lane(topic, 0): share}, {topic: 1_000_000})


def write(site: Site, topic: str, records: Sequence[LandedRecord]) -> int:
    """Write the lane in this process; how many were written now."""
    return _write(replay_of(site.bootstrap_servers, site.name, topic, records), topic, records)


def _write(replay: Replay, topic: str, records: Sequence[LandedRecord]) -> int:
    make_ledger(replay.kafka, replay.channel, 1)
    with Ledger(replay.kafka, replay.channel, replay.id) as ledger:
        return LaneWriter(replay, Lane(topic, 0), ledger).write(records)


if __name__ == "__main__":
    servers, name, to, many = sys.argv[1:]
    wanted = landed_records(int(many))
    try:
        _write(replay_of(servers, name, to, wanted), to, wanted)
    except JobFailedError as failed:
        fail(str(failed), Exit.FAILED)
