"""Of librdkafka's lines of one kind one is logged in 30 s, in services too."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from outbox._service.logs import LIBRDKAFKA
from relay.settings import RelaySettings

SETTINGS: Any = {"bootstrap_servers": "localhost:0"}


def test_a_service_logs_an_outage_once(caplog: pytest.LogCaptureFixture) -> None:
    taken = RelaySettings(**SETTINGS).polled_connection()["logger"]
    with caplog.at_level(logging.DEBUG, LIBRDKAFKA):
        for number in range(50):
            taken.log(logging.ERROR, "%s", "FAIL", "c", f"localhost:0: Connect failed after {number}ms")
    assert [record.name for record in caplog.records] == [LIBRDKAFKA]
