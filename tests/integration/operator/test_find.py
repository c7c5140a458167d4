"""`outbox find`: the messages of a key, wherever they are, with what was read and what was not."""

from datetime import UTC, datetime, timedelta
from typing import Any

from outbox import Message
from outbox._service.exit_codes import Exit
from outbox._service.output import utc
from outbox.operator.commands.doctor import app as doctor
from outbox.operator.commands.find import app
from outbox.operator.commands.pending import app as pending
from outbox.operator.commands.trace import app as trace
from outbox.protocol.discard import manifest_key, message_key
from outbox.protocol.envelope import Envelope
from tests.support.bulk import publish_bulk, send_halves
from tests.support.commands import call_command, call_for_json
from tests.support.harness import Site
from tests.support.message_rows import SOURCE, create, plant_discarded, relay_settings

KEY = "4711"


def _find(site: Site, *words: str, key: str = KEY, code: int = Exit.OK, environ: dict[str, str] | None = None) -> Any:
    settings = {**relay_settings(site), **(environ or {})}
    found, document = call_for_json(app, site, "--key", key, *words, environ=settings)
    assert found == code, document
    return document


def test_a_message_that_waits_for_its_time_is_found_and_counted(store: Site) -> None:
    store.create("orders")
    create(store)
    with store.outbox() as outbox, store.connect() as connection, connection.transaction():
        for time in (datetime.now(UTC) - timedelta(minutes=1), datetime(2050, 1, 2, tzinfo=UTC)):
            receipt = outbox.publish(connection, Message(store.topic("orders"), key=KEY, not_before=time))
    later, past = _find(store)["messages"]
    assert (past["standing"], later["standing"], later["id"]) == ("waiting", "waiting", receipt.message_id)
    assert later["detail"] == "not before 2050-01-02 00:00:00 UTC"
    code, printed = call_command(trace, store, receipt.message_id, environ=relay_settings(store))
    assert (code, "not before 2050-01-02" in printed) == (Exit.OK, True), printed
    (source,) = call_for_json(pending, store, environ=relay_settings(store))[1]["tables"]
    assert (source["later"], source["overdue"]) == (2, 1)
    assert "1 of them should have come: start a relay" in call_command(pending, store, environ=relay_settings(store))[1]
    assert "1 messages whose not_before" in call_command(doctor, store, environ=relay_settings(store))[1]


def test_a_discarded_row_is_found_with_its_reason_and_by_service(store: Site) -> None:
    plant_discarded(store, KEY, "another")
    (dead,) = _find(store, "--service", "orders")["messages"]
    assert (dead["standing"], dead["detail"]) == ("discarded", "TOPIC_MISSING: why")
    assert dead["place"].endswith(f"of table source {SOURCE}")
    assert _find(store, "--service", "others", code=Exit.FINDINGS)["messages"] == []


def test_halves_are_found_until_they_are_settled_and_in_the_discard_topic(site: Site) -> None:
    site.create("orders", partitions=2)
    create(site)
    outbox, message = site.half_outbox(publish_timeout_seconds=20.0), Message(site.topic("orders"), "secret", KEY)
    (entry,) = send_halves(site, outbox, [message])
    (half,) = _find(site)["messages"]
    assert (half["standing"], half["id"]) == ("unsettled", f"{entry.transaction_id}/0")
    headers = (("outbox-target", b"orders:-1"), ("outbox-service", b"shop;row"))
    dead, left = (message_key("01937b5e-0000-7000-8000-000000000000", position) for position in (0, 1))
    for key, value in ((dead, KEY.encode()), (left, KEY.encode()), (manifest_key("x"), b"another")):
        site.produce(site.channel.discard_topic, Envelope(value, b"secret", headers, 1, 7).encode(), key, 0)
    site.produce(site.channel.discard_topic, None, left, 0)
    found = _find(site)["messages"]
    assert [(one["standing"], one["id"], one["topic"], one["service"]) for one in found] == [
        ("discarded", dead.decode(), "orders", "shop"),
        ("unsettled", half["id"], half["topic"], half["service"]),
    ]
    shown = call_command(app, site, "--key", KEY, environ=relay_settings(site))[1]
    assert f"outbox trace {half['id']}" in shown
    assert "A row that was rolled back leaves no key, and settled halves are not searched." in shown
    assert "secret" not in shown
    (committed,) = publish_bulk(site, outbox, [message])
    since = f"behind {entry.transaction_id}, since {utc(half['time_ms'])}"
    assert [one["detail"] for one in _find(site)["messages"] if one["standing"] == "unsettled"] == ["", since]
    story = call_for_json(trace, site, committed)[1]
    assert (story["state"], story["behind"]) == ("committed", since)
    assert f"it waits {since}: that one has the same key, and is not settled" in call_command(trace, site, committed)[1]
    assert call_for_json(trace, site, half["id"])[1]["behind"] is None
