"""The errors about the project's tables name a command that makes these tables, and no others."""

from __future__ import annotations

import psycopg
import pytest

from outbox._postgres.table_errors import explanation_of


@pytest.mark.parametrize(
    ("schema", "table", "command"),
    [
        ("public", "outbox_message", "`outbox table create`"),
        ("tenant", "outbox_message", "`outbox table create --schema tenant`"),
        ("public", "shop_transaction", "`outbox table create --table-prefix shop`"),
        ("tenant", "my_shop_source", "`outbox table create --schema tenant --table-prefix my_shop`"),
    ],
)
def test_a_missing_table_is_made_by_the_command_that_is_named(schema: str, table: str, command: str) -> None:
    error = explanation_of(psycopg.errors.UndefinedTable(), schema, table)
    assert error is not None
    assert command in str(error)
