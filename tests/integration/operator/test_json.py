"""`--json`: one document, with names that stay; errors are one sentence on standard error all the same."""

import time
import uuid
from collections.abc import Iterator

import pytest

from outbox._service.exit_codes import Exit
from outbox.operator.commands import channel, discarded
from outbox.protocol.discard import DiscardReason, Manifest, manifest_key
from outbox.protocol.half import Truth
from outbox.protocol.op import OpKind
from outbox.protocol.positions import Positions
from tests.support.commands import call_command, call_for_json
from tests.support.harness import Site
from tests.support.servers import Servers


@pytest.fixture(scope="module")
def place(servers: Servers) -> Iterator[Site]:
    with Site(servers.bootstrap_servers, servers.postgres_url) as made:
        made.create(partitions=1)
        yield made


def _discard(site: Site, reason: DiscardReason) -> str:
    id_, topic_id = str(uuid.uuid4()), call_for_json(channel.app, site, "create")[1]["topics"][0]["topic_id"]
    decision = None if reason is DiscardReason.UNDECIDED else OpKind.COMMIT
    manifest = Manifest(
        id_, "orders", Truth.ROW, topic_id, 0, reason, "why", decision, Positions.first(1), ((0, 7),), 5_000
    )
    site.produce(site.channel.discard_topic, manifest.encode(), manifest_key(id_), 0)
    return id_


def test_channel(place: Site) -> None:
    for words in (("--partitions", "1"), ()):
        code, made = call_for_json(channel.app, place, "create", *words)
        assert (code, made["channel"]) == (Exit.OK, place.name)
        assert [one["topic"] for one in made["topics"]] == [
            place.channel.half_topic,
            place.channel.op_topic,
            place.channel.verdict_topic,
            place.channel.check_topic,
            place.channel.discard_topic,
        ]
        assert made["topics"][0].keys() == {"topic", "partitions", "replicas", "topic_id"}


def test_what_lies_in_the_discard_topic(place: Site) -> None:
    refused, undecided = _discard(place, DiscardReason.TOO_LARGE), _discard(place, DiscardReason.UNDECIDED)
    environ = {"OUTBOX_KEEP_DISCARDED_MS": "172800000"}
    code, listed = call_for_json(discarded.app, place, "list", environ=environ)
    assert code == Exit.OK
    found = {one["transaction"]: one for one in listed["transactions"]}
    first = found[refused]
    assert (first["reason"], first["decision"], first["appended_ms"]) == ("TOO_LARGE", "COMMIT", 5_000)
    assert abs(time.time() * 1_000 - first["discarded_ms"]) < 60_000
    assert (first["expires_ms"] - first["discarded_ms"], found[undecided]["expires_ms"]) == (172_800_000, None)
    assert call_command(discarded.app, place, "list")[1].count("deleted by age on 2") == 1, "what is undecided stays"
    for verb, kind in (("deliver", "DELIVER"), ("drop", "ROLLBACK")):
        words = (verb, refused, undecided, "--yes", "--wait-seconds", "0")
        code, decided = call_for_json(discarded.app, place, *words)
        outcomes = {one["transaction"]: one["outcome"] for one in decided["transactions"]}
        assert (code, decided["decision"]) == (Exit.FINDINGS, kind)
        assert outcomes == {refused: "still there", undecided: "refused"}
        assert "NOT THIS ONE: it is undecided" in call_command(discarded.app, place, verb, undecided, "--dry-run")[1]
    assert undecided not in {entry.transaction_id for _, entry in place.ops()}


def test_discarded_list_leaves_out_removed_and_limits(place: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = [_discard(place, DiscardReason.INCOMPLETE) for _ in range(4)]
    place.produce(place.channel.discard_topic, None, manifest_key(ids[0]), 0)
    words = ("list", "--reason", "INCOMPLETE")
    code, listed = call_for_json(discarded.app, place, *words)
    assert (code, [one["transaction"] for one in listed["transactions"]]) == (Exit.OK, ids[1:])
    monkeypatch.setattr("outbox.operator.words.MOST_LISTED", 1)
    code, printed = call_command(discarded.app, place, *words, environ={"COLUMNS": "80"})
    assert (code, ids[1] in printed, ids[2] in printed) == (Exit.OK, True, False)
    assert "2 more are not listed: --json" in printed
    assert "3 of orders  INCOMPLETE" in printed, "the sums have them all"
    assert max(map(len, printed.splitlines()[1:])) <= 80  # the first is a sentence about what was not looked at


def test_a_decision_on_many_is_shown_as_sums(place: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outbox.operator.words.MOST_LISTED", 2)
    ids = [_discard(place, DiscardReason.TIMESTAMP) for _ in range(3)]
    words = ("drop", "--all", "--reason", "TIMESTAMP", "--dry-run")
    code, printed = call_command(discarded.app, place, *words)
    assert (code, "3 of orders  TIMESTAMP" in printed, ids[0] in printed) == (Exit.OK, True, False)


def test_discarded_list_of_nothing_names_what_was_not_looked_at(place: Site) -> None:
    words = ("list", "--service", "nobody")
    code, listed = call_for_json(discarded.app, place, *words)
    assert (code, listed["transactions"], listed["not_read"][0][:18]) == (Exit.OK, [], "rows of table mode")
    for unknown in (("list", str(uuid.uuid4())), ("drop", str(uuid.uuid4()), "--yes")):
        code, printed = call_command(discarded.app, place, *unknown)
        assert (code, "no rows were looked at: no message table" in printed) == (Exit.CONFIGURATION, True)
    code, printed = call_command(discarded.app, place, *words)
    expected = (
        "not looked at: rows of table mode (no message table is named (--table NAME=DSN, or the setting tables))\n"
        f"No discarded transaction was found in channel {place.name}.\n"
    )
    assert (code, printed) == (Exit.OK, expected)
