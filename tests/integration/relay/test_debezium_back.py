"""The way back to Debezium, by the program of docs/migrate/debezium.md, while four writers insert (R59)."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.peers.debezium_settings import CONNECTOR, Variant, connector_properties
from tests.support.debezium_cases import STRING, running_connectors
from tests.support.foreign_tables import Kind, relay_settings
from tests.support.harness import Site, wait_until
from tests.support.message_rows import Writers, assert_numbers, create_numbers

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

PAGE = Path(__file__).parents[3] / "docs" / "migrate" / "debezium.md"
KIND = Kind("debezium", "uuid", "delete")


def program(site: Site) -> str:
    (text,) = re.findall(r"<!-- program: back -->\n```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    text = re.sub(r"\boutbox\b", KIND.table(site), text)
    return text.replace("postgresql://owner@db/shop", site.postgres_url).replace("outbox_back", f"{site.name}_back")


def connector(site: Site) -> dict[str, object]:
    name = f"{site.name}_back"
    return {
        **connector_properties(Variant(name, name), site.postgres_url),
        "name": f"{CONNECTOR}-back",
        "slot.name": name,
        "publication.name": name,
        "table.include.list": f"public.{KIND.table(site)}",
        "value.converter": STRING,
        "transforms.outbox.route.topic.replacement": f"{site.name}.${{routedByValue}}",
    }


def test_the_way_back_to_debezium_with_live_writers(site: Site) -> None:
    site.create("orders", partitions=1)
    create_numbers(site)
    KIND.create(site)
    relay = site.relay(extra=relay_settings(KIND.settings(site)))
    with Writers.running(site, "orders", KIND.insert) as writers:
        site.wait_visible(200, "orders")
        back = subprocess.Popen(
            [sys.executable, "-u", "-c", program(site)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert back.stdin is not None
        assert back.stdout is not None
        said = ""
        while not said.endswith("Stop the relay, then press Enter "):
            more = back.stdout.read(1)
            assert more, said
            said += more
        assert KIND.waiting(site) == 0
        assert relay.terminate() == 0
        before = len(site.read("orders"))
        assert back.communicate("\n", timeout=60)[0] == "the slot begins here\n"
        assert back.returncode == 0
        wait_until(lambda: KIND.waiting(site) > 50)
        with running_connectors(site, [connector(site)]):
            site.wait_visible(before + 100, "orders", timeout=120)
            writers.join()
            found = assert_numbers(site, "orders", timeout=120)
    assert sum("outbox-id" in dict(record.headers) for record in found) == before
