"""Half partitions that were written to before they had a checkpoint go on exactly once (R84)."""

import json
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from outbox import HalfOutbox, Message
from outbox._service.exit_codes import Exit
from outbox.operator.commands.channel import app as channel_app
from outbox.operator.commands.resume import app
from tests.support.commands import call_command
from tests.support.harness import Site, wait_until

GROWN = 4


class Application(threading.Thread):
    """Publishes a message in each transaction, of many keys, until it is stopped; each fifth is rolled back."""

    def __init__(self, site: Site, name: str) -> None:
        super().__init__(daemon=True)
        self._site, self._name = site, name
        self._stopping = threading.Event()
        self._engine: Engine = site.engine()
        self.outbox: HalfOutbox = site.half_outbox(publish_timeout_seconds=20.0)
        self.committed: list[bytes] = []
        self.failure: BaseException | None = None

    def run(self) -> None:
        number = 0
        while not self._stopping.wait(0.01):
            number += 1
            value = f"{self._name} {number}"
            try:
                self._publish(value, number)
            except BaseException as error:  # noqa: BLE001 - `stop` raises it
                self.failure = error
                return

    def _publish(self, value: str, number: int) -> None:
        with Session(self._engine) as session:
            self.outbox.publish(session, Message(self._site.topic("orders"), value, f"key {number % 37}"))
            if number % 5:
                session.commit()
                self.committed.append(value.encode())

    def stop(self) -> list[bytes]:
        self._stopping.set()
        self.join()
        if self.failure is not None:
            raise self.failure
        return self.committed


@pytest.fixture
def grown(site: Site) -> Site:
    site.create("orders", partitions=2)
    site.checker()
    return site


def _grow(site: Site) -> None:
    names = site.channel
    site.grow(names.verdict_topic, names.op_topic, names.discard_topic, names.half_topic, partitions=GROWN)


def _resume(site: Site, *words: str) -> tuple[int, str]:
    return call_command(app, site, *words)


def _document(site: Site, *words: str, code: int = Exit.OK) -> Any:
    found, printed = _resume(site, *words, "--json")
    assert found == code, printed
    return json.loads(printed)


def _assert_each_once(site: Site, committed: Sequence[bytes]) -> None:
    site.wait_visible(len(committed), "orders")
    site.wait_settled()
    assert sorted(record.value or b"" for record in site.read("orders")) == sorted(committed)


@pytest.mark.long
def test_a_channel_that_grew_while_applications_ran_goes_on(grown: Site) -> None:
    relay = grown.relay(extra={"OUTBOX_CONTRACT_INTERVAL_MS": "500"})
    applications = [Application(grown, "old")]
    applications[0].start()
    grown.wait_visible(20, "orders")
    _grow(grown)
    assert relay.wait() == Exit.UNSAFE
    applications.append(Application(grown, "new"))  # as in a rolling restart: one knows the new partitions
    applications[1].start()
    wait_until(lambda: len(applications[1].committed) > 60)
    unknown = grown.relay()
    wait_until(lambda: "has no checkpoint" in unknown.output(), explain=grown.logs)
    code, created = call_command(channel_app, grown, "create")
    assert (code, "outbox resume" in created) == (Exit.CONFIGURATION, True)
    code, said = _resume(grown, "--yes")
    assert (code, "stop the relays of the channel" in said) == (Exit.CONFIGURATION, True), said
    unknown.terminate()
    tried = _document(grown, "--dry-run")
    assert tried["outcome"] == "possible"
    assert {one["partition"] for one in tried["partitions"]} <= {2, 3}
    assert all(one["halves"] and not one["halves_found_delivered"] for one in tried["partitions"])
    assert _document(grown, "--yes")["outcome"] == "resumed"
    assert _document(grown, "--yes")["outcome"] == "nothing to resume"
    grown.relay()
    committed = [value for one in applications for value in one.stop()]
    _assert_each_once(grown, committed)


def test_what_was_delivered_before_a_checkpoint_was_lost_is_not_delivered_again(grown: Site) -> None:
    relay = grown.relay()
    application = Application(grown, "shop")
    application.start()
    grown.wait_visible(40, "orders")
    relay.terminate()
    behind = len(application.committed)
    wait_until(lambda: len(application.committed) > behind + 30)
    grown.delete_group()
    found = _document(grown, "--yes")
    assert found["outcome"] == "resumed"
    assert [one["halves"] > one["halves_found_delivered"] > 0 for one in found["partitions"]] == [True, True]
    grown.relay()
    _assert_each_once(grown, application.stop())


def test_what_real_topics_cannot_prove_is_refused(grown: Site) -> None:
    application = Application(grown, "shop")
    application.start()
    wait_until(lambda: len(application.committed) > 40)
    application.stop()
    grown.delete_group()
    assert grown.delete_records(grown.channel.half_topic, 0, before=1) == {0: 1}
    grown.produce(grown.channel.discard_topic, b"v", b"k", 1)
    found = _document(grown, "--yes", code=Exit.UNPROVABLE)
    assert [("begins at offset 1" in one["why"], "discard" in one["why"]) for one in found["partitions"]] == [
        *((True, False), (False, True))
    ]
    assert found["outcome"] == "refused"


def test_a_topic_that_does_not_exist_proves_nothing(grown: Site) -> None:
    application = Application(grown, "shop")
    application.start()
    wait_until(lambda: len(application.committed) > 40)
    committed = application.stop()
    grown.delete_group()
    topic = grown.topic("orders")
    grown.delete_topics(topic)
    wait_until(lambda: topic not in grown.admin.list_topics(timeout=10).topics)
    found = _document(grown, "--yes", code=Exit.UNPROVABLE)
    assert (found["outcome"], [one["place"] for one in found["not_searched"]]) == ("refused", [topic])
    assert _document(grown, "--not-delivered-to", topic, "--yes")["outcome"] == "resumed"
    grown.create_topics("orders")
    grown.relay()
    _assert_each_once(grown, committed)
