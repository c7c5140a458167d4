"""The settings of a small Kafka cluster whose nodes are broker and controller in one. Pure text, no I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stack.kafka_cluster import Node
from stack.ports import HOST

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
