"""Settings of a foreign table, and the layout that they make."""

from typing import Any

import pytest

from outbox._rules.foreign_layout import ROUTED, QualifiedName
from outbox._settings.declared import TableSettings
from outbox.errors import ConfigurationError
from outbox.protocol.errors import ProtocolError
from relay.settings import RelaySettings

COMMON = {"dsn": "dbname=shop", "message_table": "public.outbox_events"}
MAPPING = {**COMMON, "layout": "mapping", "topic": "orders", "columns": {"value": "body"}}


def table(**settings: Any) -> TableSettings:
    return TableSettings(**settings)


def test_debezium_layout_has_the_columns_and_topic_of_the_event_router() -> None:
    layout = table(**COMMON, layout="debezium").foreign_layout()
    assert layout.columns == {"id": "id", "topic": "aggregatetype", "key": "aggregateid", "value": "payload"}
    assert layout.routed("order") == "outbox.event.order"
    assert (layout.id_header, layout.order, layout.service) == ("id", "id", "")


def test_route_topic_replacement_is_taken_as_it_is() -> None:
    settings = table(**COMMON, layout="debezium", topic="shop.${routedByValue}.v1", columns={"topic": "kind"})
    assert settings.foreign_layout().routed("order") == "shop.order.v1"
    assert settings.foreign_layout().column("topic") == "kind"


def test_constant_topic_needs_no_column() -> None:
    for settings in (table(**MAPPING), table(**COMMON, layout="debezium", topic="orders")):
        layout = settings.foreign_layout()
        assert layout.routed(None) == "orders"
        assert layout.column("topic") == ""


def test_row_without_a_topic_has_an_error() -> None:
    layout = table(**COMMON, layout="debezium").foreign_layout()
    with pytest.raises(ProtocolError, match="column aggregatetype, which chooses the topic, is NULL"):
        layout.routed(None)


def test_placement_is_that_of_the_event_router() -> None:
    settings = table(
        **COMMON, layout="debezium", additional_placement="type:header: eventType , source : header,shard:partition"
    )
    layout = settings.foreign_layout()
    assert layout.placed == (("type", "eventType"), ("source", "source"))
    assert layout.column("partition") == "shard"


def test_mapping_names_each_column() -> None:
    columns = {"id": "event_id", "order": "written_at", "topic": "destination", "value": "body", "service": "owner"}
    settings = table(**COMMON, layout="mapping", columns=columns, after="mark")
    layout = settings.foreign_layout()
    assert (layout.order, layout.topic, layout.id_header) == ("written_at", ROUTED, "")
    assert settings.foreign_name() == QualifiedName("public", "outbox_events")
    assert settings.mark_column == "delivered_at"


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"message_table": "public.t"}, "message_table is for a foreign table. Set layout to debezium or mapping"),
        ({"after": "mark"}, "after is for a foreign table"),
        ({"layout": "debezium"}, "layout is debezium and message_table is missing. Name the table as schema.table"),
        (
            {**MAPPING, "message_table": "events"},
            "'events' has no schema. Write it as schema.table, such as public.eve",
        ),
        ({**MAPPING, "message_table": 'public.e"; DROP'}, "is not a name of a schema, table or column"),
        ({**MAPPING, "message_table": "public.a.b"}, "'a.b' is not a name"),
        (
            {**MAPPING, "message_table": "public.outbox_message"},
            "is a name of the outbox's own tables with prefix outbox",
        ),
        ({**MAPPING, "table_prefix": "HalfOutbox"}, "Table prefix 'HalfOutbox' is not valid"),
        ({**MAPPING, "keep_settled_ms": 5}, "keep_settled_ms is given, and a foreign table has no evidence"),
        ({**MAPPING, "layout": "other"}, "use outbox or debezium or mapping"),
        ({**MAPPING, "after": "keep"}, "use delete or mark"),
        ({**MAPPING, "mark_column": "sent"}, "mark_column is given and rows are deleted. Set after to mark"),
        ({**MAPPING, "columns": {"value": "b", "body": "x"}}, "columns has 'body'. Use id, order, topic, key, value"),
        ({**MAPPING, "columns": {"value": "b c"}}, "'b c' is not a name of a schema, table or column"),
        ({**MAPPING, "columns": {"key": "k"}}, "columns has no value. Name the column with the content"),
        ({**MAPPING, "topic": ""}, "no topic is given. Set topic to the real topic, or the column topic"),
        ({**MAPPING, "columns": {"value": "b", "topic": "t"}}, r"Put \$\{routedByValue\} into topic, or remove one"),
        ({**MAPPING, "topic": "a b"}, "topic is 'a b'. Use a topic's name"),
        ({**MAPPING, "service": "a b"}, "service 'a b' is not allowed"),
        ({**MAPPING, "service": "g", "columns": {"value": "b", "service": "g"}}, "service and the column service are"),
        ({**MAPPING, "additional_placement": "a:envelope"}, "without an envelope. Place the column into a header"),
        ({**MAPPING, "additional_placement": "a"}, "Write column:header, column:header:name or column:partition"),
        ({**MAPPING, "additional_placement": "a:header:b:c"}, "Write column:header, column:header:name or column:part"),
        ({**MAPPING, "additional_placement": "a:header:outbox-id"}, "headers that begin with outbox- are reserved"),
        ({**MAPPING, "additional_placement": "a:partition,b:partition"}, "different columns for the partition"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings: dict[str, Any], error: str) -> None:
    with pytest.raises(ConfigurationError, match=error):
        table(**{"dsn": "dbname=shop", **settings})


def test_one_table_is_not_delivered_by_two_sources() -> None:
    with pytest.raises(ConfigurationError, match=r"public.outbox_events is the message_table of 2 sources"):
        RelaySettings(bootstrap_servers="k:1", tables={"a": MAPPING, "b": MAPPING})
