"""Whether connections that leave this machine are encrypted, and the server at their end is verified."""

import ipaddress
from collections.abc import Iterator, Mapping
from typing import Any

_OFF = {"false", "0", "f"}


def security_protocol(kafka: Mapping[str, Any]) -> str:
    """Return librdkafka's `security.protocol` in lower case."""
    return str(kafka.get("security.protocol") or "plaintext").lower()


def is_encrypted(kafka: Mapping[str, Any]) -> bool:
    return security_protocol(kafka).endswith("ssl")


def is_verified(kafka: Mapping[str, Any]) -> bool:
    """Return whether a client with TLS checks the certificate of a broker, and the name in it."""
    checks = str(kafka.get("enable.ssl.certificate.verification", "true")).lower() not in _OFF
    return checks and str(kafka.get("ssl.endpoint.identification.algorithm", "https")).lower() != "none"


def remote_brokers(kafka: Mapping[str, Any]) -> list[str]:
    """Return the hosts of `bootstrap.servers` that are not this machine."""
    return [host for host in _hosts(str(kafka["bootstrap.servers"])) if not is_loopback(host)]


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost" or host.lower().endswith(".localhost")


def _hosts(bootstrap_servers: str) -> Iterator[str]:
    for entry in bootstrap_servers.split(","):
        address = entry.strip().rpartition("://")[2]
        if address.startswith("["):
            yield address[1:].partition("]")[0]
        elif address:
            yield address.partition(":")[0] if address.count(":") == 1 else address
