"""A site on servers with TLS, where each client of Kafka has a name and only the rights that ACLs give it."""

from __future__ import annotations

import enum
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
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
from stack.security.certificates import Certificate
from tests.support import token_file
from tests.support.harness import Site, wait_until

PASSWORD = "hush-the-password-of-all-users"  # noqa: S105 - of test users, and recognizable in a log
_TYPES = {
    "TOPIC": ResourceType.TOPIC,
    "GROUP": ResourceType.GROUP,
    "TRANSACTIONAL_ID": ResourceType.TRANSACTIONAL_ID,
    "CLUSTER": ResourceType.BROKER,
}


class Login(enum.StrEnum):
    """How clients prove who they are. All of them check the certificates of the servers."""

    PASSWORD = "password"  # noqa: S105 - a kind
    CERTIFICATE = "certificate"
    TOKEN = "token"  # noqa: S105 - a kind


@dataclass
class SecuredSite(Site):
    """A site whose clients have the name that `acting` gives; outside of that they may do anything.

    Args:
        stack: A secured stack.
        login: How its clients prove who they are.
    """

    stack: Stack = field(kw_only=True)
    login: Login = field(default=Login.PASSWORD, kw_only=True)
    who: str = field(default="", init=False)
    _certificates: dict[str, Certificate] = field(default_factory=dict, init=False)

    @contextmanager
    def acting(self, name: str) -> Iterator[None]:
        """Give the clients and processes that are made in this block the name of a user."""
        before, self.who = self.who, name
        try:
            yield
        finally:
            self.who = before

    def kafka(self) -> dict[str, Any]:
        """Librdkafka properties for a client."""
        if not self.who:
            return super().kafka()
        provider = {"oauth_cb": token_file.provide} if self.login is Login.TOKEN else {}
        return {"bootstrap.servers": self._servers, **self._credentials(), **provider}

    def environment(self) -> dict[str, str]:
        """The settings of this site for a process: secrets are in files, a token provider has a name."""
        if not self.who:
            return super().environment()
        kafka = self._credentials()
        for name in kafka.keys() & {"sasl.password", "ssl.key.password"}:
            kafka[f"{name}_file"] = self._written(name, kafka.pop(name))
        if self.login is Login.TOKEN:
            kafka["oauth_cb"] = "tests.support.token_file:provide"
        return {
            **super().environment(),
            "OUTBOX_BOOTSTRAP_SERVERS": self._servers,
            "OUTBOX_KAFKA": json.dumps(kafka),
        }

    @property
    def _servers(self) -> str:
        kafka = self.stack.kafka
        return kafka.certificate_servers if self.login is Login.CERTIFICATE else kafka.secured_servers

    def _credentials(self) -> dict[str, str]:
        authority = {"ssl.ca.location": str(self.stack.security.authority.certificate)}
        match self.login:
            case Login.PASSWORD:
                how = {"sasl.mechanism": "SCRAM-SHA-256", "sasl.username": self.who, "sasl.password": PASSWORD}
                return {**authority, "security.protocol": "SASL_SSL", **how}
            case Login.TOKEN:
                how = {"sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.config": self._place("token")}
                return {**authority, "security.protocol": "SASL_SSL", **how}
            case Login.CERTIFICATE:
                mine = self._certificates[self.who]
                how = {"ssl.certificate.location": str(mine.certificate), "ssl.key.location": str(mine.key)}
                return {**authority, "security.protocol": "SSL", **how, "ssl.key.password": PASSWORD}

    def _place(self, kind: str) -> str:
        return str(Path(self.log_folder) / f"{self.who}.{kind}")

    def _written(self, kind: str, secret: str) -> str:
        place = self._place(kind)
        Path(place).write_text(secret)
        return place

    def user(self, *roles: Role, **names: Iterable[str]) -> str:
        """Make a user with the rights that `outbox acl print` prints for roles, and no others; its name.

        Args:
            roles: The roles.
            names: Topics, groups and sources: the options of the command, with several values each.
        """
        name = f"{self.name}-{'-'.join(roles)}"
        with self.acting(name):
            match self.login:
                case Login.PASSWORD:
                    self.stack.kafka.add_user(name, PASSWORD)
                case Login.TOKEN:
                    self._written("token", self.stack.security.tokens.token(name))
                case Login.CERTIFICATE:
                    self._certificates[name] = self.stack.security.authority.client(name, PASSWORD)
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
