"""A real RocketMQ: name server, broker, and a client in Java that measures."""

from __future__ import annotations

import json
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

from benchmarks.peers.jars import ROCKETMQ_LOCK
from benchmarks.peers.jvm import READY_SECONDS, PeerError, Room, make_room
from benchmarks.peers.rocketmq_settings import BROKER_JAVA, NAME_SERVER_JAVA, broker_conf, name_server_conf
from outbox._jars.fetch import fetch
from outbox._jars.java import find_java
from stack.errors import PortInUseError, log_tail
from stack.ports import HOST, Ports, is_free

TIMEOUT_MS = 6_000
"""Age of a half at its first check: RocketMQ's default, and the relay's."""

CHECK_INTERVAL_MS = 30_000
"""RocketMQ's default. With one of 1 s all 15 checks are over before a producer has found a broker that came back."""

WARM_UP = (32, 20_000, 256, 1)
"""Threads, transactions, bytes, with messages: a cold Java gives a fifth of its figure."""

_CLIENT = Path(__file__).with_name("RocketMqClient.java")
_ANSWER_SECONDS = 600.0
_END_SECONDS = 10.0
_TABLE = "CREATE TABLE IF NOT EXISTS rocketmq_transaction (id text PRIMARY KEY)"


class Broker:
    """Name server and broker.

    Args:
        timeout_ms: Age of a half at its first check.
    """

    def __init__(self, room: Room, timeout_ms: int, check_interval_ms: int) -> None:
        self._room = room
        self._name_port = room.ports.claim()
        self._port = _claim_pair(room.ports)
        self.name_server = f"{HOST}:{self._name_port}"
        folder = room.folder
        (folder / "namesrv.conf").write_text(name_server_conf(self._name_port))
        conf = broker_conf(folder, self.name_server, self._port, room.ports.claim(), timeout_ms, check_interval_ms)
        (folder / "broker.conf").write_text(conf)

    def start_name_server(self) -> None:
        """Start the name server and wait until it listens."""
        self._run("namesrv", NAME_SERVER_JAVA, "org.apache.rocketmq.namesrv.NamesrvStartup")
        self._room.wait_for("namesrv", lambda: not is_free(self._name_port))

    def start(self) -> None:
        """Start the broker and wait until it listens; it is known to the name server a moment later."""
        self._run("broker", BROKER_JAVA, "org.apache.rocketmq.broker.BrokerStartup")
        self._room.wait_for("broker", lambda: not is_free(self._port))

    def kill(self) -> None:
        """Kill the broker (SIGKILL) and wait until it is gone."""
        self._room.processes.signal("broker", signal.SIGKILL)
        self._room.processes.wait("broker", _END_SECONDS)

    def _run(self, name: str, options: tuple[str, ...], main: str) -> None:
        folder = self._room.folder
        homes = [f"-Drocketmq.home.dir={folder}", f"-Duser.home={folder}"]
        self._room.run_java(name, ROCKETMQ_LOCK, [*options, *homes], [main, "-c", str(folder / f"{name}.conf")])


class Client:
    """The client in Java: producer, consumer and clock."""

    def __init__(self, room: Room, name_server: str, jdbc_url: str) -> None:
        self._log = room.folder / "client.log"
        path = ":".join(map(str, fetch(ROCKETMQ_LOCK)))
        options = ["-Xmx1g", f"-Duser.home={room.folder}", f"-Drocketmq.client.logRoot={room.folder}"]
        command = [str(find_java().command), *options, "-cp", path, str(_CLIENT), name_server, jdbc_url]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )
        self._said: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._listening = threading.Thread(target=self._listen, daemon=True)
        self._listening.start()

    def ask(self, *words: object) -> dict[str, Any]:
        """Give a command and wait for its answer."""
        self.tell(*words)
        return self.wait_for("result")

    def ask_all(self, count: int, *words: object) -> dict[str, Any]:
        """Give a command that moves messages, and wait for its answer.

        Args:
            count: How many must have arrived.
        """
        said = self.ask(*words)
        if said["distinct"] != count:
            raise PeerError(f"RocketMQ delivered {said['distinct']:,} of {count:,} messages")
        return said

    def tell(self, *words: object) -> None:
        """Give a command."""
        if self._process.stdin is None:
            return
        try:
            print(*words, file=self._process.stdin, flush=True)
        except OSError as error:
            raise PeerError(f"RocketMQ's client has ended{log_tail(self._log)}") from error

    def wait_for(self, word: str, seconds: float = _ANSWER_SECONDS) -> dict[str, Any]:
        """Wait for a line that begins with a word; what else is said before it is left aside."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            try:
                line = self._said.get(timeout=left)
            except queue.Empty:
                break
            if not line:
                raise PeerError(f"RocketMQ's client has ended{log_tail(self._log)}")
            begin, _, rest = line.partition(" ")
            if begin == word:
                answer: dict[str, Any] = json.loads(rest)
                return answer
        raise PeerError(f"RocketMQ's client did not answer within {seconds:.0f} s{log_tail(self._log)}")

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._listening.join()  # it ends with the output
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(BrokenPipeError):  # of a command that nobody read
                    stream.close()
        self._process.wait()

    def _listen(self) -> None:
        for line in self._process.stdout or ():
            self._said.put(line)
        self._said.put("")


@contextmanager
def start_rocketmq(
    postgres_url: str, timeout_ms: int = TIMEOUT_MS, check_interval_ms: int = CHECK_INTERVAL_MS
) -> Iterator[tuple[Broker, Client]]:
    """Run a RocketMQ during the block, with a client that has not warmed up yet.

    Args:
        postgres_url: A database with the table `stock`; the table from which check-backs are answered is made there.
    """
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(_TABLE)
    with make_room("rocketmq") as room:
        broker = _start_broker(room, timeout_ms, check_interval_ms)
        client = Client(room, broker.name_server, _jdbc(postgres_url))
        try:
            client.wait_for("result", READY_SECONDS)
            yield broker, client
        finally:
            client.close()


def warm_up(client: Client) -> None:
    """Let Java compile what will be measured."""
    client.ask_all(WARM_UP[1], "transactions", *WARM_UP)


def _start_broker(room: Room, timeout_ms: int, check_interval_ms: int) -> Broker:
    broker = Broker(room, timeout_ms, check_interval_ms)
    broker.start_name_server()
    broker.start()
    return broker


def _claim_pair(ports: Ports) -> int:
    """Return a port whose second neighbour below is free as well: the broker takes both."""
    while True:
        port = ports.claim()
        try:
            ports.claim(port - 2)
        except PortInUseError:
            continue
        return port


def _jdbc(url: str) -> str:
    parts = conninfo_to_dict(url)
    place = f"{parts['host']}:{parts['port']}/{parts['dbname']}"
    return f"jdbc:postgresql://{place}?user={parts['user']}&password={parts['password']}"
