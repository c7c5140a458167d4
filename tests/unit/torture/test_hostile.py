"""What the hostile application writes is found where it must not be, and its attacks are chosen by a seed."""

import json
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest

from tests.support.harness import Service
from tests.torture.evidence import Evidence
from tests.torture.hostile.mark import MARK, marked_id, strangers
from tests.torture.invariants import check
from tests.torture.processes import HALTED, halts_of, hurts_of

Headers = list[tuple[str, bytes | None]]


class Record(NamedTuple):
    content: tuple[bytes | None, bytes | None]
    names: Headers

    def topic(self) -> str:
        return "t1.a"

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return 7

    def key(self) -> bytes | None:
        return self.content[0]

    def value(self) -> bytes | None:
        return self.content[1]

    def headers(self) -> Headers:
        return self.names


ID = marked_id(1_700_000_000_000, Random(1))


@pytest.mark.parametrize(
    "record",
    [
        Record((b"k", b"hostile" + bytes(10)), []),
        Record((b"hostile", None), []),
        Record((b"k", b"v"), [("outbox-id", f"{ID}/0".encode())]),
        Record((None, f"C {ID} x".encode()), []),
        Record((None, b"v"), [("outbox-service", b"hostile-shop")]),
    ],
    ids=["value", "key", "id", "op", "service"],
)
def test_a_hostile_record_on_a_topic_of_the_victim_is_a_violation(record: Record) -> None:
    found = check(Evidence(strangers=strangers([record])))
    assert [violation.invariant for violation in found] == ["I16"]
    assert "t1.a/0/7" in found[0].detail


def test_a_record_of_the_victim_is_none() -> None:
    assert strangers([Record((b"half-3", b'{"departure": 1}'), [("told", b"x/0"), ("empty", None)])]) == []


def _service(folder: Path, *events: dict[str, str]) -> Service:
    log = folder / "relay-1.log"
    log.write_text("\n".join(map(json.dumps, events)))
    return Service(subprocess.Popen([sys.executable, "-c", ""]), log)


def test_halts_of_the_hostile_channel_are_its_own(tmp_path: Path) -> None:
    own, other = {"event": HALTED, "channel": f"{MARK}1"}, {"event": HALTED, "channel": "t1"}
    service = _service(tmp_path, own, other, {"event": "Partition halted", "channel": f"{MARK}1"})
    service.process.wait()
    assert len(halts_of(service)) == 1
    assert hurts_of(service) == {"halts of its table source": 1, "halts of its half partitions": 1}
