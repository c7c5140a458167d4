"""Rights as text: commands of Kafka's own script, or JSON for any other tool."""

from __future__ import annotations

import enum
import json
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from outbox._rules.role_rights import Kind, Right


class AclFormat(enum.StrEnum):
    """A form in which rights are printed."""

    KAFKA_ACLS = "kafka-acls"
    JSON = "json"


_PRINCIPAL = re.compile(r"[A-Za-z]+:[^\x00-\x1f\x7f]+")
_OPTIONS = {
    Kind.TOPIC: "--topic",
    Kind.GROUP: "--group",
    Kind.TRANSACTIONAL_ID: "--transactional-id",
    Kind.CLUSTER: "--cluster",
}


def is_principal(text: str) -> bool:
    """Return whether a text is a principal of Kafka, such as `User:orders`."""
    return bool(_PRINCIPAL.fullmatch(text))


def formatted(form: AclFormat, principal: str, rights: Sequence[Right]) -> str:
    """Return rights in the form that a tool reads."""
    return _FORMATS[form](principal, rights)


def _by_resource(rights: Iterable[Right]) -> Iterator[list[Right]]:
    for _, group in groupby(rights, lambda right: right.resource):
        yield list(group)


def _kafka_acls(principal: str, rights: Sequence[Right]) -> str:
    return "".join(f"{_command(principal, group)}\n" for group in _by_resource(rights))


def _command(principal: str, rights: Sequence[Right]) -> str:
    first = rights[0]
    words = ["--add", "--allow-principal", shlex.quote(principal)]
    for right in rights:
        words += ["--operation", _camel(right)]
    words += [_OPTIONS[first.kind], *([] if first.kind is Kind.CLUSTER else [shlex.quote(first.name)])]
    if first.prefixed:
        words += ["--resource-pattern-type", "prefixed"]
    return f'kafka-acls.sh --bootstrap-server "$KAFKA" --command-config "$ADMIN" {" ".join(words)}'


def _json(principal: str, rights: Sequence[Right]) -> str:
    return json.dumps([_fields(principal, right) for right in rights], indent=2) + "\n"


def _fields(principal: str, right: Right) -> Mapping[str, str]:
    return {
        "principal": principal,
        "resource_type": right.kind.upper().replace(" ", "_"),
        "name": right.name,
        "pattern": "PREFIXED" if right.prefixed else "LITERAL",
        "operation": right.operation,
        "without_it": right.otherwise,
    }


def _camel(right: Right) -> str:
    """Return an operation as Kafka's tools spell it: `DescribeConfigs`."""
    return right.operation.title().replace("_", "")


_FORMATS: Mapping[AclFormat, Callable[[str, Sequence[Right]], str]] = {
    AclFormat.KAFKA_ACLS: _kafka_acls,
    AclFormat.JSON: _json,
}
