"""`outbox acl`: print the rights in Kafka that a role needs."""

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, groupby
from typing import Annotated

import typer

from outbox._cli.setting_options import option, setting_options
from outbox._rules import role_rights
from outbox._rules.role_rights import Kind, Right, Role, Scope
from outbox._service.exit_codes import warn
from outbox._service.output import Entry, Json, show
from outbox._settings.layers import load_all
from outbox.errors import ConfigurationError
from outbox.operator.settings import Given, RightsSettings
from outbox.protocol.errors import ProtocolError
from outbox.protocol.names import Channel, check_service, is_topic_name

_PRINCIPAL = re.compile(r"[A-Za-z]+:[^\x00-\x1f\x7f]+")


def commands(principal: str, rights: Iterable[Right]) -> Iterator[str]:
    for _, some in groupby(rights, lambda right: right.resource):
        words = ["--add", "--allow-principal", shlex.quote(principal)]
        for right in some:
            words += ["--operation", right.operation.title().replace("_", "")]  # as Kafka's tools spell it
        words.append(f"--{right.kind.replace(' ', '-')}")
        words += [] if right.kind is Kind.CLUSTER else [shlex.quote(right.name)]
        words += ["--resource-pattern-type", "prefixed"] if right.prefixed else []
        yield f'kafka-acls.sh --bootstrap-server "$KAFKA" --command-config "$ADMIN" {" ".join(words)}'


def fields(principal: str, right: Right) -> Mapping[str, str]:
    return {
        "principal": principal,
        "resource_type": right.kind.upper().replace(" ", "_"),
        "name": right.name,
        "pattern": "PREFIXED" if right.prefixed else "LITERAL",
        "operation": right.operation,
        "without_it": right.otherwise,
    }


app = typer.Typer(help="Print the rights in Kafka that a role needs.", no_args_is_help=True, callback=lambda: None)


@app.command("print")
@setting_options(RightsSettings)
def print_rights(
    given: Given,
    role: Annotated[list[Role], option("Who needs them; repeatable: the rights of all together.")],
    principal: Annotated[str, option("Principal, such as User:orders.")],
    topic: Annotated[list[str] | None, option("Real topic, or prefix that ends in '*'; repeatable.")] = None,
    service: Annotated[list[str] | None, option("Service of a listener; repeatable.")] = None,
    source: Annotated[list[str] | None, option("Table source, as in `tables`; repeatable.")] = None,
    as_json: Json = False,
) -> None:
    """Print the rights as commands of Kafka's script, or as JSON."""
    if not _PRINCIPAL.fullmatch(principal):
        why = f"--principal {principal!r} is not a principal. Write its type and name, such as User:orders."
        raise ConfigurationError(why)
    if principal.endswith(":*"):
        warn(f"--principal {principal!r} is every client. Name one, unless all clients are to have these rights.")
    channels = load_all(RightsSettings, given)
    if source and len(channels) > 1:
        why = f"--source is given for {len(channels)} channels. Choose one with --channel, or leave --source out"
        raise ConfigurationError(f"{why}: the sources are those of `tables` of each channel.")
    scopes = [
        scope_of(one.channel_names(), role, topic or _allowed(one, {*role}), service, source or list(one.tables))
        for one in channels.values()
    ]
    rights = role_rights.rights_of(role, *scopes)
    show([fields(principal, right) for right in rights], map(Entry, commands(principal, rights)), as_json=as_json)
    if not rights:
        warn(f"Role {' and '.join(role)} needs no rights in Kafka.")
    for scope in scopes:
        if role_rights.takes_sources(role) and not scope.sources:
            warn(
                f"No table source of channel {scope.channel.name} is named: these rights are not enough for table "
                "mode. If the channel has tables, give --source, or name the relay's file with OUTBOX_CONFIG."
            )
        for prefix, internal in role_rights.internal_topics_within(scope).items():
            warn(
                f"--topic {prefix!r} also covers internal topics of channel {scope.channel.name}, such as {internal}: "
                f"{principal} gets its rights there, too. Name the topics, or a longer prefix."
            )


def _allowed(settings: RightsSettings, roles: set[Role]) -> list[str]:
    """Return the topics of `allowed_topics` where a relay alone needs topics."""
    others = roles - {Role.RELAY, Role.TABLE_RELAY}
    is_relay_alone = others != roles and not role_rights.take_topics(others)
    return sorted(set(chain(*(settings.allowed_topics or {}).values()))) if is_relay_alone else []


def scope_of(
    channel: Channel, roles: list[Role], topics: list[str] | None, services: list[str] | None, sources: list[str] | None
) -> Scope:
    scope = Scope(channel, *(tuple(names or ()) for names in (topics, services, sources)))
    for name in scope.topics:
        if name != "*" and not is_topic_name(name.removesuffix("*")):
            raise ConfigurationError(f"--topic {name!r} is not valid. Use the name of a topic, or a prefix and '*'.")
    try:
        for name in (*scope.services, *scope.sources):
            check_service(name)
    except ProtocolError as error:
        raise ConfigurationError(str(error)) from error
    if missing := role_rights.names_missing(roles, scope):
        names = f"Give {' and '.join(f'--{name}' for name in missing)}."
        raise ConfigurationError(f"Role {' and '.join(roles)} needs more names in channel {channel.name}. {names}")
    return scope
