"""A real Kafka cluster: processes of Kafka's own jars, formatted once, ready when a client gets an answer."""

import base64
import json
import os
import shlex
import signal
import time
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # public, but not in its __all__
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from outbox._jars.java import Java
from stack.errors import StartError, log_tail
from stack.ports import HOST, Ports
from stack.processes import Command, Processes


@dataclass(frozen=True)
class Listeners:
    """What listeners each node has besides the one for clients without a name.

    Attributes:
        proxied: One whose clients connect to a proxy.
        secured: Two with TLS, whose clients have a name and only the rights that ACLs give them: one for a password or
            a token (SASL_SSL), one for a certificate (SSL).
    """

    proxied: bool = False
    secured: bool = False


PLAIN = Listeners()


@dataclass(frozen=True)
class Node:
    """Where one node of the cluster listens.

    Attributes:
        number: Its id, from 1.
        port: For clients.
        controller_port: For the other nodes' controllers.
        directory: Id of its folder, as Kafka writes ids.
        behind_port: For a proxy before this node; 0: there is none.
        proxy_port: Where that proxy listens, and what its clients connect to; 0: there is none.
        secured_port: For clients with a password or a token, with TLS; 0: there is none.
        certificate_port: For clients with a certificate; 0: there is none.
    """

    number: int
    port: int
    controller_port: int
    directory: str
    behind_port: int = 0
    proxy_port: int = 0
    secured_port: int = 0
    certificate_port: int = 0

    @property
    def name(self) -> str:
        return f"kafka-{self.number}"

    @property
    def listeners(self) -> Listeners:
        return Listeners(proxied=bool(self.proxy_port), secured=bool(self.secured_port))


@dataclass(frozen=True)
class Cluster:
    """A cluster: its id and its nodes, in the order of their numbers."""

    cluster_id: str
    nodes: tuple[Node, ...]


def cluster_in(folder: Path, ports: Ports, *, brokers: int, port: int | None, listeners: Listeners = PLAIN) -> Cluster:
    """Return the cluster that is in a folder, on the ports that it had; else a new one, which is written there."""
    file = folder / "cluster.json"
    if not file.exists():
        nodes = (_new_node(number, ports, port, listeners) for number in range(brokers))
        cluster = Cluster(_new_id(), tuple(nodes))
        file.write_text(json.dumps(asdict(cluster), indent=2))
        return cluster
    content = json.loads(file.read_text())
    cluster = Cluster(content["cluster_id"], tuple(Node(**node) for node in content["nodes"]))
    if len(cluster.nodes) != brokers or port not in {None, cluster.nodes[0].port}:
        has = f"{len(cluster.nodes)} node(s) from port {cluster.nodes[0].port}"
        raise StartError(f"{folder} holds a cluster of {has}: ask for the same, or name another folder")
    if any(node.listeners != listeners for node in cluster.nodes):
        raise StartError(
            f"{folder} holds a cluster with {cluster.nodes[0].listeners}, not {listeners}: "
            "ask for the same, or name another folder"
        )
    for node in cluster.nodes:
        others = (node.behind_port, node.proxy_port, node.secured_port, node.certificate_port)
        for taken in filter(None, (node.port, node.controller_port, *others)):
            ports.claim(taken)
    return cluster


def _new_node(index: int, ports: Ports, first_port: int | None, listeners: Listeners) -> Node:
    return Node(
        number=index + 1,
        port=ports.claim(None if first_port is None else first_port + index),
        controller_port=ports.claim(),
        directory=_new_id(),
        behind_port=ports.claim() if listeners.proxied else 0,
        proxy_port=ports.claim() if listeners.proxied else 0,
        secured_port=ports.claim() if listeners.secured else 0,
        certificate_port=ports.claim() if listeners.secured else 0,
    )


def _new_id() -> str:
    """Return a UUID in the 22 characters that Kafka writes; none begins with a dash, which tools mistake."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not text.startswith("-"):
            return text


SMALL_TOPIC_PARTITIONS = 8
"""Partitions of Kafka's own topics; the default of 50 costs seconds at the first transaction of a fresh cluster."""

_SASL = "listener.name.sasl_ssl"
_SECURITY = "org.apache.kafka.common.security"
SECURED = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "false",
    # A client without a name, on the first listener: the nodes themselves, and the process that started them.
    "super.users": "User:ANONYMOUS",
    "sasl.enabled.mechanisms": "SCRAM-SHA-256,OAUTHBEARER",
    f"{_SASL}.scram-sha-256.sasl.jaas.config": f"{_SECURITY}.scram.ScramLoginModule required;",
    f"{_SASL}.oauthbearer.sasl.jaas.config": f"{_SECURITY}.oauthbearer.OAuthBearerLoginModule required;",
    f"{_SASL}.oauthbearer.sasl.server.callback.handler.class": (
        f"{_SECURITY}.oauthbearer.OAuthBearerValidatorCallbackHandler"
    ),
    "listener.name.ssl.ssl.client.auth": "required",
    # The principal of a certificate is User: and its common name.
    "ssl.principal.mapping.rules": "RULE:^CN=([^,]+).*$/$1/,DEFAULT",
}
"""Clients with a name have the rights that ACLs give them, and no others."""


def server_properties(node: Node, nodes: Sequence[Node], log_dirs: str, overrides: Mapping[str, str]) -> str:
    secured = SECURED if node.secured_port else {}
    settings = {**_base(len(nodes)), **_place(node, nodes), **secured, "log.dirs": log_dirs, **overrides}
    return "".join(f"{name}={value}\n" for name, value in settings.items())


def initial_controllers(nodes: Sequence[Node]) -> str:
    """Return the first quorum, as the format tool wants it."""
    return ",".join(f"{node.number}@{HOST}:{node.controller_port}:{node.directory}" for node in nodes)


def _place(node: Node, nodes: Sequence[Node]) -> dict[str, str]:
    listeners = f"PLAINTEXT://{HOST}:{node.port},CONTROLLER://{HOST}:{node.controller_port}"
    if node.secured_port:
        listeners += f",SASL_SSL://{HOST}:{node.secured_port},SSL://{HOST}:{node.certificate_port}"
    # A client that comes in through a proxy gets the addresses of proxies only, so that no client gets past them.
    proxied = ",PROXIED://" + HOST if node.proxy_port else ""
    return {
        "node.id": str(node.number),
        "listeners": listeners + (proxied and f"{proxied}:{node.behind_port}"),
        "advertised.listeners": listeners + (proxied and f"{proxied}:{node.proxy_port}"),
        "controller.quorum.bootstrap.servers": ",".join(f"{HOST}:{each.controller_port}" for each in nodes),
    }


def _base(nodes: int) -> dict[str, str]:
    replicas = str(min(nodes, 3))
    in_sync = str(max(1, min(nodes, 3) - 1))
    return {
        "process.roles": "broker,controller",
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "PLAINTEXT",
        "listener.security.protocol.map": (
            "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,PROXIED:PLAINTEXT,SASL_SSL:SASL_SSL,SSL:SSL"
        ),
        "default.replication.factor": replicas,
        "min.insync.replicas": in_sync,
        "offsets.topic.replication.factor": replicas,
        "offsets.topic.num.partitions": str(SMALL_TOPIC_PARTITIONS),
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": in_sync,
        "transaction.state.log.num.partitions": str(SMALL_TOPIC_PARTITIONS),
        "share.coordinator.state.topic.replication.factor": replicas,
        "share.coordinator.state.topic.min.isr": in_sync,
        "share.coordinator.state.topic.num.partitions": str(SMALL_TOPIC_PARTITIONS),
        "auto.create.topics.enable": "false",
        "group.initial.rebalance.delay.ms": "0",
        # A killed node is let in again only when its old session has ended, usually after 9 s.
        "broker.session.timeout.ms": "3000",
        "broker.heartbeat.interval.ms": "500",
        # Tests kill consumers and do not want to wait for the usual minimum of 6 s.
        "group.min.session.timeout.ms": "1000",
        "group.consumer.min.session.timeout.ms": "1000",
        "group.consumer.min.heartbeat.interval.ms": "200",
    }


READY_SECONDS = 180.0
"""A node that has not answered by then has failed; on a quiet machine one is up in 3 s."""

JVM_OPTIONS = "KAFKA_JVM_PERFORMANCE_OPTS"
"""Variable with options of a node's JVM, as Kafka's own start script names it."""

_STOP_SECONDS = 20.0
_ITERATIONS = 4_096  # the fewest that Kafka takes
LOG4J = Path(__file__).with_name("log4j2.xml")
"""Makes log4j write to standard output."""


@dataclass(frozen=True)
class KafkaProgram:
    """What to run."""

    java: Java
    jars: Sequence[Path]
    options: Sequence[str] = ()

    def command(self, options: Sequence[str], main: str, arguments: Sequence[str]) -> list[str]:
        path = ":".join(map(str, self.jars))
        java = [str(self.java.command), *options, *self.options, f"-Dlog4j2.configurationFile={LOG4J}"]
        return [*java, "-cp", path, main, *arguments]


class Kafka:
    """A cluster of combined nodes (broker and controller) on this machine.

    Nodes are counted from 0. A node keeps its ports and its data while it is stopped or killed.

    Args:
        folder: For settings, logs and data; a cluster that is there already is used again, with its ports.
        brokers: Number of nodes.
        port: Clients' port of the first node, the others follow; None: any.
        settings: Settings of `server.properties` over the stack's own.
    """

    def __init__(
        self,
        processes: Processes,
        program: KafkaProgram,
        folder: Path,
        ports: Ports,
        *,
        brokers: int = 1,
        port: int | None = None,
        settings: Mapping[str, str] | None = None,
        listeners: Listeners = PLAIN,
    ) -> None:
        self._processes = processes
        self._program = program
        self._folder = folder
        self._settings = dict(settings or {})
        self._folder.mkdir(parents=True, exist_ok=True)
        self._cluster = cluster_in(folder, ports, brokers=brokers, port=port, listeners=listeners)

    @property
    def bootstrap_servers(self) -> str:
        """What clients connect to: all nodes."""
        return ",".join(f"{HOST}:{node.port}" for node in self._cluster.nodes)

    @property
    def secured_servers(self) -> str:
        """What clients with a password or a token connect to, with TLS: listeners of all nodes."""
        return ",".join(f"{HOST}:{node.secured_port}" for node in self._cluster.nodes)

    @property
    def certificate_servers(self) -> str:
        """What clients with a certificate connect to: listeners of all nodes."""
        return ",".join(f"{HOST}:{node.certificate_port}" for node in self._cluster.nodes)

    @property
    def proxy_ports(self) -> list[tuple[int, int]]:
        """For each node: where its proxy must listen, and which port of the node it passes everything to."""
        return [(node.proxy_port, node.behind_port) for node in self._cluster.nodes]

    def add_user(self, name: str, password: str) -> None:
        """Let a client with a password in at the secured listeners; it has no right until an ACL gives it one.

        Args:
            name: Its name: its principal is `User:` and this.
        """
        client = AdminClient({"bootstrap.servers": self.bootstrap_servers})
        credential = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, _ITERATIONS)
        upsertion = UserScramCredentialUpsertion(name, credential, password.encode())
        client.alter_user_scram_credentials([upsertion])[name].result(READY_SECONDS)

    def log(self, node: int = 0) -> Path:
        return self._node_folder(self._cluster.nodes[node]) / "server.log"

    def start_all(self) -> None:
        """Start all nodes and wait until each of them serves."""
        with ThreadPoolExecutor(len(self._cluster.nodes)) as pool:
            list(pool.map(self.start, range(len(self._cluster.nodes))))

    def start(self, node: int = 0) -> None:
        nodes = self._cluster.nodes
        self._format(nodes[node])
        heap = "-Xmx1g" if len(nodes) == 1 else "-Xmx512m"
        options = [heap, *shlex.split(os.environ.get(JVM_OPTIONS, ""))]
        self._processes.start(self._command(nodes[node], "kafka.Kafka", [], options))
        self._wait_until_ready(nodes[node])

    def stop(self, node: int = 0) -> None:
        """Stop a node as an operator would; it hands its partitions over. Killed if it takes more than 20 s."""
        if not self._end(node, signal.SIGTERM):
            self.kill(node)

    def kill(self, node: int = 0) -> None:
        """Kill a node (SIGKILL) and wait until it is gone."""
        self._end(node, signal.SIGKILL)

    def pause(self, node: int = 0) -> None:
        """Stop a node's process in its tracks (SIGSTOP), until `resume()`."""
        self._processes.signal(self._cluster.nodes[node].name, signal.SIGSTOP)

    def resume(self, node: int = 0) -> None:
        """Let a node go on that was paused (SIGCONT)."""
        self._processes.signal(self._cluster.nodes[node].name, signal.SIGCONT)

    def restart(self, node: int = 0) -> None:
        self.stop(node)
        self.start(node)

    def stop_all(self) -> None:
        with ThreadPoolExecutor(len(self._cluster.nodes)) as pool:
            list(pool.map(self.stop, range(len(self._cluster.nodes))))

    def check(self) -> None:
        for node in self._cluster.nodes:
            self._check_node(node)

    def _end(self, node: int, number: int) -> bool:
        """Send a signal; whether the node ended of it in time."""
        name = self._cluster.nodes[node].name
        self._processes.signal(name, number)
        return self._processes.wait(name, _STOP_SECONDS) is not None

    def _format(self, node: Node) -> None:
        folder = self._node_folder(node)
        data = folder / "data"
        (folder / "tmp").mkdir(parents=True, exist_ok=True)
        properties = server_properties(node, self._cluster.nodes, str(data), self._settings)
        (folder / "server.properties").write_text(properties)
        if (data / "meta.properties").exists():
            return
        controllers = initial_controllers(self._cluster.nodes)
        arguments = ["format", "-t", self._cluster.cluster_id, "--initial-controllers", controllers, "-c"]
        # A short-lived Java is started sooner without its optimising compiler.
        options = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
        self._processes.run(self._command(node, "kafka.tools.StorageTool", arguments, options))

    def _command(self, node: Node, main: str, arguments: Sequence[str], options: Sequence[str]) -> Command:
        folder = self._node_folder(node)
        common = ["-XX:-UsePerfData", "-XX:+ExitOnOutOfMemoryError", f"-Djava.io.tmpdir={folder / 'tmp'}"]
        argv = self._program.command([*common, *options], main, [*arguments, str(folder / "server.properties")])
        return Command(node.name, argv, folder / "server.log")

    def _wait_until_ready(self, node: Node) -> None:
        client = AdminClient(
            {
                "bootstrap.servers": f"{HOST}:{node.port}",
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 100,
                "log_level": 0,  # that a server is not up yet is no news
            },
        )
        deadline = time.monotonic() + READY_SECONDS
        while not _serves(client, node):
            self._check_node(node)
            if time.monotonic() > deadline:
                log = self._node_folder(node) / "server.log"
                raise StartError(f"{node.name} did not answer within {READY_SECONDS:.0f} s{log_tail(log)}")

    def _check_node(self, node: Node) -> None:
        self._processes.require(node.name, [node.port, node.controller_port], self._node_folder(node) / "server.log")

    def _node_folder(self, node: Node) -> Path:
        return self._folder / f"node-{node.number}"


def _serves(client: AdminClient, node: Node) -> bool:
    try:
        return node.number in client.list_topics(timeout=0.5).brokers
    except KafkaException:
        return False
