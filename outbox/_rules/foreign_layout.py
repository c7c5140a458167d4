"""Foreign tables: their names, and which column of a table that the application made holds what of a message. Pure."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, Self

from outbox.protocol.errors import ProtocolError
from outbox.protocol.names import HEADER_PREFIX, check_service, is_topic_name

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_$-]{0,62}")


class QualifiedName(NamedTuple):
    """Schema and name of a table, as Postgres' catalog has them. All SQL quotes them."""

    schema: str
    table: str

    @classmethod
    def parse(cls, text: str) -> Self:
        schema, dot, table = text.partition(".")
        if not dot:
            raise ValueError(f"{text!r} has no schema. Write it as schema.table, such as public.{text or 'outbox'}.")
        return cls(check_name(schema), check_name(table))


def check_name(name: str) -> str:
    """Return the name of a schema, table or column if it is allowed."""
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"{name!r} is not a name of a schema, table or column. Use at most 63 of A-Z, a-z, 0-9, '_', '$' and '-', "
            "a letter or '_' first, without quotation marks, in the case in which the catalog has it."
        )
    return name


LayoutName = Literal["outbox", "debezium", "mapping"]
After = Literal["delete", "mark"]

ROUTED = "${routedByValue}"
"""In a topic: the value of the row's column `topic`. The words are those of Debezium's `route.topic.replacement`."""

ROLES = ("id", "order", "topic", "key", "value", "headers", "partition", "timestamp", "service")
"""What a column can be in the setting `columns`."""

_DEFAULTS: Mapping[str, Mapping[str, str]] = {
    "debezium": {"id": "id", "topic": "aggregatetype", "key": "aggregateid", "value": "payload"},
    "mapping": {"id": "id"},
}
_ROUTER_TOPIC = f"outbox.event.{ROUTED}"


@dataclass(frozen=True, slots=True)
class Layout:
    """Which column holds what; an empty name means: no column.

    Args:
        columns: Names of columns by role; `id` and `value` are among them.
        topic: Real topic; `ROUTED` in it is replaced by the value of the column `topic`.
        service: Service of all rows; empty: the column `service` has it, or it is the source's name.
        placed: Columns whose values become headers, each with the header's name.
        id_header: Name of a header that holds the row's id; empty: none.
    """

    columns: Mapping[str, str]
    topic: str
    service: str = ""
    placed: tuple[tuple[str, str], ...] = ()
    id_header: str = ""

    def column(self, role: str) -> str:
        return self.columns.get(role, "")

    @property
    def order(self) -> str:
        return self.columns.get("order", self.columns["id"])

    def routed(self, value: str | None) -> str:
        """Return the real topic of a row."""
        if ROUTED not in self.topic:
            return self.topic
        if value is None:
            raise ProtocolError(f"column {self.column('topic')}, which chooses the topic, is NULL")
        return self.topic.replace(ROUTED, value)


def make_layout(name: LayoutName, columns: Mapping[str, str], topic: str, service: str, placement: str) -> Layout:
    """Return the layout of a foreign table from its settings.

    Args:
        columns: Columns by role, over the defaults of the layout.
        topic: Real topic, or a template of it; empty: the layout's default.
        service: Name of the service; empty: none is given.
        placement: Columns and their places, as in Debezium's `table.fields.additional.placement`.
    """
    for role, column in columns.items():
        if role not in ROLES:
            raise ValueError(f"columns has {role!r}. Use {', '.join(ROLES)}.")
        check_name(column)
    chosen = {**_DEFAULTS[name], **columns}
    placed = []
    for column, place, header in _placements(placement):
        if place == "header":
            placed.append((column, header))
        elif chosen.setdefault("partition", column) != column:
            raise ValueError(f"additional_placement and columns name different columns for the partition: {placement}")
    if "value" not in chosen:
        raise ValueError("columns has no value. Name the column with the content of the message.")
    if service and "service" in chosen:
        raise ValueError("service and the column service are both given. Remove one of them.")
    template = _topic(name, topic, routed="topic" in chosen)
    if ROUTED not in template:
        chosen.pop("topic", None)
    return Layout(chosen, template, _service(service), tuple(placed), "id" if name == "debezium" else "")


def _topic(name: LayoutName, topic: str, *, routed: bool) -> str:
    template = topic or (_ROUTER_TOPIC if name == "debezium" else ROUTED)
    if ROUTED in template and not routed:
        raise ValueError("no topic is given. Set topic to the real topic, or the column topic in columns.")
    if routed and ROUTED not in template:
        if name == "mapping":
            raise ValueError(f"topic is {topic!r} and there is a column topic. Put {ROUTED} into topic, or remove one.")
        return _topic(name, topic, routed=False)
    if not is_topic_name(template.replace(ROUTED, "x")):
        raise ValueError(
            f"topic is {topic!r}. Use a topic's name; {ROUTED} in it is replaced by the value of the column topic."
        )
    return template


def _service(service: str) -> str:
    try:
        return check_service(service) if service else ""
    except ProtocolError as error:
        raise ValueError(str(error)) from None


def _placements(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield column, place and header of each part of a text such as `type:header:eventType,shard:partition`."""
    for part in filter(None, (part.strip() for part in text.split(","))):
        column, place, header, *more = (*(piece.strip() for piece in part.split(":")), "", "")
        if place == "envelope":
            raise ValueError(
                f"additional_placement has {part!r}: the relay writes the payload alone, without an envelope. "
                "Place the column into a header, or build the envelope in the payload."
            )
        if place not in {"header", "partition"} or any(more):
            raise ValueError(
                f"additional_placement has {part!r}. Write column:header, column:header:name or column:partition."
            )
        name = header or column
        if name.startswith(HEADER_PREFIX):
            raise ValueError(
                f"additional_placement has {part!r}: headers that begin with {HEADER_PREFIX} are reserved."
            )
        yield check_name(column), place, name
