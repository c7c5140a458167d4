"""A site on servers with TLS, where each client of Kafka has a name and only the rights that ACLs give it."""

import enum
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from examples.flights.acls import Acls, PasswordLogin, Rule, printed_rights, with_secret_files
from examples.flights.certificates import Certificate
from outbox._rules.role_rights import Role
from stack import Stack
from tests.support import token_file
from tests.support.harness import Site

PASSWORD = "hush-the-password-of-all-users"  # noqa: S105 - of test users, and recognizable in a log


class Login(enum.StrEnum):
    """How clients prove who they are. All of them check the certificates of the servers."""

    PASSWORD = "password"  # noqa: S105 - a kind
    CERTIFICATE = "certificate"
    TOKEN = "token"  # noqa: S105 - a kind


@dataclass
class SecuredSite(Site):
    """A site whose clients have the name that `acting` gives; outside of that they may do anything."""

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
        if not self.who:
            return super().kafka()
        provider = {"oauth_cb": token_file.provide} if self.login is Login.TOKEN else {}
        return {"bootstrap.servers": self._servers, **self._credentials(), **provider}

    def environment(self) -> dict[str, str]:
        """The settings of this site for a process: secrets are in files, a token provider has a name."""
        if not self.who:
            return super().environment()
        kafka = with_secret_files(self._credentials(), Path(self.log_folder), self.who)
        if self.login is Login.TOKEN:
            kafka["oauth_cb"] = "tests.support.token_file:provide"
        return {**super().environment(), "OUTBOX_BOOTSTRAP_SERVERS": self._servers, "OUTBOX_KAFKA": json.dumps(kafka)}

    def for_spark(self) -> dict[str, str]:
        """The variable by which a job that reads with Spark also gets the properties of Kafka's Java client."""
        kafka_java = with_secret_files(self._password().kafka_java(), Path(self.log_folder), self.who)
        return {"OUTBOX_KAFKA_JAVA": json.dumps(kafka_java)}

    @property
    def _servers(self) -> str:
        kafka = self.stack.kafka
        return kafka.certificate_servers if self.login is Login.CERTIFICATE else kafka.secured_servers

    def _credentials(self) -> dict[str, str]:
        authority = {"ssl.ca.location": str(self.stack.security.authority.certificate)}
        match self.login:
            case Login.PASSWORD:
                return self._password().kafka()
            case Login.TOKEN:
                how = {"sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.config": self._place("token")}
                return {**authority, "security.protocol": "SASL_SSL", **how}
            case Login.CERTIFICATE:
                mine = self._certificates[self.who]
                how = {"ssl.certificate.location": str(mine.certificate), "ssl.key.location": str(mine.key)}
                return {**authority, "security.protocol": "SSL", **how, "ssl.key.password": PASSWORD}

    def _place(self, kind: str) -> str:
        return str(Path(self.log_folder) / f"{self.who}.{kind}")

    def _password(self) -> PasswordLogin:
        return PasswordLogin(self.who, PASSWORD, self.stack.security.authority.certificate)

    def user(self, *roles: Role, **names: Iterable[str]) -> str:
        """Make a user with the rights that `outbox acl print` prints for roles and names, and no others; its name."""
        name = f"{self.name}-{'-'.join(roles)}"
        with self.acting(name):
            match self.login:
                case Login.PASSWORD:
                    self.stack.kafka.add_user(name, PASSWORD)
                case Login.TOKEN:
                    Path(self._place("token")).write_text(self.stack.security.tokens.token(name))
                case Login.CERTIFICATE:
                    self._certificates[name] = self.stack.security.authority.client(name, PASSWORD)
        self._acls.grant(printed(self, name, *roles, **names))
        return name

    @contextmanager
    def without(self, rule: Rule) -> Iterator[None]:
        self._acls.revoke(rule)
        try:
            yield
        finally:
            self._acls.grant([rule])

    @contextmanager
    def besides(self, rule: Rule) -> Iterator[None]:
        self._acls.grant([rule])
        try:
            yield
        finally:
            self._acls.revoke(rule)

    @property
    def _acls(self) -> Acls:
        return Acls(self.admin)


def printed(site: Site, name: str, *roles: Role, **names: Iterable[str]) -> list[Rule]:
    """What `outbox acl print --json` prints for a user of a site."""
    return printed_rights(name, site.name, roles, names)


def named(rule: Rule) -> str:
    return f"{rule['operation']} on {resource(rule)}"


def resource(rule: Rule) -> str:
    kind = rule["resource_type"].lower().replace("_", " ")
    return f"{kind} {rule['name']}{'*' if rule['pattern'] == 'PREFIXED' else ''}"
