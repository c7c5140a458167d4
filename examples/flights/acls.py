"""Logins of a secured stack, with secrets in files, and its ACLs: those that `outbox acl print` prints."""

import io
import json
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka.admin import (  # type: ignore[attr-defined]  # public, but not in its __all__
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from typer.main import get_command

from outbox._rules.role_rights import Role
from outbox.operator.commands import acl
from stack.errors import StartError

_MECHANISM = "SCRAM-SHA-256"
_JAAS = "org.apache.kafka.common.security.scram.ScramLoginModule required"
_SECRETS = ("sasl.password", "ssl.key.password", "sasl.jaas.config")


@dataclass(frozen=True, slots=True)
class PasswordLogin:
    """The login of a user whom `Kafka.add_user()` let in.

    Args:
        name: Name of the user, without quotation marks.
        password: Password of the user, without quotation marks.
        authority: Certificate of the authority that issued those of the servers, in PEM.
    """

    name: str
    password: str = field(repr=False)
    authority: Path

    def kafka(self) -> dict[str, str]:
        """Return the properties of librdkafka: those of library, services and commands."""
        return {
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(self.authority),
            "sasl.mechanism": _MECHANISM,
            "sasl.username": self.name,
            "sasl.password": self.password,
        }

    def kafka_java(self) -> dict[str, str]:
        """Return the properties of Kafka's Java client: those with which Spark reads."""
        return {
            "security.protocol": "SASL_SSL",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.authority),
            "sasl.mechanism": _MECHANISM,
            "sasl.jaas.config": f'{_JAAS} username="{self.name}" password="{self.password}";',
        }


def with_secret_files(properties: Mapping[str, str], folder: Path, owner: str) -> dict[str, str]:
    """Write each secret into a file that only this user may read, and return properties that name the files.

    Args:
        properties: Properties, of librdkafka or of the Java client.
        owner: Whose login it is: the names of the files begin with it.
    """
    found = dict(properties)
    for name in [name for name in _SECRETS if name in found]:
        file = folder / f"{owner}.{name}"
        file.touch(mode=0o600)
        file.write_text(found.pop(name))
        found[f"{name}_file"] = str(file)
    return found


Rule = Mapping[str, str]
"""A right, as `outbox acl print --json` prints it."""

_SECONDS = 20.0
_TYPES = {
    "TOPIC": ResourceType.TOPIC,
    "GROUP": ResourceType.GROUP,
    "TRANSACTIONAL_ID": ResourceType.TRANSACTIONAL_ID,
    "CLUSTER": ResourceType.BROKER,
}


def printed_rights(user: str, channel: str, roles: Iterable[Role], names: Mapping[str, Iterable[str]]) -> list[Rule]:
    """Return the rights that `outbox acl print --json` prints for a user."""
    words = [word for role in roles for word in ("--role", role)]
    words += [word for option, values in names.items() for value in values for word in (f"--{option}", value)]
    words += ["--principal", f"User:{user}", "--channel", channel, "--json"]
    with redirect_stdout(io.StringIO()) as output:
        get_command(acl.app).main(["print", *words], prog_name="outbox acl", standalone_mode=False)
    found: list[Rule] = json.loads(output.getvalue())
    return found


class Acls:
    """The ACLs of one Kafka."""

    def __init__(self, admin: AdminClient) -> None:
        self._admin = admin

    def grant(self, rules: Iterable[Rule]) -> None:
        """Give rights, and wait until the broker applies them."""
        given = list(rules)
        if not given:
            return
        for future in self._admin.create_acls([_binding(rule) for rule in given]).values():
            future.result(_SECONDS)
        _wait(lambda: all(map(self._is_granted, given)), "has not applied new ACLs")

    def revoke(self, rule: Rule) -> None:
        """Take one right away, and wait until the broker applies that."""
        for future in self._admin.delete_acls([_filter(rule)]).values():
            if len(future.result(_SECONDS)) != 1:
                raise StartError(f"there is no ACL {dict(rule)}: grant it first")
        _wait(lambda: not self._is_granted(rule), "still applies an ACL that was deleted")

    def _is_granted(self, rule: Rule) -> bool:
        """Return whether the broker has a right; its controller has it before."""
        return bool(self._admin.describe_acls(_filter(rule)).result(_SECONDS))


def _wait(condition: Callable[[], bool], otherwise: str) -> None:
    deadline = time.monotonic() + _SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise StartError(f"Kafka {otherwise} after {_SECONDS:.0f} s: read its log")
        time.sleep(0.05)


def _binding(rule: Rule) -> AclBinding:
    return AclBinding(*_pattern(rule), rule["principal"], "*", AclOperation[rule["operation"]], AclPermissionType.ALLOW)


def _filter(rule: Rule) -> AclBindingFilter:
    return AclBindingFilter(
        *_pattern(rule), rule["principal"], "*", AclOperation[rule["operation"]], AclPermissionType.ALLOW
    )


def _pattern(rule: Rule) -> tuple[Any, str, Any]:
    return _TYPES[rule["resource_type"]], rule["name"], ResourcePatternType[rule["pattern"]]
