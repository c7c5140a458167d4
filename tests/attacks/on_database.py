"""Attacks in the database that both teams share, with the role of team-a's application."""

import threading
from collections.abc import Callable

import psycopg

from outbox._postgres.ddl import identifier
from outbox._postgres.source_statements import TRY_OWN
from outbox.protocol.identifiers import lock_number
from tests.attacks.attack import DONE, Attack, By, refusal
from tests.attacks.forging import rows, sql
from tests.attacks.teams import Teams
from tests.support.harness import wait_until

NO_RIGHT = "42501"
UNBOUNDED = "23514"
_SIGNAL = "SELECT {}(pid) FROM pg_stat_activity WHERE usename ~ '{{b}}'"
_OWN = TRY_OWN.replace("pg_try_advisory_lock", "pg_advisory_lock").encode()
_WAITING = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND classid = 1869967458 AND NOT granted"


def _runs(statement: str) -> Callable[[Teams], str]:
    return lambda teams: refusal(sql(teams, statement))


def _refused(what: str, statement: str, code: str = NO_RIGHT) -> Attack:
    return Attack(what, By.POSTGRES, code, _runs(statement))


def _callback_row(what: str, **columns: str) -> Attack:
    """Try to insert a row that decides, with columns as SQL writes them."""
    values = {"service": "'g'", "channel": "'team_a'", "positions": "'0'", "created_at": "now()"} | columns
    statement = (
        "INSERT INTO {a}_transaction (transaction_id, state, half_topic_id, half_partition, first_offset, last_offset, "
        f"{', '.join(values)}) SELECT gen_random_uuid(), 'C', gen_random_uuid(), 0, 0, 0, {', '.join(values.values())}"
    )
    return _refused(what, statement, UNBOUNDED)


def _spies_on_statements(teams: Teams) -> str:
    statement = "SELECT count(*) FROM pg_stat_activity WHERE usename ~ '{b}' AND query !~ 'insufficient privilege'"
    ((count,),) = rows(teams, statement)
    return DONE if count else "insufficient privilege"


def _holds_everything_back(teams: Teams) -> str:
    """Keep a transaction with a transaction id open, while team-b publishes and its relay delivers."""
    with psycopg.connect(teams.a.url("application")) as connection:
        connection.execute(b"SELECT pg_current_xact_id()")
        before = len(teams.observer.on(*teams.b.topics))
        wait_until(lambda: len(teams.observer.on(*teams.b.topics)) > before + 20, explain=teams.b.site.logs)
        connection.rollback()
    return DONE


def _locks_open_transaction(teams: Teams) -> str:
    """Wait for the lock of an open transaction of team-b, which every role sees in pg_locks, and hold it."""
    with psycopg.connect(teams.a.url("application"), autocommit=True) as holder:
        threads: list[threading.Thread] = []

        def wait_for(number: int) -> None:
            holder.execute("SELECT pg_advisory_lock(%s)", (number,))

        def meanwhile(transaction_id: str) -> None:
            number = lock_number(transaction_id)
            threads.append(threading.Thread(target=wait_for, args=(number,)))
            assert (number, True) in _locks(teams)
            threads[0].start()
            wait_until(lambda: (number, False) in _locks(teams))

        teams.witness.publish("2000000", meanwhile, eager=True)
        threads[0].join()
        wait_until(lambda: any(record.value == b"2000000" for record in teams.observer.on(*teams.b.topics)))
    return DONE


def _locks(teams: Teams) -> list[tuple[int, bool]]:
    """Numbers of the transactions' locks as team-a's role sees them, and whether they are held or waited for."""
    statement = (
        "SELECT (classid::bigint << 32) | objid::bigint, granted FROM pg_locks"
        " WHERE locktype = 'advisory' AND objsubid = 1"
    )
    return list(rows(teams, statement))


def _locks_source(teams: Teams) -> str:
    """Hold the owner's lock of team-b's source while its relay restarts; its operator then ends the session."""
    place = identifier(teams.b.site.tables.schema, teams.b.site.tables.source)
    with psycopg.connect(teams.a.url("application"), autocommit=True) as holder:
        waiting = threading.Thread(target=holder.execute, args=(_OWN, (place,)))
        waiting.start()
        wait_until(lambda: bool(rows(teams, _WAITING)))
        teams.relay.kill()
        waiting.join()
        teams.relay = teams.b.start_relay()
        wait_until(lambda: "its owner does not deliver it" in teams.relay.output(), explain=teams.b.site.logs)
        teams.b.site.sql("SELECT pg_terminate_backend(%s)", holder.info.backend_pid)
    _wait_for_more(teams, teams.b.topics[1])
    return DONE


def _takes_all_locks(teams: Teams) -> str:
    """Take as many locks as the server has memory for, and hold them while team-b publishes."""
    with psycopg.connect(teams.a.url("application"), autocommit=True) as holder:
        code = refusal(lambda: holder.execute("SELECT pg_advisory_lock(n) FROM generate_series(1, 10000000) AS n"))
        wait_until(lambda: teams.witness.refused > 0, explain=teams.b.site.logs)
    _wait_for_more(teams, *teams.b.topics)
    return code


def _wait_for_more(teams: Teams, *topics: str) -> None:
    """Wait until more messages of team-b are visible on each of some topics."""
    before = {topic: len(teams.observer.on(topic)) for topic in topics}
    on = teams.observer.on
    wait_until(lambda: all(len(on(topic)) > n + 10 for topic, n in before.items()), explain=teams.b.site.logs)


ON_DATABASE = (
    _refused("read team-b's callback table", "SELECT * FROM {b}_transaction"),
    _refused(
        "decide a transaction of team-b",
        "INSERT INTO {b}_transaction SELECT gen_random_uuid(), 'g', 'C', 'c', gen_random_uuid(), 0, 0, 0, '0'",
    ),
    _refused("change a decision in its own callback table", "UPDATE {a}_transaction SET state = 'C'"),
    _refused("delete a decision in its own callback table", "DELETE FROM {a}_transaction"),
    _refused("change the incarnation of team-b's database", "UPDATE {b}_meta SET value = gen_random_uuid()::text"),
    _refused("change the incarnation of its own database", "UPDATE {a}_meta SET value = gen_random_uuid()::text"),
    _refused("read team-b's messages", "SELECT value FROM {b}_message"),
    _refused("read the content of messages in its own table", "SELECT value FROM {a}_message"),
    _refused("insert a row into team-b's message table", "INSERT INTO {b}_message (service, topic) VALUES ('g', 't')"),
    _refused("delete rows of team-b's message table", "DELETE FROM {b}_message"),
    _refused(
        "choose the id of a row in its own message table",
        "INSERT INTO {a}_message (id, service, topic) OVERRIDING SYSTEM VALUE VALUES (1, 'g', 't')",
    ),
    _refused(
        "claim another local transaction for a row",
        "INSERT INTO {a}_message (xid, service, topic) VALUES ('1', 'g', 't')",
    ),
    _refused("set team-b's sequence back", "SELECT setval('{b}_message_id_seq', 1)"),
    _refused("set its own sequence back", "SELECT setval('{a}_message_id_seq', 1)"),
    _refused("change the progress of team-b's table source", "UPDATE {b}_source SET batch = 0"),
    _refused("change the progress of its own table source", "UPDATE {a}_source SET batch = 0"),
    _refused("read team-b's discarded rows", "SELECT * FROM {b}_discarded"),
    _refused("forge evidence of a delivery", "INSERT INTO {a}_delivered SELECT"),
    _refused("publish by team-b's SQL function", "SELECT {b}_publish('g', 't', 'v')"),
    _refused(
        "replace team-b's SQL function",
        "CREATE OR REPLACE FUNCTION {b}_publish() RETURNS text LANGUAGE sql AS 'SELECT 1'",
    ),
    _refused(
        "add a trigger to its own callback table",
        "CREATE TRIGGER x BEFORE INSERT ON {a}_transaction EXECUTE FUNCTION suppress_redundant_updates_trigger()",
    ),
    _refused("lock team-b's message table", "LOCK TABLE {b}_message IN ACCESS EXCLUSIVE MODE"),
    _refused("lock its own message table against the relay", "LOCK TABLE {a}_message IN ACCESS EXCLUSIVE MODE"),
    _refused("empty team-b's message table", "TRUNCATE {b}_message"),
    _refused("drop team-b's message table", "DROP TABLE {b}_message"),
    _refused("become team-b's application", "SET ROLE {b}_application"),
    _refused("become team-b's relay", "SET SESSION AUTHORIZATION {b}_relay"),
    _refused("give itself team-b's role", "GRANT {b}_relay TO {a}_application"),
    _refused("turn triggers and constraints off", "SET session_replication_role = replica"),
    _refused("read the server's files", "SELECT pg_read_file('PG_VERSION')"),
    _refused("run a program on the server", "COPY {a}_meta TO PROGRAM 'cat'", "42501"),
    _refused(
        "read changes of all tables from the log", "SELECT pg_create_logical_replication_slot('x', 'test_decoding')"
    ),
    _callback_row("a callback row whose service has 250 MB", service="repeat('g', 250000000)"),
    _callback_row("a callback row whose channel has 250 MB", channel="repeat('c', 250000000)"),
    _callback_row("a callback row whose positions have 250 MB", positions="repeat('1,', 125000000)"),
    _callback_row("a callback row that was made in 4000 BC", created_at="'4000-01-01 BC'"),
    _callback_row("a callback row that was made at no time", created_at="'-infinity'"),
    _refused("end the sessions of team-b's relay and checker", _SIGNAL.format("pg_terminate_backend")),
    _refused("cancel the statements of team-b's relay and checker", _SIGNAL.format("pg_cancel_backend")),
    Attack("see the statements of team-b's sessions", By.POSTGRES, "insufficient privilege", _spies_on_statements),
    Attack(
        "keep a transaction open for long",
        By.NOBODY,
        DONE,
        _holds_everything_back,
        "none on messages; vacuum waits, as with any open transaction",
    ),
    Attack(
        "hold the advisory lock of an open transaction of team-b",
        By.NOBODY,
        DONE,
        _locks_open_transaction,
        "a row decides all the same; a transaction that ended without a row stays undecided as long as its lock is "
        "held, and later ones of its ordering key wait",
    ),
    Attack(
        "set the library's and the server's session variables",
        By.NOBODY,
        DONE,
        _runs("SET outbox.transaction = 'x'; SET synchronous_commit = off; SET statement_timeout = 1"),
        "none on other sessions",
    ),
    Attack(
        "take the lock of team-b's table source while its relay restarts",
        By.NOBODY,
        DONE,
        _locks_source,
        "team-b's rows wait until an operator ends the session, which the relay names; the statements above keep roles "
        "from it",
    ),
    Attack(
        "take as many locks as the server has memory for",
        By.POSTGRES,
        "53200",
        _takes_all_locks,
        "while it holds them, transactions that take an advisory lock (half mode) fail "
        "with 53200, in all databases of the server, and are rolled back",
    ),
)
