"""`outbox erase`: what waits or is discarded of a key is gone, beside a relay, and a batch is as it was named (R90)."""

import re
from uuid import uuid4

import pytest

from outbox import Message
from outbox._service.exit_codes import Exit
from outbox.errors import ConfigurationError
from outbox.transaction import Outcome
from relay.table.rows import id_of
from tests.integration.relay.test_scheduled import later, publish, scheduled
from tests.support import message_rows as rows
from tests.support.commands import run_command
from tests.support.harness import Site, wait_until


def erase(site: Site, topic: str, key: str, code: int | None = Exit.OK) -> int:
    """Erase; return how many rows were erased. The log has who erased, and not the key."""
    words = ("--topic", site.topic(topic), "--key", key, "--operator", "ops", "--yes")
    result = run_command(site, "erase", *words, environ=rows.relay_settings(site))
    assert code in {None, result.returncode}, result.stderr + result.stdout
    found = re.search(r"^(\d+) rows? erased", result.stdout, re.MULTILINE)
    assert ("ops" in result.stderr, key in result.stderr) == (found is not None, False)
    return int(found[1]) if found else 0


def test_what_waits_is_scheduled_or_discarded_of_a_key_is_erased_and_nothing_else(store: Site) -> None:
    rows.plant_discarded(store, "anna", "bert")
    rows.insert(store, "anna", "bert")
    rows.insert(store, "anna", topic="other")
    messages = [Message(store.topic("orders"), "v", key, not_before=later(60)) for key in ("anna", "bert")]
    (receipt,), _ = [publish(store, store.outbox(), message) for message in messages]
    words = ("--topic", store.topic("orders"), "--key", "anna")
    asked = run_command(store, "erase", *words, environ=rows.relay_settings(store), typed="n\n")
    assert (asked.returncode, "Erase them?" in asked.stdout) == (Exit.FINDINGS, True)
    assert (rows.waiting(store), scheduled(store)) == (3, 2)
    assert erase(store, "orders", "anna") == 2
    assert erase(store, "gone", "anna") == 1
    assert erase(store, "gone", "anna") == 0
    assert rows.execute(store, "SELECT key FROM {message} ORDER BY id") == [(b"bert",), (b"anna",)]
    assert rows.execute(store, "SELECT key FROM {discarded}") == [(b"bert",)]
    assert scheduled(store) == 1
    assert store.outbox().outcome(receipt.transaction_id, store.engine()) is Outcome.COMMITTED
    assert run_command(store, "erase", *words, "--yes").returncode == Exit.UNPROVABLE, "no table is named"


def test_rows_that_an_owner_has_read_or_named_do_not_halt_it(store: Site) -> None:
    rows.insert(store, "anna")
    rows.insert(store, "bert")
    with rows.source_table(store) as table:
        progress = table.progress()
        window = table.window(100, 1_000_000, ())
        table.take(window, 2)
        named = progress.named(str(uuid4()), tuple(map(id_of, window.rows[:1])))
        progress = table.move(progress, named, window.rows[:1])
        assert erase(store, "orders", "anna", Exit.FINDINGS) == 0, "it is in delivery"
        assert erase(store, "orders", "bert") == 1
        step = progress.named(str(uuid4()), tuple(map(id_of, window.rows[1:])))
        with pytest.raises(ConfigurationError, match="were erased"):
            table.move(progress, step, window.rows[1:])
    with rows.source_table(store) as table:
        assert table.move(table.progress(), progress.settled()).delivered == progress.batch
    assert rows.waiting(store) == 0


def test_key_is_erased_beside_a_relay_that_delivers(store: Site) -> None:
    """Also while its rows wait for a topic, and a batch of others is open."""
    relay = store.relay(extra=rows.relay_settings(store, OUTBOX_TOPIC_MISSING_MAX_AGE_MS="600000"))
    rows.insert(store, *["anna", "bert"], topic="late")
    with rows.Writers.running(store, "orders"):
        wait_until(lambda: len(store.read("orders")) > 50, explain=store.logs)
        assert erase(store, "late", "anna") == 1
        erased = sum(erase(store, "orders", f"key{number}", None) for number in range(8))
    store.create_topics("late")
    assert [record.key for record in store.wait_visible(1, "late")] == [b"bert"]
    rows.wait_empty(store)
    written = sum(rows.numbers(store).values()) - 2
    records = store.wait_visible(written - erased, "orders")
    assert len({record.message_id for record in records}) == len(records) == written - erased
    assert "halted" not in relay.output()
