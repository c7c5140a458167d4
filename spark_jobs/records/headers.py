"""Headers and content of a record, as Spark columns over `key`, `value` and `headers`. Pure."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as f

from outbox.protocol.names import HEADER_PREFIX


def header(name: str) -> Column:
    """Return the first value of a header as text; null if it is missing, has none, or is not UTF-8."""
    place = f.array_position(f.col("headers.key"), name)  # from 1; 0: absent, which `get` finds nowhere
    value = f.get(f.col("headers.value"), (place - 1).cast("int"))
    return f.try_validate_utf8(value.cast("string"))


def has_header(name: str) -> Column:
    """Whether there is a header of this name."""
    return f.coalesce(f.array_contains(f.col("headers.key"), name), f.lit(False))


def is_single(name: str) -> Column:
    """Whether no header of this name follows another one of it."""
    keys = f.col("headers.key")
    first, last = f.array_position(keys, name), f.array_position(f.reverse(keys), name)
    return f.coalesce((first == 0) | (first + last == f.size(keys) + 1), f.lit(True))


def content_hash() -> Column:
    """Hash of key, value and the user's own headers, in their order; the same for a half and its record.

    Hashes pass over null, so each part has a flag whether it is null.
    """
    parts = f.transform(
        f.col("headers"),
        lambda one: f.when(
            ~f.startswith(one["key"], f.lit(HEADER_PREFIX)),
            f.struct(one["key"], one["value"].isNull(), one["value"]),
        ),
    )
    key, value = f.col("key"), f.col("value")
    return f.xxhash64(key.isNull(), key, value.isNull(), value, parts)
