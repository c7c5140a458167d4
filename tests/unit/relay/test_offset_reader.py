"""A reader beside the subscribed consumer connects when it reads, and lets its connection go after a while."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

import relay.recovery.offset_reader
from relay.recovery.offset_reader import REST_SECONDS, OffsetReader


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Mock]:
    consumers: list[Mock] = []

    def make(_config: object) -> Mock:
        consumers.append(Mock(get_watermark_offsets=lambda *_: (3, 7)))
        return consumers[-1]

    monkeypatch.setattr(relay.recovery.offset_reader, "Consumer", make)
    return consumers


def test_a_reader_connects_when_it_reads_and_rests_afterwards(
    made: list[Mock], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("relay.recovery.offset_reader.time.monotonic", lambda: now[0])
    reader = OffsetReader({}, "c.half", 0, "c-relay")
    reader.rest()
    reader.close()
    assert made == []
    assert reader.bounds() == (3, 7)
    now[0] += REST_SECONDS
    reader.rest()
    assert reader.bounds() == (3, 7)
    assert [consumer.close.call_count for consumer in made] == [0]
    now[0] += REST_SECONDS + 1
    reader.rest()
    assert [consumer.close.call_count for consumer in made] == [1]
    assert reader.bounds() == (3, 7)
    reader.close()
    assert [consumer.close.call_count for consumer in made] == [1, 1]
