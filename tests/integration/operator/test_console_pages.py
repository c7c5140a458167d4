"""`outbox console` in a real browser: from a key to a decision in three steps, by keyboard, in both modes."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from outbox import Message
from tests.support.browser import CHROMIUM, Browser, browser
from tests.support.bulk import send_halves
from tests.support.harness import Site, wait_until
from tests.support.message_rows import SOURCE, plant_discarded, relay_settings, waiting
from tests.support.probes import free_port

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not CHROMIUM, reason="Chromium is not installed: apt-get install chromium"),
]

KEY = "4711"
PAGE_SECONDS = 25.0
DESKTOP, PHONE = (1280, 800), (390, 844)
PICTURE = Path(__file__).parents[3] / "docs" / "operations" / "console.png"


@pytest.fixture
def address(store: Site, tmp_path: Path) -> Iterator[str]:
    """The address of a console whose operator may decide."""
    operator = tmp_path / "operator.toml"
    operator.write_text(
        f'bootstrap_servers = "{store.bootstrap_servers}"\nchannel = "{store.name}"\ntransaction_timeout_ms = 1\n'
        f'postgres_url = "{store.postgres_url}"\ntable_prefix = "{store.name}"\n'
        f'[tables.{SOURCE}]\ndsn = "{store.postgres_url}"\ntable_prefix = "{store.name}"\n'
    )
    words = ("console", "--operator-config", str(operator), "--listen", f"127.0.0.1:{free_port()}")
    console = store.start_module("outbox", *words, extra=relay_settings(store))
    wait_until(lambda: "login?key=" in console.output(), explain=store.logs)
    yield next(line for line in console.output().splitlines() if "login?key=" in line)
    assert console.terminate() == 0
    assert "Operator decides" in console.output()


def _look(page: Browser, *sizes: tuple[int, int]) -> None:
    """The page fits and is accessible, at the width of a desk and of a phone; it keeps the last one."""
    for size in sizes:
        page.resize(*size)
        assert page.run("document.documentElement.scrollWidth <= innerWidth"), "it does not fit"
        assert page.serious() == []


def _to_the_preview(page: Browser, address: str, state: str, verb: str, *sizes: tuple[int, int]) -> None:
    """Find, story, preview; each page within its time."""
    page.open(address.partition("?")[0])
    assert "Who are you?" in page.text()
    _look(page, *sizes)
    page.open(address)
    assert "Table sources" in page.text()
    _look(page, *sizes)
    assert state != "discarded" or "1 of orders TOPIC_MISSING" in page.text()
    page.type("Key", KEY)
    for step, seen in (("", "searched databases"), ("story", f"{state}: "), (f"preview: {verb}", "Reason")):
        began = time.monotonic()
        page.press(step)
        assert seen in page.text()
        assert time.monotonic() - began < PAGE_SECONDS
        _look(page, *sizes)
    assert "$ outbox " in page.text()


def test_a_dead_letter_is_delivered_in_three_steps(store: Site, address: str, tmp_path: Path) -> None:
    plant_discarded(store, KEY)
    with browser(tmp_path / "browser", *DESKTOP) as page:
        _to_the_preview(page, address, "discarded", "deliver", PHONE, DESKTOP)
        assert "go back into their message table" in page.text()
        if "OUTBOX_PICTURES" in os.environ:
            page.save(PICTURE)
        assert waiting(store) == 0, "a preview writes nothing"
        page.type("Reason", "the topic is there")
        page.press()
        assert "is now" in page.text()
        _look(page, PHONE, DESKTOP)
        assert page.violations == []
    assert waiting(store) == 1


def test_an_undecided_transaction_is_rolled_back_on_a_phone(store: Site, address: str, tmp_path: Path) -> None:
    with store.half_outbox(publish_timeout_seconds=20.0) as outbox:
        (entry,) = send_halves(store, outbox, [Message(store.topic("orders"), "secret", KEY)])
    with browser(tmp_path / "browser", *PHONE) as page:
        _to_the_preview(page, address, "undecided", "rollback", DESKTOP, PHONE)
        assert "its local transaction can no longer commit" in page.text()
        assert store.rows() == {}
        page.type("Reason", "its application is gone")
        page.press()
        assert "outcome: decided" in page.text()
        _look(page, DESKTOP, PHONE)
        assert "secret" not in page.text()
        assert page.violations == []
    assert store.rows() == {entry.transaction_id: "R"}
