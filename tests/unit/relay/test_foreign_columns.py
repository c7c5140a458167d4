"""Whether a foreign table fits its layout, by what the catalog has of it."""

from dataclasses import replace

import pytest

from outbox._postgres.foreign_catalog import TableFacts
from outbox._postgres.foreign_source import ForeignSource
from outbox._rules.foreign_layout import Layout, QualifiedName, make_layout
from outbox.errors import ConfigurationError
from outbox.settings import TableNames
from relay.table.foreign.foreign_columns import check_fits, has_index, text_forms
from relay.table.foreign.foreign_statements import make_statements

COLUMNS = {"id": "id", "order": "at", "value": "body", "partition": "shard", "timestamp": "at"}
LAYOUT = make_layout("mapping", COLUMNS, "orders", "", "kind:header")
FACTS = TableFacts(
    {"id": "uuid", "at": "timestamptz", "body": "jsonb", "shard": "int4", "kind": "text", "sent": "bool"},
    frozenset({"id"}),
    frozenset({("id", ""), ("at", "(sent IS NOT TRUE)")}),
)


def fits(facts: TableFacts, layout: Layout = LAYOUT, mark: str = "") -> None:
    check_fits("public.events", layout, facts, mark)


def test_table_that_fits_is_accepted() -> None:
    fits(FACTS)
    fits(FACTS, mark="sent")


@pytest.mark.parametrize(
    ("facts", "error"),
    [
        (replace(FACTS, types={}), r"Table public.events has no column 'id' \(id\)"),
        (
            replace(FACTS, types={name: type_ for name, type_ in FACTS.types.items() if name != "kind"}),
            r"has no column 'kind' \(additional_placement kind\)",
        ),
        (replace(FACTS, unique=frozenset()), "Column id of table public.events is not known to be unique"),
        (replace(FACTS, types={**FACTS.types, "id": "numeric"}), r"\(id\) has type numeric\. Use one of int2, int4"),
        (replace(FACTS, types={**FACTS.types, "shard": "text"}), r"\(partition\) has type text\. Use one of int2"),
        (replace(FACTS, types={**FACTS.types, "at": "date"}), r"\(timestamp\) has type date\. Use one of int2"),
    ],
)
def test_table_that_does_not_fit_is_refused(facts: TableFacts, error: str) -> None:
    with pytest.raises(ConfigurationError, match=error):
        fits(facts)


def test_mark_is_a_time_or_a_boolean() -> None:
    with pytest.raises(ConfigurationError, match=r"\(mark_column\) has type text\. Use one of bool, timestamp"):
        fits(FACTS, mark="kind")
    with pytest.raises(ConfigurationError, match=r"has no column 'gone' \(mark_column\)"):
        fits(FACTS, mark="gone")


def test_ids_without_an_order_need_a_column_for_it() -> None:
    unordered = make_layout("debezium", {}, "orders", "", "")
    facts = replace(FACTS, types={"id": "uuid", "aggregateid": "text", "payload": "jsonb"})
    with pytest.raises(ConfigurationError, match="of type uuid, which has no order of inserts"):
        fits(facts, unordered)
    fits(replace(facts, types={**facts.types, "id": "int8"}), unordered)
    fits(facts, make_layout("debezium", {"order": "id"}, "orders", "", ""))


def test_ids_of_text_are_refused_where_text_has_no_encoding() -> None:
    with pytest.raises(ConfigurationError, match=r"Ids of table public.events are text, which has no encoding"):
        fits(replace(FACTS, encoding="SQL_ASCII", types={**FACTS.types, "id": "text"}))
    fits(replace(FACTS, encoding="SQL_ASCII"))


@pytest.mark.parametrize("type_", ["float8", "float4", "numeric", "timetz", "bit", "varbit", "_float8", "hstore"])
@pytest.mark.parametrize("role", ["key", "header"])
def test_types_of_which_debezium_writes_something_else_are_refused(type_: str, role: str) -> None:
    layout = make_layout(
        "debezium", {"key": "k" if role == "key" else "id"}, "orders", "", "k:header" * (role != "key")
    )
    facts = replace(FACTS, types={**FACTS.types, "k": type_})
    with pytest.raises(ConfigurationError, match=f"Column k of table public.events has type {type_}, of which Debez"):
        text_forms("public.events", layout, facts)
    mapping = make_layout("mapping", {"key": "k", "value": "body"}, "orders", "", "k:header")
    assert text_forms("public.events", mapping, facts) == {}


def test_arrays_are_no_keys_of_debezium() -> None:
    """With a StringConverter they come without quotation marks."""
    layout = make_layout("debezium", {"key": "k"}, "orders", "", "")
    with pytest.raises(ConfigurationError, match=r"Column k of table public.events has type _text"):
        text_forms("public.events", layout, replace(FACTS, types={**FACTS.types, "k": "_text"}))


def test_index_of_marked_rows_has_their_condition() -> None:
    assert has_index(LAYOUT, FACTS, "sent")
    assert has_index(LAYOUT, FACTS, "")
    assert not has_index(LAYOUT, replace(FACTS, indexed=frozenset({("at", "")})), "sent")
    assert not has_index(LAYOUT, replace(FACTS, indexed=frozenset({("id", "")})), "")


def test_names_are_quoted_in_all_statements() -> None:
    layout = make_layout("mapping", {"id": "Id", "value": "Body", "order": "At"}, "orders", "", "")
    types = {"Id": "uuid", "Body": "bytea", "At": "timestamptz", "Sent": "timestamptz"}
    made = make_statements(layout, TableNames("tenant-a", "our"), QualifiedName("Sales", "Events"), types, "Sent", {})
    assert '"Sales"."Events" AS t WHERE "t"."Sent" IS NULL' in made.window
    assert 'ORDER BY "t"."At", "t"."Id"' in made.window
    assert 'UPDATE "Sales"."Events" AS t SET "Sent" = statement_timestamp() FROM moved' in made.move
    assert '"tenant-a"."our_source"' in made.move
    for text in made:
        assert text.count("Events") == text.count('"Events"') > 0


def test_names_of_columns_that_are_only_copied_may_be_any() -> None:
    """A single % would be a placeholder of psycopg; a column named t is not the row."""
    layout = make_layout("mapping", {"value": "t"}, "orders", "", "")
    types = {"id": "int8", "t": "text", "tax%t": "numeric"}
    made = make_statements(layout, TableNames(), QualifiedName("public", "events"), types, "", {})
    assert '"t"."tax%%t"' in made.window
    assert "row_to_json(t.*)" in made.move


def test_relay_gets_what_it_needs_and_no_more() -> None:
    source = ForeignSource(TableNames("relay", "our"), QualifiedName("Sales", "Events"))
    given = [statement for grant in source.relay_grants("one", "Sent") for statement in grant.statements()]
    assert given == [
        'GRANT USAGE ON SCHEMA "relay" TO "one"',
        'GRANT SELECT, INSERT, DELETE ON "relay"."our_discarded" TO "one"',
        'GRANT SELECT, INSERT, UPDATE ON "relay"."our_source" TO "one"',
        'GRANT USAGE ON SCHEMA "Sales" TO "one"',
        'GRANT SELECT, UPDATE ("Sent") ON "Sales"."Events" TO "one"',
    ]
    assert 'SELECT, DELETE ON "Sales"."Events"' in source.ddl(source.relay_grants("one"))
