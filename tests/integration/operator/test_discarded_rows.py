"""`outbox discarded`: discarded rows of message tables are listed, shown, moved back and deleted."""

from typing import Any

from outbox._service.exit_codes import Exit
from outbox._settings.declared import DAY_MS, TableSettings
from outbox.operator.commands.discarded import app
from outbox.operator.commands.trace import app as trace
from outbox.operator.deciding.discarded_rows import DiscardedRows
from outbox.protocol.op import OpKind
from tests.support.commands import call_command, call_for_json
from tests.support.harness import Site, wait_until
from tests.support.message_rows import SOURCE, plant_discarded, relay_settings


def _list(site: Site, *words: str, code: int = Exit.OK) -> list[Any]:
    found, document = call_for_json(app, site, "list", *words, environ=relay_settings(site))
    assert found == code
    return list(document["transactions"])


def test_discarded_rows_are_listed_without_their_content(store: Site) -> None:
    plant_discarded(store, "secret-one", "secret-two")
    plant_discarded(store, "secret-three", reason="TOO_LARGE")
    first, second = _list(store)
    said = [first[name] for name in ("source", "reason", "messages", "service")]
    assert said == [SOURCE, "TOPIC_MISSING", 2, "orders"]
    assert [one["transaction"] for one in _list(store, "--reason", "TOO_LARGE")] == [second["transaction"]]
    assert _list(store, "--service", "others") == []
    printed = call_command(app, store, "list", environ=relay_settings(store))[1]
    assert f"of table source {SOURCE}, discarded" in printed
    assert [one["expires_ms"] - one["discarded_ms"] for one in (first, second)] == [30 * DAY_MS] * 2
    assert printed.count("deleted by age on 2") == 2
    assert "secret" not in printed


def test_rows_that_are_discarded_again_are_still_there(store: Site) -> None:
    plant_discarded(store, "one", days=9)
    words = ("deliver", "--all", "--yes", "--wait-seconds", "0")
    code, document = call_for_json(app, store, *words, environ=relay_settings(store))
    (waits,) = document["transactions"]
    assert (code, waits["outcome"], waits["expires_ms"]) == (Exit.FINDINGS, "still there", None)
    code, printed = call_command(trace, store, waits["transaction"], environ=relay_settings(store))
    assert (code, f"delivered again: by an operator, as {waits['new_transaction']} (2" in printed) == (Exit.OK, True)
    assert f"`outbox trace {waits['new_transaction']}`" in printed
    ((old, new),) = waits["new_messages"].items()
    assert (old.partition("/")[0], new.partition("/")[0]) == (waits["transaction"], waits["new_transaction"])
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
