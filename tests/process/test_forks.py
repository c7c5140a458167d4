"""A forked child starts afresh (R46): it neither hangs, nor ends what is the parent's, nor decides about it."""

import subprocess
import sys

import pytest

from outbox import Message
from outbox._half.draft import Draft
from outbox._half.seal import Seal, Sealer
from outbox._half.sender import Sender
from outbox._postgres.callback_table import CallbackTable
from outbox._rules.half_place import HalfPlace
from outbox.errors import UsageError
from outbox.protocol.op import OpEntry
from outbox.settings import HalfSettings, TableNames
from tests.unit.outbox.test_commit_outcome import Connection

_SECONDS = 30.0

_BEGIN = """
import os, socket, sys, threading, time
from outbox import HalfOutbox, OutboxError
from outbox.errors import PublishFailed, UsageError
from outbox.half_outbox import HalfOutbox

def in_child(act):
    sys.stdout.flush()
    if os.fork() == 0:
        act()
        sys.exit(0)  # as a program ends, with everything that runs at exit
    assert os.wait()[1] == 0
    print("parent goes on")

def ping(outbox):
    try:
        outbox.ping()
    except PublishFailed as error:
        print(str(error).partition("(")[0].strip())
"""

_FIRST_CONNECTION_FAILED = """
outbox = HalfOutbox("g", {"bootstrap.servers": "127.0.0.1:9"}, publish_timeout_seconds=0.5)
ping(outbox)
in_child(lambda: ping(outbox))
"""

_CLOSED_WHILE_CONNECTING = """
silent = socket.create_server(("127.0.0.1", 0))
servers = f"127.0.0.1:{silent.getsockname()[1]}"
outbox = HalfOutbox("g", {"bootstrap.servers": servers}, publish_timeout_seconds=3.0)
thread = threading.Thread(target=ping, args=(outbox,))
thread.start()
silent.accept()  # librdkafka is in the middle of it
in_child(lambda: (outbox.close(), print("closed")))
thread.join()
outbox.close()
"""

_ALL_LOCKS_HELD = """
outbox = HalfOutbox("g", {"bootstrap.servers": "127.0.0.1:9"}, publish_timeout_seconds=0.5)
sender, held = outbox._sender, threading.Event()

def hold():
    with sender._lock, sender._enquiries._changed, sender._circuit._lock:
        held.set()
        time.sleep(1)

thread = threading.Thread(target=hold)
thread.start()
held.wait()
in_child(lambda: (ping(outbox), outbox.close(), print("closed")))
thread.join()
"""

_USED_PRODUCER = """
from confluent_kafka import Producer
outbox = HalfOutbox("g", {"bootstrap.servers": "127.0.0.1:9"}, publish_timeout_seconds=0.5)
outbox._sender._producer = Producer({"bootstrap.servers": "127.0.0.1:9"})
outbox._sender._producer.produce("orders", b"of the parent")

def act():
    print("producer of the child:", outbox._sender._producer)
    outbox.close(0)

in_child(act)
sys.stdout.flush()
os._exit(0)  # its message has nowhere to go
"""


def run(program: str) -> list[str]:
    """Run a program to its end; its lines, or those so far if it hangs."""
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", _BEGIN + program], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            return process.communicate(timeout=_SECONDS)[0].splitlines()
        except subprocess.TimeoutExpired:
            process.kill()
            return ["it hangs"]


def test_ping_in_child_after_failed_connection_returns() -> None:
    silent = "Kafka does not answer"
    assert run(_FIRST_CONNECTION_FAILED) == [silent, silent, "parent goes on"]


def test_close_in_child_while_parent_connects_returns() -> None:
    assert run(_CLOSED_WHILE_CONNECTING) == ["closed", "parent goes on", "Kafka does not answer"]


def test_child_forked_while_locks_are_held_goes_on() -> None:
    assert run(_ALL_LOCKS_HELD) == ["Kafka does not answer", "closed", "parent goes on"]


def test_child_has_no_producer_of_its_parent_and_ends() -> None:
    assert run(_USED_PRODUCER) == ["producer of the child: None", "parent goes on"]


@pytest.fixture
def sender() -> Sender:
    return Sender(HalfSettings("orders", kafka={"bootstrap.servers": "127.0.0.1:9"}))


def _sealed(sender: Sender, pid_difference: int) -> Seal:
    """A transaction whose half was sent and acknowledged, in this process or in its parent."""
    sealer = Sealer(
        HalfSettings("orders", kafka={"bootstrap.servers": "127.0.0.1:9"}), sender, CallbackTable(TableNames())
    )
    draft = Draft("0190b8c2-0000-7000-8000-000000000001")
    draft.add([Message("orders", b"v")])
    seal = Seal(sealer, Connection(), draft)
    seal._sent, seal._place = [0], HalfPlace("00000000-0000-0000-0000-000000000001", 0, 0)
    seal._acks.expect()(None, _Stored())  # type: ignore[arg-type]  # all that is asked of it
    seal._pid += pid_difference
    return seal


class _Stored:
    def offset(self) -> int:
        return 7


@pytest.mark.parametrize("pid_difference", [0, 1], ids=["own", "of the parent"])
def test_rollback_marker_is_sent_by_the_process_that_began(
    sender: Sender, monkeypatch: pytest.MonkeyPatch, pid_difference: int
) -> None:
    """A child that collects its copy of a session would say ROLLBACK of what the parent is about to commit."""
    markers: list[OpEntry] = []
    monkeypatch.setattr(sender, "send_op_soon", markers.append)
    _sealed(sender, pid_difference).rolled_back()
    assert len(markers) == (1 if pid_difference == 0 else 0)


def test_transaction_of_the_parent_is_refused_in_the_child(sender: Sender) -> None:
    seal = _sealed(sender, 1)
    with pytest.raises(UsageError, match="before a fork"):
        seal.publish([Message("orders", b"v")], eager=False)
    with pytest.raises(UsageError, match="before a fork"):
        seal.seal()
