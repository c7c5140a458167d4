"""The allow-list of a relay: required in production, and changed by a restart while applications publish."""

import json
import threading
from collections.abc import Sequence
from pathlib import Path

from outbox._service.exit_codes import Exit
from outbox.protocol.discard import DiscardReason
from tests.support import message_rows
from tests.support.commands import run_command
from tests.support.harness import Service, Site, doubled, wait_until
from tests.support.raw import RawLog, RawMessage

REMEDIES = ("list the topics of each service", 'set allowed_topics = { "*" = ["*"] }')


def test_in_production_a_relay_without_a_list_is_refused(site: Site) -> None:
    relay = site.relay(extra={"OUTBOX_PROFILE": "production"})
    assert relay.wait() == Exit.CONFIGURATION
    (line,) = relay.output().splitlines()
    assert line.startswith("outbox: allowed_topics is not set, and the profile is production: ")
    assert all(words in line for words in REMEDIES)


def test_check_and_doctor_report_a_missing_list_and_doctor_prints_a_list(site: Site) -> None:
    site.create()
    missing = {"OUTBOX_PROFILE": "production"}
    for words in (("relay", "--check"), ("doctor", "--json")):
        done = run_command(site, *words, environ={**missing, "COLUMNS": "500"})
        assert done.returncode == Exit.FINDINGS
        assert "allowed_topics is not set, and the profile is production" in done.stdout
    given = {"OUTBOX_ALLOWED_TOPICS": json.dumps({"orders": ["orders", "shop.*"]})}
    findings = json.loads(run_command(site, "doctor", "--json", environ=given).stdout)["findings"]
    shown = {one["what"]: one["finding"] for one in findings if one["what"].endswith("topics")}
    assert shown == {
        "allowed topics": "orders: orders, shop.*",
        "denied topics": "unless an entry names them: _*, connect-*, *-changelog, *-repartition",
    }


class _Relay:
    """A relay with a file, under load of a service whose topic never changes."""

    def __init__(self, site: Site, file: Path) -> None:
        self.site, self.file = site, file
        self._log = RawLog(site, site.create("a", "b", "steady", "rows", partitions=1).half.id)
        message_rows.create(site)
        self._lock, self._stop, self.steady = threading.Lock(), threading.Event(), 0
        self._load = threading.Thread(target=self._run_load)

    def allow(self, **services: Sequence[str]) -> None:
        lists = {**services, "steady": ["steady"]}
        lines = [f"{name} = {json.dumps([self.site.topic(one) for one in topics])}" for name, topics in lists.items()]
        self.file.write_text("\n".join(["[allowed_topics]", *lines, ""]))

    def start(self) -> Service:
        return self.site.relay(extra=message_rows.relay_settings(self.site, OUTBOX_CONFIG=str(self.file)))

    def begin_load(self) -> None:
        self._load.start()

    def _run_load(self) -> None:
        while not self._stop.is_set():
            for _ in range(20):
                self.commit("steady", "steady", str(self.steady))
                self.steady += 1
            self._stop.wait(0.01)

    def end_load(self) -> None:
        self._stop.set()
        self._load.join()

    def commit(self, service: str, topic: str, value: str) -> None:
        with self._lock:
            self._log.commit(RawMessage(self.site.topic(topic), b"k", value.encode()), service=service)
            self._log.flush()

    def insert(self, value: str) -> None:
        with self.site.connect() as connection:
            message_rows.insert_message(connection, self.site, "rows", "k", value)

    def forbidden(self) -> list[str]:
        found = self.site.manifests()
        assert {manifest.reason for manifest in found} <= {DiscardReason.FORBIDDEN}
        return [manifest.detail for manifest in found]

    def refused_rows(self) -> list[str]:
        rows = self.site.sql(f"SELECT reason, detail FROM {self.site.tables.discarded} ORDER BY id")
        assert {reason for reason, _ in rows} <= {str(DiscardReason.FORBIDDEN)}
        return [detail for _, detail in rows]


def test_a_restart_under_load_takes_a_new_list(site: Site, tmp_path: Path) -> None:
    """What one service loses is FORBIDDEN from then on, what another gains is delivered."""
    running = _Relay(site, tmp_path / "relay.toml")
    running.allow(orders=["a", "rows"], stock=["b"])
    relay = running.start()
    running.begin_load()
    try:
        running.commit("orders", "a", "1")
        running.commit("stock", "a", "2")
        running.insert("1")
        site.wait_visible(1, "rows")
        site.wait_visible(1, "a")
        wait_until(lambda: len(running.forbidden()) == 1, explain=site.logs)
        # A decision that was read, and not obeyed before the end, is left to check-back: what is read here has no row.
        site.wait_visible(running.steady, "steady")
        assert relay.terminate() == Exit.OK
        running.file.write_text('[allowed_topics]\norders = ["a*b"]\n')
        refused = running.start()
        assert refused.wait() == Exit.CONFIGURATION
        assert "'a*b' is neither a name nor a prefix" in refused.output()
        running.allow(orders=["b"], stock=["a", "b"])
        relay = running.start()
        running.commit("orders", "a", "3")
        running.commit("stock", "a", "4")
        running.insert("2")
        wait_until(lambda: len(running.refused_rows()) == 1, explain=site.logs)
        site.wait_visible(2, "a")
        wait_until(lambda: len(running.forbidden()) == 2, explain=site.logs)
    finally:
        running.end_load()
    steady = site.wait_visible(running.steady, "steady")
    assert [int(record.value or b"") for record in steady] == list(range(running.steady))
    assert [record.value for record in site.read("a")] == [b"1", b"4"]
    assert [record.value for record in site.read("rows")] == [b"1"]
    a = site.topic("a")
    assert running.forbidden() == [f"service {service} may not write to topic {a}" for service in ("stock", "orders")]
    assert running.refused_rows() == [f"service orders may not write to topic {site.topic('rows')}"]
    assert not doubled([*site.read("a", "rows"), *steady])
    assert relay.terminate() == Exit.OK
