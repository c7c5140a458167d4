"""A read_committed reader in a process of its own: writes down when each message was there.

`python -m benchmarks.relay.reader TOPIC FILE` reads what comes after its start, until it is ended. A line of the file
is the message's key, the time in nanoseconds of the machine's monotonic clock, which all its processes share, its
partition and its offset. One line is empty: from then on nothing is missed.
"""

from __future__ import annotations

import os
import sys
import time
import uuid
from pathlib import Path

from confluent_kafka import OFFSET_END, Consumer, TopicPartition

_WAIT_SECONDS = 0.1


def main() -> None:
    """Read until the process is ended."""
    topic, path = sys.argv[1:]
    consumer = Consumer(
        {
            "bootstrap.servers": os.environ["OUTBOX_BOOTSTRAP_SERVERS"],
            "enable.partition.eof": True,
            "fetch.queue.backoff.ms": 1,
            "group.id": f"reader-{uuid.uuid4()}",
            "isolation.level": "read_committed",
        }
    )
    partitions = consumer.list_topics(topic, 10).topics[topic].partitions
    consumer.assign([TopicPartition(topic, number, OFFSET_END) for number in partitions])
    waiting = set(partitions)
    with Path(path).open("w", buffering=1) as file:
        while True:
            message = consumer.poll(_WAIT_SECONDS)
            if message is None:
                continue
            if message.error():
                if waiting:
                    waiting.discard(message.partition())
                    file.write("" if waiting else "\n")
                continue
            key = (message.key() or b"").decode()
            file.write(f"{key} {time.monotonic_ns()} {message.partition()} {message.offset()}\n")


if __name__ == "__main__":
    main()
