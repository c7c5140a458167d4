"""Who the nodes of a cluster are: ids and ports, kept in a file so that the same cluster comes back."""

from __future__ import annotations

import base64
import json
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path

from stack.errors import StartError
from stack.ports import Ports


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
