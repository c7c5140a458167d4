"""`outbox resolve`: what an operator decides becomes the row first; what the row says otherwise is refused."""

import signal
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.orm import Session

from outbox import HalfOutbox, Message
from outbox._failpoints import VARIABLE as FAILPOINT
from outbox._kafka.channel import verify_channel
from outbox._service.exit_codes import Exit
from outbox._settings.declared import CheckerDatabase
from outbox.errors import KafkaUnreachable, TransactionFenced
from outbox.operator.commands.resolve import app
from outbox.operator.deciding.discarded_places import send_decisions
from outbox.operator.reading.database_view import Alive, DatabaseView
from outbox.operator.state.rulings import SourceState
from outbox.protocol.check import CheckRequest
from outbox.protocol.discard import DiscardReason, Manifest, manifest_key
from outbox.protocol.half import Truth
from outbox.protocol.identifiers import lock_number
from outbox.protocol.names import LATE_HEADER
from outbox.protocol.op import OpEntry, OpKind, OpSource, encode_op
from outbox.protocol.positions import Positions
from outbox.transactional_producer import TransactionalProducer
from tests.support.bulk import publish_bulk, send_halves
from tests.support.commands import call_command, call_for_json, run_command
from tests.support.harness import QUICK_CHECKS, Site, wait_until
from tests.support.listeners import UNKNOWN, Scripted
from tests.support.servers import Servers
from tests.support.shop import Shop

AT_ONCE = ("--yes", "--min-age-ms", "0", "--reason", "the test says so")


@pytest.fixture(scope="module")
def still(servers: Servers) -> Iterator[Site]:
    """A site without relay and checker, on which everything stays undecided."""
    with Site(servers.bootstrap_servers, servers.postgres_url) as made:
        made.create("orders", partitions=2)
        yield made


@pytest.fixture(scope="module")
def outbox(still: Site) -> HalfOutbox:
    return still.half_outbox(publish_timeout_seconds=20.0)


def _undecided(site: Site, outbox: HalfOutbox) -> OpEntry:
    (entry,) = send_halves(site, outbox, [Message(site.topic("orders"), "v", uuid.uuid4().hex)])
    return entry


def _committed(site: Site, outbox: HalfOutbox) -> str:
    message = Message(site.topic("orders"), "v", uuid.uuid4().hex)
    return publish_bulk(site, outbox, [message], ops=False)[0].partition("/")[0]


def _said(site: Site, transaction_id: str) -> list[OpEntry]:
    return [e for source, e in site.ops() if source is OpSource.OPERATOR and e.transaction_id == transaction_id]


def _refused(site: Site, id_: str, verb: str, *words: str, environ: dict[str, str | None] | None = None) -> Any:
    """The document of a refusal, after which nothing is decided."""
    rows = site.rows()
    code, document = call_for_json(app, site, id_, verb, *AT_ONCE, *words, environ=environ)
    assert (code, document["outcome"], document["op_sent"]) == (Exit.FINDINGS, "refused", False)
    assert site.rows() == rows
    assert _said(site, id_) == []
    return document


@contextmanager
def _restored(site: Site) -> Iterator[None]:
    query = f"UPDATE {site.tables.meta} SET value = reverse(value) WHERE key = 'incarnation'"
    site.sql(query)
    try:
        yield
    finally:
        site.sql(query)


@pytest.mark.parametrize(("verb", "kind"), [("--commit", OpKind.COMMIT), ("--rollback", OpKind.ROLLBACK)])
def test_a_decision_becomes_the_row_then_an_op_marker(still: Site, outbox: HalfOutbox, verb: str, kind: OpKind) -> None:
    entry = _undecided(still, outbox)
    code, document = call_for_json(app, still, entry.transaction_id, verb, *AT_ONCE)
    assert (code, document["outcome"], document["row_placed"]) == (Exit.OK, "decided", True)
    assert still.rows()[entry.transaction_id] == str(kind)
    (said,) = _said(still, entry.transaction_id)
    place = (entry.partition, entry.positions, entry.first_offset, entry.last_offset)
    assert (said.kind, said.partition, said.positions, said.first_offset, said.last_offset) == (kind, *place)
    assert "the test says so" in said.reason
    assert f"{time.gmtime().tm_year}-" in said.reason
    assert ": " in said.reason  # and whose word it is
    again, same = call_for_json(app, still, entry.transaction_id, verb, *AT_ONCE)
    assert (again, same["outcome"], same["row_placed"]) == (Exit.OK, "decided", False)
    assert len(_said(still, entry.transaction_id)) == 2


def test_what_an_operator_decides_is_what_a_relay_does(site: Site) -> None:
    site.create("orders", partitions=1)
    outbox = site.half_outbox(publish_timeout_seconds=20.0)
    wanted, unwanted = _undecided(site, outbox), _undecided(site, outbox)
    assert call_command(app, site, wanted.transaction_id, "--commit", *AT_ONCE)[0] == Exit.OK
    assert call_command(app, site, unwanted.transaction_id, "--rollback", *AT_ONCE)[0] == Exit.OK
    site.relay()
    site.wait_settled()
    assert [record.message_id for record in site.read("orders")] == [f"{wanted.transaction_id}/0"]
    code, printed = call_command(app, site, wanted.transaction_id, "--rollback", *AT_ONCE)
    assert code == Exit.FINDINGS
    assert "it is settled, or none of its halves was ever stored" in " ".join(printed.split())


def test_it_asks_and_a_no_decides_nothing(still: Site, outbox: HalfOutbox) -> None:
    id_ = _undecided(still, outbox).transaction_id
    words = (id_, "--rollback", "--min-age-ms", "0", "--reason", "r")
    code, printed = call_command(app, still, *words, typed="n\n")
    assert code == Exit.OK
    assert "its local transaction can no longer commit. Go on?" in printed
    assert (id_ in still.rows(), _said(still, id_)) == (False, [])
    code, printed = call_command(app, still, *words, typed="y\n")
    assert (code, still.rows()[id_]) == (Exit.OK, "R")


def test_a_kill_between_row_and_op_marker_is_harmless(site: Site) -> None:
    """The row is the decision: check-back finds it."""
    site.create("orders", partitions=1)
    id_ = _undecided(site, site.half_outbox(publish_timeout_seconds=20.0)).transaction_id
    died = run_command(site, "resolve", id_, "--commit", *AT_ONCE, environ={FAILPOINT: "resolve.marking"})
    assert died.returncode == -signal.SIGKILL
    assert (site.rows()[id_], _said(site, id_)) == ("C", [])
    site.relay(extra=QUICK_CHECKS)
    site.checker()
    assert [record.message_id for record in site.wait_visible(1, "orders")] == [f"{id_}/0"]


def test_an_op_marker_that_does_not_go_out_is_told_with_what_stands(
    still: Site, outbox: HalfOutbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise KafkaUnreachable("Kafka does not answer")

    id_ = _undecided(still, outbox).transaction_id
    monkeypatch.setattr("outbox.operator.deciding.resolution.send_decisions", fail)
    code, printed = call_command(app, still, id_, "--rollback", *AT_ONCE)
    assert (code, still.rows().get(id_)) == (Exit.CONFIGURATION, "R")
    assert "the row is ROLLBACK and is final" in printed
    assert "Traceback" not in printed


def test_an_application_that_commits_after_a_rollback_is_fenced(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its connection has published before, so it takes the lock with its row: the rollback row comes in between."""
    site.create(partitions=1)
    with Shop(site) as shop:
        topic, number, engine = shop.topic(), shop.number(), site.engine(pool_size=1, max_overflow=0)

        def buy() -> None:
            with Session(engine) as session, session.begin():
                shop.insert(session, shop.number())
                shop.publish(session, topic, "v")

        def decide(name: str) -> None:
            if name == "outbox.half_acked":
                (id_,) = _open_ids(site)
                assert call_command(app, site, id_, "--rollback", *AT_ONCE)[0] == Exit.OK
                assert site.rows().get(id_) == "R"

        buy()
        monkeypatch.setattr("outbox._half.seal.failpoint", decide)
        with pytest.raises(TransactionFenced):
            buy()
        assert not shop.has(number + 2)
        assert sorted(site.rows().values()) == ["C", "R"]
        site.relay()
        site.wait_settled()
        assert len(site.read(topic)) == 1


def _open_ids(site: Site) -> set[str]:
    """Transactions whose halves are stored, and which have no row yet."""
    headers = (dict(record.headers)["outbox-transaction"] or b"" for record in site.halves())
    return {header.decode().removeprefix("1;").partition("/")[0] for header in headers} - set(site.rows())


@pytest.mark.parametrize("verb", ["--commit", "--rollback"])
def test_an_open_local_transaction_decides_by_itself(site: Site, verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    site.create(partitions=1)
    with Shop(site) as shop:
        topic, refusals = shop.topic(), []

        def decide(name: str) -> None:
            if name == "outbox.half_acked":
                (id_,) = _open_ids(site)
                refusals.append(_refused(site, id_, verb))

        monkeypatch.setattr("outbox._half.seal.failpoint", decide)
        with shop.session() as session:
            id_ = shop.publish(session, topic, "v").transaction_id
        (refusal,) = refusals
        assert (refusal["transaction"], refusal["standing"]) == (id_, "open")
        assert refusal["holder_pid"] > 0
        assert site.rows() == {id_: "C"}


def test_who_commits_after_the_look_is_seen(still: Site, outbox: HalfOutbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """The row is read after the operator's own was tried, in a statement of its own (R8)."""
    entry = _undecided(still, outbox)

    def commit(_self: object, _connection: object, _requests: object) -> set[str]:
        place = (entry.topic_id, entry.partition, entry.first_offset, entry.last_offset)
        query = f"INSERT INTO {still.tables.transaction} VALUES (%s, 'orders', 'C', %s, %s, %s, %s, %s, '0')"
        still.sql(query, entry.transaction_id, still.name, *place)
        return {entry.transaction_id}

    monkeypatch.setattr("outbox.operator.reading.database_view.DatabaseView._lock", commit)
    code, document = call_for_json(app, still, entry.transaction_id, "--rollback", *AT_ONCE)
    assert (code, document["standing"]) == (Exit.FINDINGS, "committed")
    assert still.rows()[entry.transaction_id] == "C"
    assert _said(still, entry.transaction_id) == []


@pytest.mark.parametrize("kind", [OpKind.COMMIT, OpKind.ROLLBACK])
def test_an_open_local_transaction_is_left_alone_at_the_last_moment_too(
    still: Site, outbox: HalfOutbox, kind: OpKind
) -> None:
    """It may have been opened, or have taken its lock again, after the look."""
    entry = _undecided(still, outbox)
    rows, request = _rows(still), _request(still, entry)
    with still.connect() as application, application.transaction():
        application.execute("SELECT pg_advisory_xact_lock(%s)", (lock_number(entry.transaction_id),))
        (seen,) = rows.decide([request], kind).values()
        assert (seen.standing, seen.holder) == (SourceState.OPEN, application.info.backend_pid)
    assert entry.transaction_id not in still.rows()
    assert rows.decide([request], kind)[entry.transaction_id].placed


def _rows(site: Site, alive: Alive = lambda _: ()) -> DatabaseView:
    return DatabaseView("shop", CheckerDatabase(dsn=site.postgres_url, table_prefix=site.name), site.name, alive)


def _request(site: Site, entry: OpEntry) -> CheckRequest:
    place = (entry.topic_id, entry.partition, entry.positions, entry.first_offset, entry.last_offset)
    return CheckRequest(entry.transaction_id, "orders", Truth.ROW, *place, 1, site.incarnation())


@pytest.mark.parametrize(
    ("purged", "alive"),
    [([False, True, True], [False] * 3), ([True] * 3, [True, False, False])],
    ids=["a purge passes it", "it leaves the discard topic"],
)
def test_what_may_be_purged_at_this_moment_is_not_decided(
    still: Site, outbox: HalfOutbox, monkeypatch: pytest.MonkeyPatch, purged: list[bool], alive: list[bool]
) -> None:
    entry, looks, reads = _undecided(still, outbox), iter(purged), iter(alive)
    monkeypatch.setattr("outbox.operator.reading.database_view._is_purged", lambda *_: next(looks))
    view, request = _rows(still, lambda ids: ids if next(reads) else ()), _request(still, entry)
    seen = view.decide([request], OpKind.ROLLBACK)[entry.transaction_id]
    assert (seen.standing, seen.placed) == (SourceState.PURGED, False)
    assert entry.transaction_id not in still.rows()


def test_what_is_young_is_left_to_its_application(still: Site, outbox: HalfOutbox) -> None:
    id_ = _undecided(still, outbox).transaction_id
    assert "so young" in _refused(still, id_, "--commit", "--min-age-ms", "60000")["why"]


def test_what_has_committed_is_not_rolled_back(still: Site, outbox: HalfOutbox) -> None:
    id_ = _committed(still, outbox)
    why = _refused(still, id_, "--rollback")["why"]
    assert "it has committed" in why
    code, printed = call_command(app, still, id_, "--rollback", *AT_ONCE)
    assert (code, why in " ".join(printed.split())) == (Exit.FINDINGS, True)
    code, document = call_for_json(app, still, id_, "--commit", *AT_ONCE)
    assert (code, document["row_placed"], document["op_sent"]) == (Exit.OK, False, True)


def test_a_rollback_row_is_not_overruled(still: Site, outbox: HalfOutbox) -> None:
    id_ = _undecided(still, outbox).transaction_id
    assert call_command(app, still, id_, "--rollback", *AT_ONCE)[0] == Exit.OK
    code, document = call_for_json(app, still, id_, "--commit", *AT_ONCE)
    assert (code, document["standing"], still.rows()[id_]) == (Exit.FINDINGS, "rolled back", "R")
    assert [entry.kind for entry in _said(still, id_)] == [OpKind.ROLLBACK]


@pytest.mark.parametrize("verb", ["--commit", "--rollback"])
def test_below_the_purge_watermark_nothing_is_decided(still: Site, outbox: HalfOutbox, verb: str) -> None:
    entry = _undecided(still, outbox)
    key = f"purged/{entry.topic_id}/{entry.partition}"
    still.sql(f"INSERT INTO {still.tables.meta} VALUES (%s, %s)", key, str(entry.last_offset + 1))
    try:
        assert _refused(still, entry.transaction_id, verb)["standing"] == "purged"
    finally:
        still.sql(f"DELETE FROM {still.tables.meta} WHERE key = %s", key)


def test_another_incarnation_is_decided_only_by_who_names_it(still: Site, outbox: HalfOutbox) -> None:
    entry, before = _undecided(still, outbox), still.incarnation()
    document = call_for_json(
        app, still, entry.transaction_id, "--rollback", "--min-age-ms", "60000", *AT_ONCE[:1], "--reason", "r"
    )[1]
    assert document["incarnation"] == before
    with _restored(still):
        today = still.incarnation()
        refusal = _refused(still, entry.transaction_id, "--rollback")
        assert (refusal["standing"], refusal["database_incarnation"]) == ("mismatch", today)
        assert _refused(still, entry.transaction_id, "--rollback", "--incarnation", today)["standing"] == "mismatch"
        words = (entry.transaction_id, "--rollback", *AT_ONCE, "--incarnation", before)
        assert call_command(app, still, *words)[0] == Exit.OK
        assert still.rows()[entry.transaction_id] == "R"


def test_a_service_without_a_database_is_refused(still: Site, outbox: HalfOutbox, tmp_path: Path) -> None:
    config = tmp_path / "checker.toml"
    config.write_text(f'[databases.one]\ndsn = "{still.postgres_url}"\nservices = ["others"]\n')
    environ: dict[str, str | None] = {"OUTBOX_POSTGRES_URL": None, "OUTBOX_CONFIG": str(config)}
    refusal = _refused(still, _undecided(still, outbox).transaction_id, "--rollback", environ=environ)
    assert "no database is configured for its service" in refusal["why"]


def test_what_cannot_be_delivered_is_left_to_its_own_verb(still: Site, outbox: HalfOutbox) -> None:
    entry = _undecided(still, outbox)
    place = (entry.topic_id, entry.partition, DiscardReason.TOO_LARGE, "too large")
    offsets = ((0, entry.first_offset),)
    manifest = Manifest(
        entry.transaction_id, "orders", Truth.ROW, *place, OpKind.COMMIT, Positions.first(1), offsets, 1
    )
    key = manifest_key(entry.transaction_id)
    still.produce(still.channel.discard_topic, manifest.encode(), key, entry.partition)
    code, printed = call_command(app, still, entry.transaction_id, "--rollback", *AT_ONCE)
    assert (code, "outbox discarded drop" in printed) == (Exit.FINDINGS, True)
    assert entry.transaction_id not in still.rows()


SOME = str(uuid.uuid4())
CHOICE = "name one transaction, or give --all and --service"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((SOME, "--commit", "--rollback", "--reason", "r", "--yes"), "either --commit or --rollback"),
        ((SOME, "--reason", "r", "--yes"), "either --commit or --rollback"),
        ((SOME, "--commit", "--yes"), "give --reason"),
        ((SOME, "--commit", "--reason", "r", "--json"), "give --yes"),
        (("--all", "--rollback", *AT_ONCE), CHOICE),
        (("--rollback", *AT_ONCE), CHOICE),
        ((SOME, "--rollback", "--all", "--service", "g", *AT_ONCE), "or give --all and --service"),
        ((SOME, "--rollback", "--service", "g", *AT_ONCE), CHOICE),
        (("--all", "--service", "g", "--commit", *AT_ONCE), "--all takes --rollback only"),
        (("01937b5e-0000-7000-8000-000000000001/0", "--commit", *AT_ONCE), "decided as a whole"),
    ],
)
def test_a_wrong_command_line_is_one_sentence(still: Site, words: tuple[str, ...], says: str) -> None:
    code, printed = call_command(app, still, *words)
    assert (code, says in printed) == (Exit.CONFIGURATION, True), printed


def test_an_id_that_is_not_unsettled_here_is_one_sentence(still: Site) -> None:
    code, printed = call_command(app, still, SOME, "--commit", *AT_ONCE)
    assert (code, "not among what channel" in printed) == (Exit.FINDINGS, True), printed


def test_without_its_database_nothing_is_decided(still: Site, outbox: HalfOutbox) -> None:
    id_ = _undecided(still, outbox).transaction_id
    environ = {"OUTBOX_POSTGRES_URL": "postgresql://nobody@127.0.0.1:1/none"}
    code, printed = call_command(app, still, id_, "--commit", *AT_ONCE, environ=environ)
    assert (code, "database 'default' does not answer" in printed) == (Exit.CONFIGURATION, True), printed
    assert _said(still, id_) == []


def test_of_a_listener_the_op_marker_alone_decides(site: Site) -> None:
    site.create("orders", partitions=1)
    producer = TransactionalProducer(site.half_outbox(), Scripted(UNKNOWN), serve_checks=False)
    sent = [producer.send_message_in_transaction(Message(site.topic("orders"), "v", "k")) for _ in range(2)]
    told, wanted = (result.transaction_id for result in sent)
    channel = verify_channel(site.admin, site.channel)
    said = OpEntry(
        OpKind.COMMIT, told, channel.half.id, 0, Positions.first(1), sent[0].half_offset, sent[0].half_offset
    )
    value, headers = encode_op([said], OpSource.LISTENER)
    site.produce(site.channel.op_topic, value, None, 0, headers=headers)
    refusal = _refused(site, told, "--rollback")
    assert (refusal["standing"], refusal["database"]) == ("listener committed", None)
    code, printed = call_command(app, site, wanted, "--commit", "--min-age-ms", "0", "--reason", "r", typed="y\n")
    assert code == Exit.OK
    assert "without a row, this op marker is the only record of it. Go on?" in printed
    site.relay()
    assert {record.message_id for record in site.wait_visible(2, "orders")} == {f"{told}/0", f"{wanted}/0"}
    assert site.rows() == {}


def test_what_is_parked_is_decided_below_the_watermark_too(site: Site) -> None:
    """Its row is never purged while it lies in the discard topic."""
    site.create("orders", partitions=1)
    outbox = site.half_outbox(publish_timeout_seconds=20.0)
    entries = [_undecided(site, outbox) for _ in range(2)]
    relay = {**QUICK_CHECKS, "OUTBOX_UNDECIDED_MAX_AGE_MS": "400"}
    site.relay(extra=relay)
    wait_until(lambda: len(site.manifests()) == 2, explain=site.logs)
    channel = verify_channel(site.admin, site.channel)
    site.sql(f"INSERT INTO {site.tables.meta} VALUES (%s, '1000')", f"purged/{channel.half.id}/0")
    wanted, unwanted = (entry.transaction_id for entry in entries)
    code, document = call_for_json(app, site, wanted, "--commit", *AT_ONCE)
    assert (code, document["parked"], document["standing"]) == (Exit.OK, True, "committed")
    assert call_command(app, site, unwanted, "--rollback", *AT_ONCE)[0] == Exit.OK
    (record,) = site.wait_visible(1, "orders")
    assert (record.message_id, dict(record.headers)[LATE_HEADER]) == (f"{wanted}/0", b"UNDECIDED")
    wait_until(lambda: not site.manifests(), explain=site.logs)
    assert site.rows() == {wanted: "C", unwanted: "R"}


def _of_group(site: Site, service: str, count: int) -> list[str]:
    messages = [Message(site.topic("orders"), "v", uuid.uuid4().hex) for _ in range(count)]
    outbox = site.half_outbox(service, publish_timeout_seconds=20.0)
    return [entry.transaction_id for entry in send_halves(site, outbox, messages)]


def _all_of(service: str, *words: str) -> tuple[str, ...]:
    return ("--all", "--service", service, "--rollback", *AT_ONCE, *words)


def test_resolve_all_rolls_back_what_has_no_row(still: Site, outbox: HalfOutbox) -> None:
    ids = _of_group(still, "dead", 30)
    other = _undecided(still, outbox).transaction_id
    dead = still.half_outbox("dead", publish_timeout_seconds=20.0)
    committed = publish_bulk(still, dead, [Message(still.topic("orders"), "v", "k")], ops=False)
    code, document = call_for_json(app, still, *_all_of("dead", "--dry-run"))
    assert (code, document["found"], document["possible"], document["decided"]) == (Exit.FINDINGS, 31, 30, 0)
    assert not set(ids) & still.rows().keys()
    code, document = call_for_json(app, still, *_all_of("dead"))
    assert (code, document["decided"]) == (Exit.FINDINGS, 30)
    assert [(one["standing"], one["transactions"]) for one in document["refused"]] == [("committed", 1)]
    rows = still.rows()
    assert {rows[id_] for id_ in ids} == {"R"}
    assert rows[committed[0].partition("/")[0]] == "C"
    assert other not in rows
    for id_ in (ids[0], ids[-1]):
        (said,) = _said(still, id_)
        assert (said.kind, "the test says so" in said.reason) == (OpKind.ROLLBACK, True)


def test_resolve_all_leaves_open_and_young_alone(still: Site) -> None:
    (open_, free) = _of_group(still, "slow", 2)
    with still.connect() as connection, connection.transaction():
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (lock_number(open_),))
        code, document = call_for_json(app, still, *_all_of("slow"))
    assert (code, document["decided"]) == (Exit.FINDINGS, 1)
    assert [(one["standing"], one["transactions"]) for one in document["refused"]] == [("open", 1)]
    assert (open_ in still.rows(), still.rows()[free]) == (False, "R")
    code, document = call_for_json(app, still, *_all_of("slow", "--older-than", "1h"))
    assert (code, document["found"]) == (Exit.OK, 0)


def test_resolve_all_asks_before_it_decides(still: Site) -> None:
    (id_,) = _of_group(still, "asked", 1)
    words = ("--all", "--service", "asked", "--rollback", "--min-age-ms", "0", "--reason", "x")
    code, printed = call_command(app, still, *words, typed="n\n", environ={"COLUMNS": "80"})
    assert (code, "1 transactions will be rolled back for good" in printed) == (Exit.OK, True), printed
    assert id_ not in still.rows()
    assert call_command(app, still, *words, typed="y\n")[0] == Exit.OK
    assert still.rows()[id_] == "R"


def test_resolve_all_takes_an_incarnation_that_is_gone(still: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outbox.operator.deciding.resolution.AT_ONCE", 2)
    with _restored(still):
        gone = still.incarnation()
        ids = _of_group(still, "restored", 3)
    code, document = call_for_json(app, still, *_all_of("restored"))
    assert (code, document["decided"], document["refused"][0]["standing"]) == (Exit.FINDINGS, 0, "mismatch")
    code, document = call_for_json(app, still, *_all_of("restored", "--incarnation", gone))
    assert (code, document["decided"]) == (Exit.OK, 3)
    assert {still.rows()[id_] for id_ in ids} == {"R"}


def test_send_decisions_waits_for_room_in_the_queue(still: Site) -> None:
    channel = verify_channel(still.admin, still.channel)
    ids = [str(uuid.uuid4()) for _ in range(200)]
    place = (channel.half.id, 0, Positions.first(1), 0, 0)
    small = {**still.kafka(), "queue.buffering.max.messages": "5"}
    send_decisions(small, channel, [OpEntry(OpKind.ROLLBACK, id_, *place) for id_ in ids])
    sent = {entry.transaction_id for _, entry in still.ops()}
    assert set(ids) <= sent
