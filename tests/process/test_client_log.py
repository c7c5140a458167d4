"""Lines of librdkafka: in the logger `outbox`, never on standard error, and not twenty a second."""

import logging
import subprocess
import sys

import pytest

from outbox._kafka.admin import admin_client, describe_topics
from outbox._kafka.client_log import EACH_SECONDS, ClientLog, logged
from outbox.errors import KafkaUnreachable
from tests.support.harness import wait_until

_FORM = "%s [%s] %s"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1_000.0]
    monkeypatch.setattr("outbox._kafka.client_log.time.monotonic", lambda: now[0])
    return now


def _lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "outbox"]


def test_lines_of_one_kind_are_counted(caplog: pytest.LogCaptureFixture, clock: list[float]) -> None:
    client_log = ClientLog()
    for number in range(100):
        client_log.log(logging.ERROR, _FORM, "FAIL", "rdkafka#1", f"refused after {number} ms")
    assert _lines(caplog) == ["librdkafka FAIL [rdkafka#1] refused after 0 ms"]
    clock[0] += EACH_SECONDS
    client_log.log(logging.ERROR, _FORM, "FAIL", "rdkafka#1", "refused after 5 ms")
    assert _lines(caplog)[1:] == [
        "librdkafka FAIL [rdkafka#1] refused after 5 ms (99 more lines like it since the last one)"
    ]


def test_waiting_long_for_a_coordinator_is_a_warning(caplog: pytest.LogCaptureFixture, clock: list[float]) -> None:
    client_log, text = ClientLog(), "Failed to acquire transactional PID from broker 1: Not coordinator: retrying"
    for _ in range(2):
        client_log.log(logging.WARNING, _FORM, "GETPID", "relay#producer-1", text)
        clock[0] += EACH_SECONDS
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_kinds_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    client_log = ClientLog()
    for number in range(1_000):
        client_log.log(logging.ERROR, _FORM, "FAIL", "rdkafka#1", "x" * number)
    assert len(client_log._repeats._kinds) <= 256
    assert len(_lines(caplog)) == 1_000


def test_logger_of_the_user_wins() -> None:
    mine = logging.getLogger("mine")
    assert logged({"logger": mine})["logger"] is mine


def test_question_to_the_cluster_logs_its_lines(caplog: pytest.LogCaptureFixture) -> None:
    """A question to the cluster polls it, so that commands need not."""
    admin = admin_client({"bootstrap.servers": "127.0.0.1:9"})

    def is_logged() -> bool:
        with pytest.raises(KafkaUnreachable):
            describe_topics(admin, ["orders"], 0.5)
        return "Connection refused" in "".join(_lines(caplog))

    wait_until(is_logged)


_PROGRAM = """
import logging
logging.getLogger("outbox").addHandler(logging.NullHandler())
logging.getLogger("outbox").propagate = False
from outbox import HalfOutbox
from outbox.errors import PublishFailed
outbox = HalfOutbox("orders", {"bootstrap.servers": "127.0.0.1:9"}, publish_timeout_seconds=0.5)
for _ in range(2):
    try:
        outbox.ping()
    except PublishFailed:
        print("failed")
outbox.close()
"""


def test_nothing_is_written_past_the_logger() -> None:
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("failed\nfailed\n", "")
