"""Arrays of numbers as Postgres has them in memory: as text they would cost more than it costs to delete their rows."""

import struct
from collections.abc import Iterable, Sequence
from typing import Any

import psycopg
from psycopg import postgres
from psycopg.abc import Buffer
from psycopg.adapt import Dumper
from psycopg.pq import Format
from psycopg.types.numeric import Int8BinaryLoader


class Xids(tuple[int, ...]):
    """Xids of rows."""

    __slots__ = ()


class Times(tuple[int, ...]):
    """Times in microseconds since 2000."""

    __slots__ = ()


class _Arrays(Dumper):
    format = Format.BINARY
    element = 0

    def dump(self, obj: Sequence[int]) -> Buffer:
        """Return an array of one dimension. Before each number is its length, in four bytes."""
        count = len(obj)
        numbers, items = struct.pack(f"!{count}q", *obj), bytearray(12 * count)
        items[3::12] = b"\x08" * count
        for byte in range(8):
            items[4 + byte :: 12] = numbers[byte::8]
        return struct.pack("!5i", 1, 0, self.element, count, 1) + items


class _XidArrays(_Arrays):
    oid, element = postgres.types["xid8"].array_oid, postgres.types["xid8"].oid


class _TimeArrays(_Arrays):
    oid, element = postgres.types["timestamptz"].array_oid, postgres.types["timestamptz"].oid


def register(connection: psycopg.Connection[Any]) -> None:
    """Let a connection take these arrays, and return xids and times of a binary result as numbers, too."""
    connection.adapters.register_dumper(Xids, _XidArrays)
    connection.adapters.register_dumper(Times, _TimeArrays)
    connection.adapters.register_loader("xid8", Int8BinaryLoader)
    connection.adapters.register_loader("timestamptz", Int8BinaryLoader)


def listed(items: Iterable[int]) -> str:
    """Return numbers as an array literal: psycopg takes ten times as long for a list."""
    return f"{{{','.join(map(str, items))}}}"
