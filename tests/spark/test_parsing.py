"""JSON by a schema: what is read, what is told apart and why; nothing that comes from outside fails a batch."""

from __future__ import annotations

import pytest

from outbox.errors import ConfigurationError
from spark_jobs.columns import landed_columns
from spark_jobs.landing.parsing import parse_schema, parse_values
from tests.support.spark import Record, records, session

SCHEMA = "id bigint NOT NULL, name string, amount decimal(10,2), tags array<string>, at timestamp"

VALUES = {
    b'{"id": 1, "name": "a", "amount": 1.25, "tags": ["x"], "at": "2026-11-21T10:00:00Z", "more": {}}': None,
    b' {"id":2} ': None,
    b'{"id": 3, "ratio": NaN, "_end": [1]}\r\n': None,  # as Python's json writes it
    None: None,
    b'{"id": null}': "MISSING_FIELD id",
    b"{}": "MISSING_FIELD id",
    b'{"id": "x"}': "NOT_OF_THE_SCHEMA",
    b'{"id": 9223372036854775808}': "NOT_OF_THE_SCHEMA",
    b'{"id": 1, "tags": "x"}': "NOT_OF_THE_SCHEMA",
    b'{"id": 1': "NOT_OF_THE_SCHEMA",
    b'{"id": 1, "amount": "much"}': "NOT_OF_THE_SCHEMA",
    b"[1]": "NOT_OF_THE_SCHEMA",
    b'[{"id": 1}, {"id": 2}]': "NOT_OF_THE_SCHEMA",
    b"1": "NOT_OF_THE_SCHEMA",
    b"null": "NOT_OF_THE_SCHEMA",
    b"": "NOT_OF_THE_SCHEMA",
    b'{"id": 1}{"id": 2}': "NOT_OF_THE_SCHEMA",
    b'{"id": 1},{"id": 2}': "NOT_OF_THE_SCHEMA",
    b'{"id": 1}\n{"id": 2}': "NOT_OF_THE_SCHEMA",
    b'{"id": 1} x': "NOT_OF_THE_SCHEMA",
    b'{"id": 1},': "NOT_OF_THE_SCHEMA",
    b'{"id": 1}]': "NOT_OF_THE_SCHEMA",
    b'{"id": 1}],[{"id": 2}': "NOT_OF_THE_SCHEMA",
    b'{"id": 1},{"id": 2}],[{"id": 3}': "NOT_OF_THE_SCHEMA",
    b'{"id": 1},{"_end": "1"}],[{"id": 3}': "NOT_OF_THE_SCHEMA",
    b"\xff": "NOT_UTF8",
}


def test_values_are_read_or_told_apart_with_the_reason() -> None:
    given = [Record(offset, value=value) for offset, value in enumerate(VALUES)]
    schema = parse_schema(session(), "orders", SCHEMA)
    rows = parse_values(landed_columns(records(*given)), schema).orderBy("offset").collect()
    assert {value: row._error for value, row in zip(VALUES, rows, strict=True)} == VALUES
    first, second, python, tombstone, *failed = (row.value for row in rows)
    assert (first.id, first.name, str(first.amount), first.tags) == (1, "a", "1.25", ["x"])
    assert (second.id, second.name, second.tags) == (2, None, None)
    assert python.id == 3
    assert tombstone is None
    assert failed == [None] * len(failed)


@pytest.mark.parametrize("text", ["", "id", "id no_type", "id bigint,", "_corrupt_record string"])
def test_what_is_no_schema_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="The schema of topic orders"):
        parse_schema(session(), "orders", text)
