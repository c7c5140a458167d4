"""The purge: what goes, what stays, and what is never taken for rolled back afterwards (R11)."""

import signal
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from typing import Any

import psycopg
import pytest

from checker.fencing.fence import Fence
from checker.rules.settlement import Ages, Delay
from checker.rules.verdicts import Verdict
from checker.upkeep.delivery_progress import DeliveryReader
from checker.upkeep.walk import Purged
from outbox import HalfOutbox, Message
from outbox._kafka.admin import end_offset
from outbox._kafka.channel import ChannelDescription, create_channel
from outbox._postgres.callback_table import CallbackTable
from outbox._service.exit_codes import Exit
from outbox.protocol.check import CheckRequest
from outbox.protocol.checkpoint import HalfCheckpoint
from outbox.protocol.half import Truth
from outbox.protocol.identifiers import make_transaction_id
from outbox.protocol.positions import Positions
from tests.support.bulk import publish_bulk, send_halves
from tests.support.commands import run_command
from tests.support.harness import QUICK_CHECKS, Site, doubled, wait_until
from tests.support.settling import (
    DAY_MS,
    HOUR_MS,
    Made,
    any_topic_id,
    commit_checkpoint,
    discard,
    discard_malformed,
    make_rows,
    meta,
    purge,
    settled_to,
    walk_of,
    watermark,
)

QUICK = {
    **QUICK_CHECKS,
    "OUTBOX_TOPIC_MISSING_MAX_AGE_MS": "300",
    "OUTBOX_UPKEEP_INTERVAL_MS": "200",
    "OUTBOX_KEEP_SETTLED_MS": "300",
}
"""Rows go soon; what cannot be delivered is discarded soon."""


@pytest.fixture
def channel(site: Site) -> ChannelDescription:
    return site.create("orders", "gone", partitions=1)


def _messages(site: Site, topic: str, count: int) -> list[Message]:
    return [Message(site.topic(topic), str(number), f"key{number}") for number in range(count)]


def _bare(message_ids: list[str]) -> set[str]:
    return {id_.partition("/")[0] for id_ in message_ids}


@pytest.mark.long
def test_rows_of_delivered_transactions_go_and_that_of_a_discarded_one_stays(
    site: Site, channel: ChannelDescription, outbox: HalfOutbox
) -> None:
    refused = publish_bulk(site, outbox, _messages(site, "gone", 1))
    ids = publish_bulk(site, outbox, _messages(site, "orders", 50))
    site.delete_topics(site.topic("gone"))
    site.relay(extra=QUICK)
    site.wait_visible(50, "orders")
    checker = site.checker(extra=QUICK, failpoint="checker.purging")
    assert checker.wait() == -signal.SIGKILL, "it dies before its first batch is committed"
    assert set(site.rows()) == _bare(refused + ids)
    assert meta(site) == {}
    checker = site.checker(extra=QUICK)
    wait_until(lambda: set(site.rows()) == _bare(refused), explain=site.logs)
    assert watermark(site, channel) == 51, "above the one that stays"
    wait_until(lambda: '"event": "Rows purged"' in checker.output())
    site.create_topics("gone")
    assert run_command(site, "discarded", "deliver", *_bare(refused), "--yes").returncode == Exit.OK
    wait_until(lambda: site.rows() == {}, explain=site.logs)
    found = site.read("orders", "gone")
    assert not doubled(found)
    assert {record.message_id for record in found} == {*ids, *refused}
    assert checker.terminate() == Exit.OK


def test_what_nobody_committed_and_is_parked_below_the_watermark_is_fenced(
    site: Site, channel: ChannelDescription, outbox: HalfOutbox, reader: DeliveryReader
) -> None:
    """No row of it can have been purged: it lay in the discard topic all the time."""
    (orphan,) = send_halves(site, outbox, _messages(site, "orders", 1))
    publish_bulk(site, outbox, _messages(site, "orders", 5))
    site.relay(extra={**QUICK, "OUTBOX_UNDECIDED_MAX_AGE_MS": "400"})
    site.wait_settled()
    assert purge(site, reader.read(), keep_settled_ms=1)["C"] == 5
    assert watermark(site, channel) == 6
    site.checker(extra={**QUICK, "OUTBOX_PURGE": "false"})
    wait_until(lambda: site.rows() == {orphan.transaction_id: "R"}, explain=site.logs)
    wait_until(lambda: reader.read().discarded == {}, explain=site.logs)


def test_a_role_that_may_not_delete_is_told_so_and_may_serve_without_the_purge(site: Site) -> None:
    site.create()
    name = f"{site.name}_checker"
    own = {"OUTBOX_POSTGRES_URL": site.role("checker")}
    site.sql(f"GRANT SELECT, INSERT ON {site.tables.transaction}, {site.tables.meta} TO {name}")
    site.sql(f"GRANT SELECT, UPDATE ON {site.tables.fence} TO {name}")
    refused = site.checker(extra=own)
    assert refused.wait() == Exit.CONFIGURATION
    assert (
        f"database 'default' cannot be used: role {name} lacks DELETE on public.{site.tables.transaction}, "
        f"UPDATE on public.{site.tables.meta}: grant it, or set purge = false (OUTBOX_PURGE)"
    ) in refused.output()
    serving = site.checker(extra={**own, "OUTBOX_PURGE": "false"})
    wait_until(lambda: "Checker started" in serving.output(), explain=site.logs)
    assert serving.terminate() == Exit.OK


def test_rows_leave_by_settlement_and_age(site: Site, channel: ChannelDescription, reader: DeliveryReader) -> None:
    settled = make_rows(site, channel.half.id, range(10))
    unsettled = make_rows(site, channel.half.id, range(10, 20))
    young = make_rows(site, channel.half.id, [5], age_ms=23 * HOUR_MS)
    deleted = make_rows(site, any_topic_id(), range(3))
    commit_checkpoint(site, channel, HalfCheckpoint(10, 20, (range(10, 11),)))
    assert purge(site, reader.read()) == Purged(C=10)
    assert set(site.rows()) == {row.transaction_id for row in (*unsettled, *young, *deleted)}
    assert watermark(site, channel) == settled[-1].offset + 1
    assert purge(site, reader.read()) == Purged(C=0)


def test_a_walk_reports_what_it_leaves_over(site: Site, channel: ChannelDescription, reader: DeliveryReader) -> None:
    """The rows of one page: gone, too young to go, and not delivered."""
    make_rows(site, channel.half.id, range(10))
    make_rows(site, channel.half.id, range(3), age_ms=23 * HOUR_MS)
    pending = make_rows(site, channel.half.id, [10, 11], age_ms=23 * HOUR_MS)
    make_rows(site, channel.half.id, [12], age_ms=HOUR_MS // 60)
    commit_checkpoint(site, channel, HalfCheckpoint(10, 20, (range(10, 13),)))
    progress, purged = reader.read(), Purged()
    with site.connect() as connection:
        walk = walk_of(site, progress, Ages(DAY_MS, DAY_MS, HOUR_MS // 6))
        left_over = walk.run(connection, progress, purged.update)
    assert purged == Purged(C=10)
    assert left_over is not None
    (found,) = left_over
    assert (found.delay, found.count) == (Delay.PENDING, 2)
    assert found.examples == sorted(row.transaction_id for row in pending)


def test_a_row_ahead_of_the_clock_stays(site: Site, channel: ChannelDescription, reader: DeliveryReader) -> None:
    """It is old by one clock only: `outcome()` of a purged transaction goes by the time in its id."""
    (ahead,) = make_rows(site, channel.half.id, [0], age_ms=-DAY_MS)
    make_rows(site, channel.half.id, [1])
    site.sql(f"UPDATE {site.tables.transaction} SET created_at = now() - interval '2 days'")
    commit_checkpoint(site, channel, HalfCheckpoint(2, 2))
    assert purge(site, reader.read()) == Purged(C=1)
    assert set(site.rows()) == {ahead.transaction_id}


def test_a_row_with_an_unreadable_half_stays(site: Site, channel: ChannelDescription, reader: DeliveryReader) -> None:
    """Nobody but the row knows its transaction."""
    rows = make_rows(site, channel.half.id, range(3))
    commit_checkpoint(site, channel, HalfCheckpoint(10, 10))
    discard_malformed(site, channel, 1)
    assert purge(site, reader.read()) == Purged(C=2)
    assert set(site.rows()) == {rows[1].transaction_id}


def test_a_row_is_as_old_as_its_insert_and_not_as_its_transaction(site: Site, outbox: HalfOutbox) -> None:
    """A long local transaction would else be purged as soon as it is delivered, and reported before it can be."""
    with site.connect() as connection:
        with outbox.transaction(connection) as tx:
            tx.publish(Message(site.topic("orders"), "late", "k"))
            ((before,),) = connection.execute("SELECT clock_timestamp()").fetchall()
        query = f"SELECT created_at FROM {site.tables.transaction}".encode()
        ((created,),) = connection.execute(query).fetchall()
    assert created >= before


def test_rollback_rows_raise_no_watermark(site: Site, channel: ChannelDescription, reader: DeliveryReader) -> None:
    make_rows(site, channel.half.id, range(5), state="R", age_ms=31 * DAY_MS)
    make_rows(site, any_topic_id(), range(2), state="R", age_ms=31 * DAY_MS)
    kept = make_rows(site, channel.half.id, range(5), state="R", age_ms=29 * DAY_MS)
    assert purge(site, reader.read()) == Purged(R=7)
    assert set(site.rows()) == {row.transaction_id for row in kept}
    assert meta(site) == {}


def test_the_watermark_never_goes_back(site: Site, channel: ChannelDescription, reader: DeliveryReader) -> None:
    key = f"purged/{channel.half.id}/0"
    site.sql(f"INSERT INTO {site.tables.meta} VALUES (%s, '1000'), ('purged_until', '9999999999999')", key)
    make_rows(site, channel.half.id, range(10))
    commit_checkpoint(site, channel, HalfCheckpoint(10, 10))
    assert purge(site, reader.read()) == Purged(C=10)
    assert meta(site) == {key: "1000", "purged_until": "9999999999999"}


def test_no_outcome_is_told_of_what_was_purged(
    site: Site, channel: ChannelDescription, outbox: HalfOutbox, reader: DeliveryReader
) -> None:
    """A rollback row for it would be a lie."""
    rows = make_rows(site, channel.half.id, range(2), age_ms=26 * HOUR_MS)
    commit_checkpoint(site, channel, HalfCheckpoint(2, 2))
    assert purge(site, reader.read()) == Purged(C=2)
    young = make_transaction_id(time.time_ns() // 1_000_000, bytes(10))
    with site.connect() as connection:
        assert str(outbox.outcome(rows[0].transaction_id, connection)) == "too old"
        assert str(outbox.outcome(young, connection)) == "rolled back"


@pytest.mark.parametrize("text", ["", "1;h;damaged;-;00000000"])
def test_without_a_checkpoint_that_proves_itself_nothing_goes(
    site: Site, channel: ChannelDescription, reader: DeliveryReader, text: str
) -> None:
    rows = make_rows(site, channel.half.id, range(10))
    commit_checkpoint(site, channel, HalfCheckpoint(10, 10), text=text)
    progress = reader.read()
    assert purge(site, progress) == Purged(C=0)
    assert set(site.rows()) == {row.transaction_id for row in rows}
    assert "damaged" in progress.problems[0]


class _Meddled(DeliveryReader):
    """Something happens after the first of its two looks, whichever that is."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.after_the_first: list[Callable[[], object]] = []

    def _meddle(self) -> None:
        if self.after_the_first:
            self.after_the_first.pop()()

    def _read_checkpoints(self) -> Any:
        found = super()._read_checkpoints()
        self._meddle()
        return found

    def _read_discards(self) -> Any:
        found = super()._read_discards()
        self._meddle()
        return found


def test_what_moves_to_the_discard_topic_between_the_looks_stays(site: Site, channel: ChannelDescription) -> None:
    (row,) = make_rows(site, channel.half.id, [3])
    commit_checkpoint(site, channel, HalfCheckpoint(3, 4, (range(3, 4),)))

    def discard_it() -> None:
        discard(site, channel, row)
        commit_checkpoint(site, channel, HalfCheckpoint(4, 4))

    with closing(_Meddled(site.kafka(), site.admin, channel)) as reader:
        reader.after_the_first.append(discard_it)
        assert purge(site, reader.read()) == Purged(C=0)
        assert reader.after_the_first == []
        assert purge(site, reader.read()) == Purged(C=0)
        discard(site, channel, row, removed=True)
        assert purge(site, reader.read()) == Purged(C=1)


def test_nothing_goes_while_the_discard_topic_is_held_back(
    site: Site, channel: ChannelDescription, reader: DeliveryReader
) -> None:
    """What lies behind an open Kafka transaction is not seen: it may be what the checkpoint has passed."""
    rows = make_rows(site, channel.half.id, range(4))
    commit_checkpoint(site, channel, HalfCheckpoint(4, 4))
    with site.open_transaction(channel.channel.discard_topic, 0):
        discard(site, channel, rows[0])
        progress = reader.read()
        assert progress.discarded == {}
        assert purge(site, progress) == Purged(C=0)
        assert "without an end" in progress.problems[0]
        assert reader.in_discard_topic([rows[0].transaction_id]) == frozenset()
    wait_until(lambda: not reader.read().problems)
    assert purge(site, reader.read()) == Purged(C=3)
    assert set(site.rows()) == {rows[0].transaction_id}
    assert reader.in_discard_topic([row.transaction_id for row in rows]) == {rows[0].transaction_id}


@pytest.mark.parametrize("key", [b"01", b"01\x00/0", b"01/manifest", b""])
def test_a_strangers_record_in_the_discard_topic_stops_no_purge(
    site: Site, channel: ChannelDescription, reader: DeliveryReader, key: bytes
) -> None:
    """No database takes such a key for an id."""
    rows = make_rows(site, channel.half.id, range(3))
    site.produce(channel.channel.discard_topic, b"by nobody that we know", key, 0)
    discard(site, channel, rows[0])
    commit_checkpoint(site, channel, HalfCheckpoint(3, 3))
    assert purge(site, reader.read()) == Purged(C=2)
    assert set(site.rows()) == {rows[0].transaction_id}


def test_what_comes_after_records_of_the_discard_topic_were_lost_is_seen(
    site: Site, channel: ChannelDescription, reader: DeliveryReader
) -> None:
    rows = make_rows(site, channel.half.id, range(3))
    commit_checkpoint(site, channel, HalfCheckpoint(3, 3))
    for _ in range(3):
        discard(site, channel, rows[0])
    assert set(reader.read().discarded) == {rows[0].transaction_id}
    site.delete_topics(channel.channel.discard_topic)
    wait_until(lambda: end_offset(site.admin, channel.channel.discard_topic, 0) is None)
    create_channel(site.kafka(), channel.channel, partitions=1)
    discard(site, channel, rows[1])
    wait_until(lambda: set(reader.read().discarded) == {rows[0].transaction_id, rows[1].transaction_id})
    assert purge(site, reader.read()) == Purged(C=1)


def _request(site: Site, channel: ChannelDescription, row: Made) -> CheckRequest:
    place = (channel.half.id, 0, Positions.first(1), row.offset, row.offset)
    return CheckRequest(row.transaction_id, "orders", Truth.ROW, *place, 1, site.incarnation())


class _Meeting:
    """Lets a row come, and a purge delete it, between the fence's look and its rollback row; the purge commits last."""

    def __init__(self, site: Site, purger: psycopg.Connection[Any], topic_id: str, pool: ThreadPoolExecutor) -> None:
        self._site, self._purger, self._topic_id, self._pool = site, purger, topic_id, pool
        self.row = Made(make_transaction_id(time.time_ns() // 1_000_000 - 2 * DAY_MS, bytes(10)), 0)
        self.committed: Future[None] | None = None

    def admit(self, connection: psycopg.Connection[Any], requests: Sequence[CheckRequest]) -> set[str]:
        if self.committed is None:
            make_rows(self._site, self._topic_id, [0], made=[self.row])
            self._purger.execute("BEGIN")
            settled = settled_to(self._topic_id, {0: 1})
            walk_of(self._site, settled).run(self._purger, settled, lambda _: None)
            self.committed = self._pool.submit(self._commit, connection.info.backend_pid)
        return {request.transaction_id for request in requests}

    def _commit(self, pid: int) -> None:
        _wait_for_a_lock(self._site, pid)
        self._purger.execute("COMMIT")


def test_a_fence_that_meets_a_purge_is_no_rollback_row(
    site: Site, channel: ChannelDescription, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fence's INSERT waits for the DELETE of the same row, and then finds its key free."""
    monkeypatch.setattr("checker.fencing.callback_rows.WAIT_MS", 20_000)
    with site.connect() as purger, site.connect() as checker, ThreadPoolExecutor(1) as pool:
        meeting = _Meeting(site, purger, channel.half.id, pool)
        request = _request(site, channel, meeting.row)
        fence = Fence(CallbackTable(site.tables), site.name, meeting)
        found = fence.check(checker, [request])
        assert meeting.committed is not None
        meeting.committed.result(30)
        assert found[request.transaction_id][0] is not Verdict.FENCED
        assert site.rows() == {}
        assert fence.check(checker, [request])[request.transaction_id][0] is Verdict.PURGED


def test_what_is_below_the_watermark_is_not_fenced_by_an_open_breaker(site: Site, channel: ChannelDescription) -> None:
    row = Made(str(uuid.uuid4()), 3)
    site.sql(f"INSERT INTO {site.tables.meta} VALUES (%s, '9')", f"purged/{channel.half.id}/0")
    with site.connect() as connection:
        asked: list[str] = []
        fence = Fence(CallbackTable(site.tables), site.name, _Once(asked), lambda ids: ids)
        answers = fence.check(connection, [_request(site, channel, row)])
    assert asked == [row.transaction_id] * 2, "for the rollback row, and for that of what lies in the discard topic"
    assert answers[row.transaction_id][0] is Verdict.WITHHELD
    assert site.rows() == {}


class _Once:
    def __init__(self, asked: list[str]) -> None:
        self._asked = asked

    def admit(self, connection: psycopg.Connection[Any], requests: Sequence[CheckRequest]) -> set[str]:
        del connection
        self._asked += [request.transaction_id for request in requests]
        return set(self._asked) if len(self._asked) == 1 else set()


def test_an_outcome_that_is_asked_during_a_purge_is_no_rollback_row(
    site: Site, channel: ChannelDescription, outbox: HalfOutbox, reader: DeliveryReader
) -> None:
    (row,) = make_rows(site, channel.half.id, [0])
    commit_checkpoint(site, channel, HalfCheckpoint(1, 1))
    progress = reader.read()
    with site.connect() as purger, site.connect() as asking, ThreadPoolExecutor(1) as pool:
        with purger.transaction():
            walk_of(site, progress).run(purger, progress, lambda _: None)
            answer = pool.submit(outbox.outcome, row.transaction_id, asking)
            _wait_for_a_lock(site, asking.info.backend_pid)
        assert str(answer.result(30)) == "too old"
    assert site.rows() == {}


def _wait_for_a_lock(site: Site, pid: int) -> None:
    query = "SELECT count(*) FROM pg_locks WHERE NOT granted AND pid = %s"
    with site.connect() as watcher:
        wait_until(lambda: watcher.execute(query, (pid,)).fetchone() == (1,))


def test_what_leaves_the_discard_topic_while_fenced_is_not_fenced(site: Site, channel: ChannelDescription) -> None:
    row = Made(str(uuid.uuid4()), 3)
    site.sql(f"INSERT INTO {site.tables.meta} VALUES (%s, '9')", f"purged/{channel.half.id}/0")
    with site.connect() as connection:
        looks = iter([{row.transaction_id}, set[str]()])
        fence = Fence(CallbackTable(site.tables), site.name, in_discard_topic=lambda _ids: next(looks))
        answers = fence.check(connection, [_request(site, channel, row)])
    assert answers[row.transaction_id][0] is Verdict.PURGED
    assert site.rows() == {}


def test_two_purges_delete_each_row_once(site: Site, channel: ChannelDescription, reader: DeliveryReader) -> None:
    make_rows(site, channel.half.id, range(12_000))
    commit_checkpoint(site, channel, HalfCheckpoint(12_000, 12_000))
    progress, totals = reader.read(), [Purged(), Purged()]

    def run(total: Purged) -> None:
        with site.connect() as connection:
            while site.rows():
                walk_of(site, progress).run(connection, progress, total.update)

    threads = [threading.Thread(target=run, args=(total,)) for total in totals]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(total["C"] for total in totals) == 12_000
    assert site.rows() == {}
    assert watermark(site, channel) == 12_000


@pytest.mark.parametrize("partitioned", [False, True])
def test_the_table_is_vacuumed_early_also_when_it_was_there_before(
    site: Site,
    partitioned: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    name, table = site.tables.transaction, CallbackTable(site.tables)
    with site.connect() as connection:
        table.create(connection)
        if partitioned:
            _partition(connection, name)
        real = f"{name}_part" if partitioned else name
        connection.execute(f"ALTER TABLE {real} RESET (autovacuum_vacuum_scale_factor)".encode())
        table.create(connection)
        table.verify(connection)
        ((options,),) = connection.execute("SELECT reloptions FROM pg_class WHERE relname = %s", (real,)).fetchall()
    assert "autovacuum_vacuum_scale_factor=0.01" in options


def _partition(connection: psycopg.Connection[Any], name: str) -> None:
    """Make the callback table the only partition of one of its name."""
    connection.execute(f"ALTER TABLE {name} RENAME TO {name}_part".encode())
    connection.execute(
        f"CREATE TABLE {name} (LIKE {name}_part INCLUDING ALL) PARTITION BY HASH (transaction_id)".encode()
    )
    attach = f"ALTER TABLE {name} ATTACH PARTITION {name}_part FOR VALUES WITH (MODULUS 1, REMAINDER 0)"
    connection.execute(attach.encode())
