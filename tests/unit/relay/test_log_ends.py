"""What the relay's look at log ends shows of Kafka."""

from __future__ import annotations

from typing import Any
from unittest.mock import MagicMock

import pytest

from relay.half.serving.intake import LogEnds


def test_a_kafka_that_answers_nothing_is_a_reason_not_to_be_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[dict[str, tuple[int, ...]]] = [{"half": (7,)}, {}, {}, {"half": (8,)}]
    now = [100.0]
    monkeypatch.setattr("relay.half.serving.intake.end_offsets", lambda *_: answers.pop(0))
    monkeypatch.setattr("relay.half.serving.intake.time.monotonic", lambda: now[0])
    admin: Any = MagicMock()
    ends, seen = LogEnds(admin, {"half": 1, "op": 1}), []
    while answers:
        ends._look()
        now[0] += 10
        seen.append(ends.not_ready())
    assert seen == [None, "Kafka has not answered for 10 s", "Kafka has not answered for 20 s", None]
    assert ends.of("half", 0) == 8
