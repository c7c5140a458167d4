"""A site on a Kafka where each client has a name, a password, and only the rights that ACLs give it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka.admin import (  # type: ignore[attr-defined]  # public, but not in its __all__
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)
from typer.testing import CliRunner

from outbox._cli import acl
from outbox._rules.role_rights import Role
from stack import Stack
from tests.support.harness import Site, wait_until

PASSWORD = "secret"  # noqa: S105 - of test users
_TYPES = {
    "TOPIC": ResourceType.TOPIC,
    "GROUP": ResourceType.GROUP,
    "TRANSACTIONAL_ID": ResourceType.TRANSACTIONAL_ID,
    "CLUSTER": ResourceType.BROKER,
}


@dataclass
class SecuredSite(Site):
    """A site whose clients have the name that `acting` gives; outside of that they may do anything.

    Args:
        secured_servers: Where clients with a name connect.
    """

    secured_servers: str = ""
    who: str = field(default="", init=False)

    @contextmanager
    def acting(self, name: str) -> Iterator[None]:
        """Give the clients and processes that are made in this block the name of a user."""
        before, self.who = self.who, name
        try:
            yield
        finally:
            self.who = before

    def kafka(self) -> dict[str, str]:
        """Librdkafka properties for a client."""
        if not self.who:
            return super().kafka()
        return {"bootstrap.servers": self.secured_servers, **self._credentials()}

    def environment(self) -> dict[str, str]:
        """The settings of this site for a process."""
        if not self.who:
            return super().environment()
        mine = {
            "OUTBOX_BOOTSTRAP_SERVERS": self.secured_servers,
            "OUTBOX_KAFKA": json.dumps(self._credentials()),
        }
        return {**super().environment(), **mine}

    def _credentials(self) -> dict[str, str]:
        return {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": self.who,
            "sasl.password": PASSWORD,
        }

    def user(self, stack: Stack, *roles: Role, **names: Iterable[str]) -> str:
        """Make a user with the rights that `outbox acl print` prints for roles, and no others; its name.

        Args:
            stack: Where.
            roles: The roles.
            names: Topics, groups and sources: the options of the command, with several values each.
        """
        name = f"{self.name}-{'-'.join(roles)}"
        stack.kafka.add_user(name, PASSWORD)
        self.grant(printed(self, name, *roles, **names))
        return name

    def grant(self, rules: Iterable[Mapping[str, str]]) -> None:
        """Give rights, as `outbox acl print --format json` prints them, and wait until the broker goes by them."""
        given = list(rules)
        for future in self.admin.create_acls([_binding(rule) for rule in given]).values():
            future.result(20)
        wait_until(lambda: all(map(self._is_granted, given)))

    @contextmanager
    def without(self, rule: Mapping[str, str]) -> Iterator[None]:
        """Take one right away for the block."""
        self.revoke(rule)
        try:
            yield
        finally:
            self.grant([rule])

    @contextmanager
    def besides(self, rule: Mapping[str, str]) -> Iterator[None]:
        """Give one more right for the block."""
        self.grant([rule])
        try:
            yield
        finally:
            self.revoke(rule)

    def revoke(self, rule: Mapping[str, str]) -> None:
        """Take one right away, which is there, and wait until the broker goes by that."""
        for future in self.admin.delete_acls([_filter(rule)]).values():
            assert len(future.result(20)) == 1
        wait_until(lambda: not self._is_granted(rule))

    def _is_granted(self, rule: Mapping[str, str]) -> bool:
        """Whether the broker has a right; its controller has it before."""
        return bool(self.admin.describe_acls(_filter(rule)).result(20))


def printed(site: Site, name: str, *roles: Role, **names: Iterable[str]) -> list[dict[str, str]]:
    """What `outbox acl print --format json` prints for a user of a site."""
    words = [word for role in roles for word in ("--role", role)]
    words += [word for option, values in names.items() for value in values for word in (f"--{option}", value)]
    result = CliRunner().invoke(
        acl.app, ["print", *words, "--principal", f"User:{name}", "--channel", site.name, "--format", "json"]
    )
    assert result.exit_code == 0, result.output
    found: list[dict[str, str]] = json.loads(result.output)
    return found


def named(rule: Mapping[str, str]) -> str:
    """A right as errors name it: its operation and its resource."""
    return f"{rule['operation']} on {resource(rule)}"


def resource(rule: Mapping[str, str]) -> str:
    """What a right is on, as the doctor names it."""
    kind = rule["resource_type"].lower().replace("_", " ")
    return f"{kind} {rule['name']}{'*' if rule['pattern'] == 'PREFIXED' else ''}"


def _binding(rule: Mapping[str, str]) -> AclBinding:
    return AclBinding(*_pattern(rule), rule["principal"], "*", AclOperation[rule["operation"]], AclPermissionType.ALLOW)


def _filter(rule: Mapping[str, str]) -> AclBindingFilter:
    return AclBindingFilter(
        *_pattern(rule), rule["principal"], "*", AclOperation[rule["operation"]], AclPermissionType.ALLOW
    )


def _pattern(rule: Mapping[str, str]) -> tuple[Any, str, Any]:
    return _TYPES[rule["resource_type"]], rule["name"], ResourcePatternType[rule["pattern"]]
