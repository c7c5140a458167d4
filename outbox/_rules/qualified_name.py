"""The name of a table that others made: schema and table, checked before any SQL is made of it. Pure."""

import re
from typing import NamedTuple, Self

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
