"""The errors about the project's tables name a command that makes these tables, and no others."""

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


def test_a_function_that_was_revoked_is_named_with_its_grant() -> None:
    """No option of `outbox table create` would give it back."""

    class RevokedError(Exception):
        sqlstate = "42501"

    for what in ("function pg_control_system", "function pg_advisory_xact_lock", "function pg_try_advisory_lock"):
        error = explanation_of(RevokedError(), "public", what)
        assert error is not None
        assert f"GRANT EXECUTE ON FUNCTION {what.split()[1]} to this role" in str(error)
    assert "GRANT SELECT ON pg_locks to" in str(explanation_of(RevokedError(), "public", "view pg_locks"))
    other = explanation_of(RevokedError(), "public", "pg_shop_message")
    assert other is not None
    assert "--application-role" in str(other)
