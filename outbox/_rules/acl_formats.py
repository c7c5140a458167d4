"""Rights as text for the tools that grant them: Kafka's own script, Strimzi, Terraform; and as JSON."""

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
    STRIMZI = "strimzi"
    TERRAFORM = "terraform"
    JSON = "json"


_PRINCIPAL = re.compile(r"[A-Za-z]+:[^\x00-\x1f\x7f]+")
_OPTIONS = {
    Kind.TOPIC: "--topic",
    Kind.GROUP: "--group",
    Kind.TRANSACTIONAL_ID: "--transactional-id",
    Kind.CLUSTER: "--cluster",
}
_STRIMZI = {Kind.TRANSACTIONAL_ID: "transactionalId"}
_TERRAFORM = {Kind.TRANSACTIONAL_ID: "TransactionalID"}


def is_principal(text: str) -> bool:
    """Return whether a text is a principal of Kafka, such as `User:orders`."""
    return bool(_PRINCIPAL.fullmatch(text))


def formatted(form: AclFormat, principal: str, rights: Sequence[Right]) -> str:
    """Return rights in the form that a tool reads.

    Args:
        form: The form.
        principal: Who gets them, such as `User:orders`.
        rights: The rights; those on one resource follow each other.
    """
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


def _strimzi(principal: str, rights: Sequence[Right]) -> str:
    user = principal.partition(":")[2].removeprefix("CN=")
    head = (
        "apiVersion: kafka.strimzi.io/v1beta2\n"
        "kind: KafkaUser\n"
        "metadata:\n"
        f"  name: {json.dumps(user)}\n"
        "  labels:\n"
        "    strimzi.io/cluster: my-cluster # the name of your Kafka resource\n"
        "spec:\n"
        "  authorization:\n"
        "    type: simple\n"
    )
    entries = "".join(map(_acl_rule, _by_resource(rights)))
    return head + (f"    acls:\n{entries}" if entries else "    acls: []\n")


def _acl_rule(rights: Sequence[Right]) -> str:
    first = rights[0]
    lines = [f"type: {_STRIMZI.get(first.kind, first.kind)}"]
    if first.kind is not Kind.CLUSTER:
        lines += [f"name: {json.dumps(first.name)}", f"patternType: {'prefix' if first.prefixed else 'literal'}"]
    resource = "".join(f"          {line}\n" for line in lines)
    operations = ", ".join(map(_camel, rights))
    return f"      - resource:\n{resource}        operations: [{operations}]\n"


def _terraform(principal: str, rights: Sequence[Right]) -> str:
    return "\n".join(_resource(principal, right) for right in rights)


def _resource(principal: str, right: Right) -> str:
    pattern = "prefixed" if right.prefixed else "literal"
    parts = (principal.partition(":")[2], right.operation.lower(), right.kind.replace(" ", "_"), pattern, right.name)
    label = "_".join(re.sub(r"[^A-Za-z0-9_-]", lambda found: f"-{ord(found[0]):x}-", part) for part in parts)
    fields = {
        "resource_name": right.name,
        "resource_type": _TERRAFORM.get(right.kind, right.kind.title()),
        "resource_pattern_type_filter": "Prefixed" if right.prefixed else "Literal",
        "acl_principal": principal,
        "acl_host": "*",
        "acl_operation": _camel(right),
        "acl_permission_type": "Allow",
    }
    width = max(map(len, fields))
    lines = "".join(f"  {name:<{width}} = {_quoted(value)}\n" for name, value in fields.items())
    return f'resource "kafka_acl" "outbox_{label}" {{\n{lines}}}\n'


def _quoted(text: str) -> str:
    """Return a text as Terraform quotes it: without its templates."""
    return json.dumps(text, ensure_ascii=False).replace("${", "$${").replace("%{", "%%{")


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
    AclFormat.STRIMZI: _strimzi,
    AclFormat.TERRAFORM: _terraform,
    AclFormat.JSON: _json,
}
