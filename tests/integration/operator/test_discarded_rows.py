"""`outbox discarded`: discarded rows of message tables are listed, shown, moved back and deleted."""

from typing import Any

from outbox._service.exit_codes import Exit
from outbox._settings.declared import DAY_MS, TableSettings
from outbox.operator.commands.discarded import app
from outbox.operator.deciding.discarded_rows import DiscardedRows
from outbox.protocol.op import OpKind
from tests.support.commands import call_command, call_for_json
from tests.support.harness import Site, wait_until
from tests.support.message_rows import SOURCE, plant_discarded, relay_settings, wait_empty, waiting


def _list(site: Site, *words: str, code: int = Exit.OK) -> list[Any]:
    found, document = call_for_json(app, site, "list", *words, environ=relay_settings(site))
    assert found == code
    return list(document["transactions"])


def test_discarded_rows_are_listed_without_their_content(store: Site) -> None:
    plant_discarded(store, "secret-one", "secret-two")
    plant_discarded(store, "secret-three", reason="TOO_LARGE")
    first, second = _list(store)
    assert (first["source"], first["reason"], first["messages"], first["service"]) == (
        SOURCE,
        "TOPIC_MISSING",
        2,
        "orders",
    )
    assert [one["transaction"] for one in _list(store, "--reason", "TOO_LARGE")] == [second["transaction"]]
    assert _list(store, "--service", "others") == []
    printed = call_command(app, store, "list", environ=relay_settings(store))[1]
    assert f"of table source {SOURCE}, discarded" in printed
    assert [one["expires_ms"] - one["discarded_ms"] for one in (first, second)] == [30 * DAY_MS] * 2
    assert printed.count("deleted by age on 2") == 2
    assert "secret" not in printed


def test_discarded_rows_are_delivered_once_their_topic_is_there(store: Site) -> None:
    plant_discarded(store, "one", "two")
    plant_discarded(store, "three")
    first, _ = _list(store)
    tried = call_for_json(app, store, "deliver", "--all", "--dry-run", environ=relay_settings(store))
    assert [one["outcome"] for one in tried[1]["transactions"]] == ["possible", "possible"]
    words = ("deliver", f"{first['transaction']}/1", "--wait-seconds", "0")
    code, printed = call_command(app, store, *words, environ=relay_settings(store), typed="y\n")
    assert code == Exit.FINDINGS
    assert "1 of them are rows, which go back into their message table" in printed
    assert "0 of 1 transactions were delivered" in printed
    assert printed.count(f"{first['transaction']}/") == printed.count(" is now ") == 2
    still = printed.partition("are still there: ")[2]
    assert (first["transaction"] in still, printed.partition(" is now ")[2].partition("/")[0] in still) == (False, True)
    assert waiting(store) == 2
    store.create_topics("gone")
    store.relay(extra=relay_settings(store))
    code, document = call_for_json(
        app, store, "deliver", "--all", "--yes", "--wait", "30", environ=relay_settings(store)
    )
    assert (code, [one["outcome"] for one in document["transactions"]]) == (Exit.OK, ["left"])
    found = store.wait_visible(3, "gone")
    assert sorted(record.key or b"" for record in found) == [b"one", b"three", b"two"]
    new = document["transactions"][0]["new_transaction"]
    assert new != document["transactions"][0]["transaction"]
    (moved,) = document["transactions"][0]["new_messages"].items()
    assert moved[0].startswith(document["transactions"][0]["transaction"])
    assert moved[1] in {record.message_id for record in found}
    assert [record.key for record in found if record.message_id.startswith(new)] == [b"three"]
    wait_empty(store)
    assert _list(store) == []


def test_rows_that_are_discarded_again_are_still_there(store: Site) -> None:
    plant_discarded(store, "one", days=9)
    words = ("deliver", "--all", "--yes", "--wait-seconds", "0")
    code, document = call_for_json(app, store, *words, environ=relay_settings(store))
    (waits,) = document["transactions"]
    assert (code, waits["outcome"], waits["expires_ms"]) == (Exit.FINDINGS, "still there", None)
    store.relay(extra=relay_settings(store, OUTBOX_TOPIC_MISSING_MAX_AGE_MS="300"))
    wait_until(lambda: bool(_list(store)), explain=store.logs)
    rows = DiscardedRows(SOURCE, TableSettings(dsn=store.postgres_url, table_prefix=store.name))
    (former,) = rows.read()
    assert former.transaction == waits["new_transaction"]
    rows.decide([former], OpKind.DELIVER, "")
    wait_until(lambda: bool(_list(store)), explain=store.logs)
    (left,), (now,) = rows.left([former]), rows.read()
    assert (left.transaction, left.discarded_ms, left.expires_ms) == (now.transaction, now.discarded_ms, now.expires_ms)
    assert (now.discarded_ms or 0) > (former.discarded_ms or 0)


def test_discarded_rows_are_dropped_for_good(store: Site) -> None:
    plant_discarded(store, "one")
    plant_discarded(store, "two", reason="MALFORMED")
    code, document = call_for_json(app, store, "deliver", "--all", "--dry-run", environ=relay_settings(store))
    assert code == Exit.FINDINGS
    assert [one["outcome"] for one in document["transactions"]] == ["possible", "refused"]
    asked = call_command(app, store, "drop", "--all", environ=relay_settings(store), typed="n\n")[1]
    assert "2 transactions, 2 messages, will be removed for good" in asked
    assert len(_list(store)) == 2
    code, printed = call_command(app, store, "drop", "--all", "--yes", environ=relay_settings(store))
    assert (code, "2 of 2 transactions were dropped" in printed) == (Exit.OK, True)
    assert _list(store) == []
    assert waiting(store) == 0
