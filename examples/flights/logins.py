"""The environments of the demo's processes; on a secured stack each role has a user of Kafka with its own rights."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from examples.flights.acls import Acls, PasswordLogin, printed_rights, with_secret_files
from examples.flights.application import TOPICS
from outbox._kafka.admin import admin_client
from outbox._rules.role_rights import Role
from outbox.protocol.names import Channel
from stack import Stack

SOURCE = "flights"
"""The relay's table source."""

NAMES: Mapping[Role, Mapping[str, Sequence[str]]] = {
    Role.APPLICATION: {"topic": TOPICS},
    Role.RELAY: {"topic": TOPICS, "source": [SOURCE]},
    Role.CHECKER: {},
    Role.VIEWER: {"topic": TOPICS, "source": [SOURCE]},
    Role.LAND: {"topic": TOPICS},
    Role.AUDIT: {"topic": TOPICS},
}
"""The roles of the demo, with the names that `outbox acl print` takes for each."""

_SPARK = (Role.LAND, Role.AUDIT)


@dataclass(frozen=True, slots=True)
class Environments:
    """What the processes of the demo find in their environment.

    Args:
        own: That of the demo itself, which is the administrator of its servers.
        logins: What each role has over it; None: every process is who the demo is.
    """

    own: Mapping[str, str]
    logins: Mapping[Role, Mapping[str, str]] | None = None

    def of(self, role: Role) -> dict[str, str]:
        """Return the environment of a role's process."""
        return {**self.own, **(self.logins[role] if self.logins is not None else {})}


def make_logins(stack: Stack) -> dict[Role, dict[str, str]]:
    """Make a user of Kafka for each role, with the rights that `outbox acl print` prints and no others.

    Args:
        stack: A secured stack.

    Returns:
        The variables of each role: the secured listener, and how to log in, with secrets in files of the stack.
    """
    acls = Acls(admin_client({"bootstrap.servers": stack.bootstrap_servers}))
    found = {}
    for role, names in NAMES.items():
        user = f"{SOURCE}-{role}"
        password = secrets.token_urlsafe()
        stack.kafka.add_user(user, password)
        acls.grant(printed_rights(user, Channel().name, [role], names))
        found[role] = _variables(stack, role, PasswordLogin(user, password, stack.security.authority.certificate))
    return found


def _variables(stack: Stack, role: Role, login: PasswordLogin) -> dict[str, str]:
    properties = {"OUTBOX_KAFKA": login.kafka()}
    if role in _SPARK:
        properties["OUTBOX_KAFKA_JAVA"] = login.kafka_java()
    folder = login.authority.parent
    written = {name: with_secret_files(values, folder, login.name) for name, values in properties.items()}
    return {
        "OUTBOX_BOOTSTRAP_SERVERS": stack.kafka.secured_servers,
        **{name: json.dumps(values) for name, values in written.items()},
    }
