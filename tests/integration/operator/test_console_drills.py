"""Each drill in a real browser, where the console can show it: at the moment in which a command shows the cause."""

import time
from pathlib import Path

import pytest

from stack import Stack
from tests.drills.page import DRILLS
from tests.drills.scene import Scene
from tests.support.browser import CHROMIUM, browser
from tests.support.harness import Site, wait_until
from tests.support.own_stack import own_stack
from tests.support.probes import free_port

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not CHROMIUM, reason="Chromium is not installed: apt-get install chromium"),
]

SHOWN = {
    "Order 4711 never arrived": ("find", ("DELIVERED", "offset")),
    "Nothing is delivered at all": ("", ("no relay runs", "start one")),
    "A relay is refused by its database": ("", ("unreachable", "password authentication failed")),
    "A relay is frozen": ("", ("served by database session", "next to be delivered")),
    "A topic was never created": ("", ("TOPIC_MISSING", "create the topic")),
    "A topic was deleted": ("", ("TOPIC_MISSING", "SAME_KEY", "create the topic")),
    "Messages are larger than their topic allows": ("", ("2 of orders TOO_LARGE",)),
    "Messages that no topic can take": ("", ("INTERNAL_TOPIC", "MALFORMED", "FORBIDDEN")),
    "Kafka is down": ("", ("Kafka does not answer", "Start Kafka, or correct")),
    "Postgres is down": ("", ("unreachable",)),
    "The database takes no writes": ("", ("read-only",)),
    "The database was restored from a backup": ("", ("halted",)),
    "A transaction does not end": ("story?id={last}", ("open: ",)),
}
"""Page and words, by the drill. What is left is shown by a service or by `outbox doctor` alone: names and settings."""

PAGE_SECONDS = 25.0
DESKTOP, PHONE = (1280, 800), (390, 844)
own = own_stack()


@pytest.mark.parametrize("symptom", SHOWN)
def test_the_console_shows_the_cause(own: Stack, symptom: str, tmp_path: Path) -> None:
    seen: list[float] = []
    path, words = SHOWN[symptom]

    def look(command: str) -> None:
        listen = ("--listen", f"127.0.0.1:{free_port()}")
        console = scene.site.start_module("outbox", "console", *listen, extra=scene.environ)
        wait_until(lambda: "login?key=" in console.output(), explain=scene.site.logs)
        address = next(line for line in console.output().splitlines() if "login?key=" in line)
        last = command.rsplit(maxsplit=1)[-1]
        with browser(tmp_path / f"browser{len(seen)}", *DESKTOP) as page:
            page.open(address)
            if path == "find":
                page.type("Key", "4711")
                page.type("Topic", last)
            began = time.monotonic()
            page.press("") if path == "find" else page.open(address.partition("login")[0] + path.format(last=last))
            text = page.text()
            seen.append(time.monotonic() - began)
            for size in (PHONE, DESKTOP):
                page.resize(*size)
                assert page.run("document.documentElement.scrollWidth <= innerWidth"), "it does not fit"
                assert page.serious() == []
        console.terminate()
        assert all(word in text for word in words), text

    with Site(own.bootstrap_servers, own.postgres_url) as site:
        scene = Scene(own, site)
        scene.explained = look
        DRILLS[symptom](scene)
    assert seen
    assert max(seen) < PAGE_SECONDS
