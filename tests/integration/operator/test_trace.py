"""`outbox trace`: the story of a transaction, from what was read, with what was read."""

import time
import uuid
from typing import Any

import pytest

from outbox import Message
from outbox._service.exit_codes import Exit
from outbox.operator.commands.trace import app
from outbox.protocol.half import HalfControl, Truth
from outbox.protocol.identifiers import make_transaction_id
from outbox.protocol.partitioner import partition_for_key
from tests.support.bulk import send_halves
from tests.support.commands import call_command, call_for_json
from tests.support.harness import QUICK_CHECKS, Site
from tests.support.shop import Shop

HOUR_MS = 3_600_000


def _trace(site: Site, id_: str, *words: str, environ: dict[str, str | None] | None = None, code: int = Exit.OK) -> Any:
    found, document = call_for_json(app, site, id_, *words, environ=environ)
    assert found == code
    return document


def _whats(document: Any) -> list[str]:
    return [event["what"] for event in document["timeline"]]


def test_the_story_of_a_delivered_transaction_and_of_one_message_of_it(shop: Shop) -> None:
    site, first, second = shop.site, shop.topic(), shop.topic()
    with shop.session() as session:
        receipt = shop.publish(session, first, "secret one")
        shop.publish(session, second, "secret two")
    shop.records(1, first)
    record = shop.records(1, second)[0]
    document = _trace(site, receipt.transaction_id)
    assert document["state"] == "visible"
    assert sorted(_whats(document)) == ["half stored", "half stored", "op", "row", "visible", "visible"]
    assert _whats(document)[0] in {"half stored", "row"}
    assert document["databases"] == ["default"]
    op = next(event for event in document["timeline"] if event["what"] == "op")
    assert "COMMIT by producer" in op["detail"]
    assert _whats(document)[-2:] == ["visible", "visible"]  # at a time that only the log of a broker could tell
    assert document["timeline"][-1]["time_ms"] is None
    assert op["time_ms"] > 0
    one = _trace(site, f"{receipt.transaction_id}/1")
    assert sorted(_whats(one)) == ["half stored", "op", "row", "visible"]
    seen = next(event for event in one["timeline"] if event["what"] == "visible")
    place = (record.topic, record.partition, record.offset, 1)
    assert (seen["place"], seen["partition"], seen["offset"], seen["position"]) == place
    halves = [span for span in document["searched"] if span["topic"] == site.channel.half_topic]
    assert [span["to_offset"] - span["from_offset"] for span in halves] == [2]  # the row says where they lie
    shown = call_command(app, site, receipt.transaction_id)[1]
    assert "visible: readers see every message of it that counts" in shown
    assert "secret" not in shown


def test_the_partition_of_the_key_is_read_first_then_the_others(shop: Shop) -> None:
    site, topic = shop.site, shop.topic()
    with shop.session() as session:
        receipt = shop.publish(session, topic, "one")
    record = shop.records(1, topic)[0]

    def read() -> list[int]:
        document = _trace(site, receipt.transaction_id)
        assert document["state"] == "visible"
        return [span["partition"] for span in document["searched"] if span["topic"] == site.topic(topic)]

    assert read() == [record.partition]
    more = next(count for count in range(4, 99) if partition_for_key(topic.encode(), count) != record.partition)
    site.grow(site.topic(topic), partitions=more)
    assert read()[0] == partition_for_key(topic.encode(), more)


def test_the_story_of_what_the_checker_rolled_back(site: Site) -> None:
    site.create("orders", partitions=2)
    (entry,) = send_halves(
        site, site.half_outbox(publish_timeout_seconds=20.0), [Message(site.topic("orders"), "v", "k")]
    )
    assert _trace(site, entry.transaction_id)["state"] == "undecided"
    site.relay(extra=QUICK_CHECKS)
    site.checker()
    site.wait_settled()
    document = _trace(site, entry.transaction_id)
    assert document["state"] == "rolled back"
    assert set(_whats(document)) == {"half stored", "row", "op"}
    details = " ".join(event["detail"] for event in document["timeline"])
    assert "R, a rollback row" in details
    assert "ROLLBACK by checker" in details


def test_what_was_not_read_is_never_called_empty(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.create("orders", partitions=1)
    outbox = site.half_outbox(publish_timeout_seconds=20.0)
    entries = send_halves(site, outbox, [Message(site.topic("orders"), "v", f"k{number}") for number in range(30)])
    last = entries[-1].transaction_id
    with monkeypatch.context() as few:
        few.setattr("outbox.operator.reading.topic_walk.Walk.__init__.__defaults__", (10, "narrow it with --since"))
        cut = _trace(site, last, code=Exit.FINDINGS)
    assert cut["state"] == "not found"
    assert cut["conclusion"] == "nothing of it was found in what was read"
    (left,) = [one for one in cut["not_searched"] if one["place"].startswith(site.channel.half_topic)]
    assert left["place"] == f"{site.channel.half_topic}/0, offsets 10 to 30"
    later = _trace(site, last, "--since", "2099-01-01", code=Exit.FINDINGS)
    assert later["timeline"] == []
    assert [span["to_offset"] - span["from_offset"] for span in later["searched"]] == [0] * len(later["searched"])
    early = _trace(site, last, "--since", "2020-01-01T00:00:00Z")
    assert early["state"] == "undecided"


def test_the_halves_may_be_gone_and_the_real_topic_named(shop: Shop) -> None:
    """Retention has removed them: the row says where they were, and somebody says where to look."""
    site, topic = shop.site, shop.topic()
    with shop.session() as session:
        id_ = shop.publish(session, topic, "v").transaction_id
    shop.records(1, topic)
    site.wait_settled()
    site.delete_records(site.channel.half_topic, 0, 1)
    document = _trace(site, id_)
    assert document["state"] == "committed"
    assert document["conclusion"].endswith("it is not visible in what was read")
    assert "retention has removed them" in {one["why"] for one in document["not_searched"]}
    assert _trace(site, id_, "--topic", site.topic(topic))["state"] == "visible"


def test_an_id_that_nobody_has_is_told_with_what_was_read(shop: Shop) -> None:
    nobodys = make_transaction_id(time.time_ns() // 1_000_000, uuid.uuid4().bytes)
    document = _trace(shop.site, nobodys, code=Exit.FINDINGS)
    assert (document["state"], document["timeline"]) == ("not found", [])
    assert [one["place"] for one in document["not_searched"]] == ["rows of table mode"]
    names = shop.site.channel
    assert {span["topic"] for span in document["searched"]} == {*names.topics} - {names.check_topic}


@pytest.mark.parametrize(
    "made_ms", [time.time_ns() // 1_000_000 + 3 * HOUR_MS, (1 << 48) - 1], ids=["in three hours", "in the year 10889"]
)
def test_half_whose_clock_is_ahead_is_found(shop: Shop, made_ms: int) -> None:
    """By the clock in its id it is of the future, or of a year that no calendar has."""
    id_ = make_transaction_id(made_ms, uuid.uuid4().bytes)
    headers = HalfControl(shop.site.topic("orders"), -1, id_, 0, "g", Truth.ROW).encode()
    shop.site.produce(shop.site.channel.half_topic, b"v", headers=[*headers], partition=0)
    document = _trace(shop.site, id_)
    assert (document["state"], _whats(document), document["since_ms"]) == ("undecided", ["half stored"], 0)
    assert call_command(app, shop.site, id_)[0] == Exit.OK


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("nonsense",), "not a valid transaction or message id"),
        (("6f1d7a52-3c04-4e7b-9d36-0a1c2b3d4e5f",), "Give --since"),
        (("6f1d7a52-3c04-4e7b-9d36-0a1c2b3d4e5f", "--since", "soon"), "is not a valid time"),
    ],
)
def test_what_keeps_it_from_looking_is_one_sentence(shop: Shop, words: tuple[str, ...], says: str) -> None:
    code, printed = call_command(app, shop.site, *words)
    assert (code, says in printed) == (Exit.CONFIGURATION, True), printed
