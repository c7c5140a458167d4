"""Every error that a user can provoke, provoked: each says what to do.

The tables hold the words of the remedy. A last test finds errors of the library that no line of them provokes.
"""

from __future__ import annotations

import ast
import asyncio
import re
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session

import outbox.errors
from outbox import AsyncHalfOutbox, HalfOutbox, Inbox, Message, Outbox, OutboxError, TableNames, TypedTopic, ddl
from outbox._cli.setting_options import pairs
from outbox._postgres.ddl import identifier
from outbox._rules.role_rights import Role
from outbox._security.own_principal import recorded_name
from outbox._settings.declared import PostgresSettings
from outbox._settings.setting import PAIR, Setting
from outbox.listener import TransactionListener
from outbox.operator.commands.acl import scope_of
from outbox.protocol.names import Channel
from outbox.settings import HalfSettings, Settings
from outbox.testing import InMemoryHalfOutbox
from outbox.transactional_producer import TransactionalProducer
from tests.integration.relay.test_halts import key_of
from tests.support.commands import run_command
from tests.support.harness import Site

ROOT = Path(__file__).parents[3]
NOBODY = "127.0.0.1:9"
KAFKA = {"bootstrap.servers": NOBODY}
ENVIRONMENT = {"OUTBOX_SERVICE": "orders", "OUTBOX_BOOTSTRAP_SERVERS": NOBODY}
WRONG: Any = object()
TYPED: Any = TypedTopic
Offline = Callable[[], object]
OnSite = Callable[["World"], object]


class World:
    def __init__(self, site: Site, outbox: HalfOutbox) -> None:
        self.site = site
        self.outbox = outbox
        self.message = Message(site.topic("orders"), "x")

    def publish(self, message: Message, outbox: HalfOutbox | None = None) -> None:
        with Session(self.site.engine()) as session, session.begin():
            (outbox or self.outbox).publish(session, message)

    def publish_on(self, connection: psycopg.Connection[Any]) -> None:
        with self.outbox.transaction(connection) as transaction:
            transaction.publish(self.message)

    def outbox_of_missing_tables(self) -> HalfOutbox:
        self.site.tables = TableNames("public", f"{self.site.name}_none")
        return self.site.half_outbox()

    def publish_as_stranger(self) -> None:
        role = sql.Identifier(f"{self.site.name}_stranger")
        with self.site.connect() as owner:
            owner.execute(sql.SQL("CREATE ROLE {} LOGIN").format(role))
            try:
                with self.site.connect() as connection:
                    connection.execute(sql.SQL("SET ROLE {}").format(role))
                    self.publish_on(connection)
            finally:
                owner.execute(sql.SQL("DROP ROLE {}").format(role))

    def create_table(self, *words: str) -> None:
        self.run("table", "create", *words)

    def run(self, *words: str, **environ: str) -> None:
        done = run_command(self.site, *words, environ=environ)
        if done.returncode:
            raise OutboxError(done.stderr + done.stdout)


def _settings(**values: Any) -> Callable[[], object]:
    return lambda: HalfOutbox(**{"name": "orders", "kafka": KAFKA, **values})


def _environment(**values: str) -> Callable[[], object]:
    return lambda: HalfSettings.from_env({**ENVIRONMENT, **values})


def _message(**values: Any) -> Callable[[], object]:
    return lambda: Message(**{"topic": "orders", "value": "x", **values})


def _record(*headers: tuple[str, bytes]) -> SimpleNamespace:
    return SimpleNamespace(headers=lambda: list(headers), topic=lambda: "orders", partition=lambda: 0, offset=lambda: 7)


def _in_memory(publish: Callable[[InMemoryHalfOutbox], object]) -> Callable[[], object]:
    def run() -> object:
        with InMemoryHalfOutbox(topics={"orders": 3}) as outbox:
            return publish(outbox)

    return run


def _closed(use: Callable[[HalfOutbox], object]) -> Callable[[], object]:
    def run() -> object:
        outbox = HalfOutbox("orders", KAFKA)
        outbox.close()
        return use(outbox)

    return run


def _rights_scope(*topics: str) -> Callable[[], object]:
    return lambda: scope_of(Channel("outbox"), [Role.APPLICATION], list(topics), None, None)


TABLE_MODE = Outbox("orders")
SOME_ID = "01a20b2d-8a8d-7ae0-8000-00000000037b"


class _Driver:
    """A driver's connection or cursor, outside a transaction; every statement returns one row."""

    def __init__(self, row: tuple[object, ...] = (1, "887", 1), *, autocommit: bool = False) -> None:
        self.autocommit = autocommit
        self._row = row

    def cursor(self) -> _Driver:
        return self

    def execute(self, *_: object) -> None:
        """Run a statement."""

    def fetchall(self) -> list[tuple[object, ...]]:
        return [self._row]

    def commit(self) -> None:
        """Commit."""

    rollback = close = commit


def _table_mode(use: Callable[[Outbox], object]) -> Callable[[], object]:
    return lambda: use(TABLE_MODE)


def _publish_in_sqlite(outbox: Outbox) -> None:
    with Session(create_engine("sqlite://")) as session:
        outbox.publish(session, Message("orders", b"v"))


async def _serialize_later(*_: object) -> bytes:
    return b""


class _Listener(TransactionListener):
    def execute_local_transaction(self, msg: object, arg: object) -> Any:
        del msg, arg
        return "COMMIT"

    def check_local_transaction(self, msg: object) -> Any:
        del msg
        return "COMMIT"


OFFLINE: dict[str, tuple[Offline, str]] = {
    "roles in one text": (lambda: ddl(application_roles="shop"), ", of which each letter would be a role. Give ["),
    "name that Postgres would cut": (
        lambda: identifier("a\0b"),
        "has a NUL, at which Postgres would cut it. Remove it.",
    ),
    "headers of no pairs": (_message(headers=7), "Give a mapping, or a list of pairs of name and value."),
    "right on a topic of no valid name": (_rights_scope("a/b"), "Use the name of a topic, or a prefix"),
    "right without its topic": (_rights_scope(), " needs more names in channel "),
    "large partition": (_message(partition=2**31), "Use a number of a partition of the topic."),
    "own table as a foreign one": (
        lambda: TableNames("public", "shop").check_foreign("public", "shop_message"),
        "or set another table_prefix.",
    ),
    "row through something else": (
        _table_mode(lambda o: o.publish(7, Message("orders", b"v"))),  # type: ignore[arg-type]  # that is tested
        "or a connection to Postgres",
    ),
    "row in another database": (_table_mode(_publish_in_sqlite), "publish on a connection to the database with"),
    "row that would commit alone": (
        _table_mode(lambda o: o.publish(_Driver(autocommit=True), Message("orders", b"v"))),
        "inside the transaction of the business change",
    ),
    "bind_arguments with a connection": (
        _table_mode(lambda o: o.publish(_Driver(), Message("orders", b"v"), bind_arguments={})),
        "Omit them with a connection",
    ),
    "listener in table mode": (
        _table_mode(lambda o: TransactionalProducer(o, _Listener())),  # type: ignore[arg-type]  # that is tested
        "Give a HalfOutbox, or a name and settings",
    ),
    "outcome on a standby": (
        _table_mode(lambda o: o.outcome(SOME_ID, _Driver(("standby",)))),
        "Give outcome() a connection to the primary",
    ),
    "xid of another database": (
        _table_mode(lambda o: o.outcome("01a20b2d-8a8d-7ae0-8000-000000000000", _Driver(("strange",)))),
        "and the database in which it was published",
    ),
    "no servers": (_settings(kafka={}), "Give kafka={'bootstrap.servers': 'host:9092'}"),
    "service name": (_settings(name="a b"), "use 1 to 200 letters, digits"),
    "channel name": (_settings(channel="Ä"), "use "),
    "property that breaks the guarantee": (_settings(kafka={**KAFKA, "acks": "1"}), "cannot be set: "),
    "property of no name": (_settings(kafka={**KAFKA, 1: "1"}), "Use the names of librdkafka"),
    "property that is no function": (_settings(kafka={**KAFKA, "error_cb": "f"}), "Set it in Python"),
    "token provider of no name": (_settings(kafka={**KAFKA, "oauth_cb": "f"}), "Write it as package.module:function."),
    "token provider that is missing": (_settings(kafka={**KAFKA, "oauth_cb": "no_such:f"}), "or correct the name."),
    "token provider that is no function": (_settings(kafka={**KAFKA, "oauth_cb": "json:__name__"}), "Name one."),
    "secret twice": (
        _settings(kafka={**KAFKA, "sasl.password": "x", "sasl.password_file": "/none"}),
        "are both given. Remove one of them.",
    ),
    "secret file that is missing": (_settings(kafka={**KAFKA, "sasl.password_file": "/none"}), " cannot be read: "),
    "secret file of no text": (
        _settings(kafka={**KAFKA, "sasl.password_file": sys.executable}),
        "it is not UTF-8 text",
    ),
    "secret file that is empty": (
        _settings(kafka={**KAFKA, "sasl.password_file": "/dev/null"}),
        "is empty: it must hold the secret",
    ),
    "operator of no known principal": (
        lambda: recorded_name({"security.protocol": "sasl_ssl", "sasl.mechanism": "OAUTHBEARER"}, ""),
        "Give your name as --operator NAME.",
    ),
    "file that is missing": (
        _settings(kafka={**KAFKA, "security.protocol": "ssl", "ssl.ca.location": "/none"}),
        "Correct the path or its permissions",
    ),
    "seconds out of range": (_settings(publish_timeout_seconds=0.0), " must be from "),
    "schema name": (_environment(OUTBOX_SCHEMA="a;b"), "Use at most 63"),
    "table prefix": (_environment(OUTBOX_TABLE_PREFIX="a;b"), "Use at most 50"),
    "no service": (lambda: Settings.from_env({"OUTBOX_BOOTSTRAP_SERVERS": NOBODY}), "Set OUTBOX_SERVICE"),
    "no JSON": (_environment(OUTBOX_KAFKA="{"), "setting kafka (OUTBOX_KAFKA): it is not a JSON object: "),
    "no table": (_environment(OUTBOX_KAFKA="[]"), "Write one in the file, with one name per line"),
    "property of no text": (_environment(OUTBOX_KAFKA='{"a": [1]}'), "Use text, a number, true or false"),
    "no number": (_environment(OUTBOX_PUBLISH_TIMEOUT_SECONDS="soon"), "not a number. Write one, such as 5 or 0.5"),
    "roles of a foreign table": (
        lambda: ddl(application_roles=["shop"], message_table="public.messages"),
        "the application owns it. Omit others",
    ),
    "no path": (lambda: PostgresSettings(postgres_url_file=7), "it is not the path of a file. Write a text"),
    "no truth": (_environment(OUTBOX_EAGER="maybe"), "Use true, false, yes, no, 1 or 0"),
    "no file": (_environment(OUTBOX_CONFIG="/none.toml"), ", cannot be read: "),
    "value of no bytes": (_message(value=1), "Give bytes or text, or use outbox.serialization for objects"),
    "half a surrogate pair": (_message(value="\ud800"), "Give bytes, or correct the text"),
    "header that is no text": (_message(headers={1: "x"}), "It must be text"),
    "reserved header": (_message(headers={"outbox-id": "x"}), "Choose a name without the prefix 'outbox-'"),
    "header with a NUL": (_message(headers={"a\0b": "x"}), "Remove the NUL"),
    "topic name": (_message(topic="no such name!"), "Use 1 to 249 of the characters a-z"),
    "internal topic": (_message(topic="__consumer_offsets"), "Choose a name that does not begin with '__'"),
    "negative partition": (_message(partition=-2), "or -1 for 'by key'"),
    "partition that is no number": (_message(partition="1"), "Give an integer"),
    "timestamp 0": (_message(timestamp=0), "Give ms since 1970, or omit it"),
    "timestamp in ns": (_message(timestamp=10**18), "Give ms since 1970"),
    "immunity": (_message(check_immunity=-1.0), "Use 0 to "),
    "value that no serializer takes": (lambda: TYPED("orders").message(WRONG), "cannot be serialized: "),
    "asynchronous serializer": (
        lambda: TYPED("orders", value=_serialize_later).message("x"),
        "Use a synchronous serializer",
    ),
    "closed": (_closed(lambda outbox: outbox.ping()), "Create a new one"),
    "no session": (
        _in_memory(lambda outbox: outbox.publish(WRONG, Message("orders", "x"))),
        "publish() takes a Session or a Connection of SQLAlchemy",
    ),
    "no connection": (
        _in_memory(lambda outbox: outbox.transaction(WRONG).__enter__()),
        "takes a connection of psycopg or of SQLAlchemy",
    ),
    "no async session": (
        _in_memory(lambda outbox: asyncio.run(AsyncHalfOutbox.over(outbox).publish(WRONG, Message("orders", "x")))),
        "Give an AsyncSession or an AsyncConnection of SQLAlchemy",
    ),
    "no async connection": (
        _in_memory(lambda outbox: AsyncHalfOutbox.over(outbox).transaction(WRONG)),
        "takes an async connection of psycopg or of SQLAlchemy",
    ),
    "async connection that is not open": (
        _in_memory(
            lambda outbox: AsyncHalfOutbox.over(outbox).transaction(
                create_async_engine("postgresql+psycopg://127.0.0.1/x").connect()
            )
        ),
        "Use `async with engine.connect() as connection`",
    ),
    "option without a value": (lambda: pairs(Setting({}, "", option="--kafka", each=PAIR), ["linger.ms"]), ": write "),
    "no listener": (lambda: TransactionalProducer("orders", WRONG, KAFKA), "Give a TransactionListener"),
    "settings twice": (
        lambda: TransactionalProducer(HalfOutbox("orders", KAFKA), _Listener(), KAFKA),
        "Give either an outbox, or a service and settings",
    ),
    "channel twice": (
        lambda: TransactionalProducer(HalfOutbox("orders", KAFKA), _Listener(), channel="other"),
        "Give either an outbox, or a service and settings",
    ),
    "consumer group": (lambda: Inbox(""), "Use 1 to "),
    "no attempt": (lambda: Inbox("g").run(WRONG, WRONG, {}, "orders", attempts=0), "Give 1 or more."),
    "no message id": (lambda: Inbox("g").once(WRONG, ""), "a message id has 1 to "),
    "record of no outbox": (
        lambda: Inbox("g").once(WRONG, _record()),
        "if it did not come through an outbox, give once() an id of your own as text",
    ),
    "record of a malformed id": (
        lambda: Inbox("g").once(WRONG, _record(("outbox-id", b"\xff"))),
        "is not a message id: if it did not come through an outbox, give once() an id of your own as text",
    ),
    "record without headers": (lambda: Inbox("g").once(WRONG, WRONG), "give once() the record as it was consumed"),
    "once of no session": (
        lambda: Inbox("g").once(WRONG, "1"),
        "is no connection that can be used here. Give a session",
    ),
    "outcome with a pool": (_table_mode(lambda o: o.outcome(SOME_ID, WRONG)), "a connection that it hands out"),
    "once_async of no session": (
        lambda: asyncio.run(Inbox("g").once_async(WRONG, "1")),
        "Give an AsyncSession or an AsyncConnection of SQLAlchemy",
    ),
}


def _two_phase_connection(world: World) -> None:
    with world.site.engine().connect() as connection, connection.begin_twophase(), Session(connection) as session:
        world.outbox.publish(session, world.message)


def _ended_in_sql(world: World) -> None:
    with Session(world.site.engine()) as session:
        world.outbox.publish(session, world.message)
        session.execute(text("ROLLBACK"))


def _another_driver(world: World) -> None:
    with Session(create_engine("sqlite://")) as session:
        world.outbox.publish(session, world.message)


def _on_a_closed_connection(world: World) -> None:
    connection = world.site.connect()
    connection.close()
    world.publish_on(connection)


def _without_key(world: World) -> None:
    world.site.create_topic("compacted", 1, {"cleanup.policy": "compact"})
    world.publish(Message(world.site.topic("compacted"), "x"))


def _skip(place: str, offset: str, reason: str = "damaged") -> OnSite:
    return lambda w: w.run("skip", place, "--offset", offset, "--reason", reason)


def _skip_readable(world: World) -> None:
    world.publish(Message(world.message.topic, "x", key_of(0)))  # a half partition follows the key
    world.run("skip", "half/0", "--offset", "0", "--reason", "damaged")


ON_SITE: dict[str, tuple[OnSite, str]] = {
    "unknown topic": (lambda w: w.publish(Message(f"{w.site.name}.typo", "x")), "Create it, or correct its name"),
    "unknown partition": (
        lambda w: w.publish(Message(w.message.topic, "x", partition=7)),
        "Give a lower number, or -1",
    ),
    "too large": (
        lambda w: w.publish(Message(w.message.topic, b"x" * 1_048_500)),
        "Make the message smaller, or raise the topic's limit",
    ),
    "no key": (_without_key, "Give it a key"),
    "unknown property": (
        lambda w: w.publish(w.message, HalfOutbox("g", {**w.site.kafka(), "no.such": "1"}, channel=w.site.name)),
        "correct it, see CONFIGURATION.md of librdkafka",
    ),
    "missing channel": (
        lambda w: w.publish(w.message, HalfOutbox("g", w.site.kafka(), channel=f"{w.site.name}none")),
        "outbox channel create",
    ),
    "missing tables": (
        lambda w: w.publish(w.message, w.outbox_of_missing_tables()),
        ", or correct schema and table prefix",
    ),
    "missing rights": (World.publish_as_stranger, "let the owner of the tables run `outbox table create"),
    "no message": (lambda w: w.publish([w.message]), "Give publish() one Message"),  # type: ignore[arg-type]
    "two-phase connection": (_two_phase_connection, "Use connection.begin()"),
    "ended in SQL": (_ended_in_sql, "Use session.commit(), session.rollback()"),
    "another driver": (_another_driver, "Connect with postgresql+psycopg://"),
    "closed connection": (_on_a_closed_connection, "Open a new one"),
    "command without Kafka": (
        lambda w: w.run("channel", "create", OUTBOX_BOOTSTRAP_SERVERS=""),
        "set OUTBOX_BOOTSTRAP_SERVERS or give --bootstrap-servers",
    ),
    "command without database": (
        lambda w: w.run("table", "create", OUTBOX_POSTGRES_URL=""),
        "set OUTBOX_POSTGRES_URL or give --postgres-url",
    ),
    "command without its database": (
        lambda w: w.run("table", "create", OUTBOX_POSTGRES_URL="postgresql://u@127.0.0.1:9/x"),
        "The database cannot be reached. ",
    ),
    "channel with other numbers": (lambda w: w.run("channel", "create", "--partitions", "9"), "or change the topics"),
    "half mode": (lambda w: w.run("channel", "create", "--tables-only", "--partitions", "9"), "Omit it with --tables"),
    "channel that is missing": (
        lambda w: w.run("pending", OUTBOX_CHANNEL=f"{w.site.name}none"),
        "outbox channel create",
    ),
    "discarded: nothing named": (
        lambda w: w.run("discarded", "drop", "--yes", "--comment", "x"),
        "Either name transactions or give --all.",
    ),
    "discarded: unknown": (
        lambda w: w.run("discarded", "drop", str(uuid.uuid4()), "--yes", "--comment", "x"),
        "is not in the discard topic",
    ),
    "discarded: not asked": (
        lambda w: w.run("discarded", "drop", "--all", "--json", "--comment", "x"),
        "give --yes, too",
    ),
    "resume in two ways": (
        lambda w: w.run("resume", "--yes", "--skip-delivered", "--deliver-again"),
        "give either --skip-delivered or --deliver-again",
    ),
    "resume of rows without a source": (
        lambda w: w.run("resume", "--yes", "--skip-delivered"),
        "are about rows. Give --source, too.",
    ),
    "skip of no partition": (_skip("op/99", "0"), "Give half/N, op/N or verdict/N"),
    "skip without a reason": (_skip("half/0", "0", reason=" "), "characters: give 1 to "),
    "skip of no record": (_skip("op/0", "4711"), "does not exist: the partition has offsets"),
    "skip of a readable record": (_skip_readable, "can be read, so that a relay does not halt there"),
    "inbox with the sink": (lambda w: w.create_table("--inbox", "--sink"), "no roles but --consumer-role"),
    "console without an address": (lambda w: w.run("console", "--listen", "80"), "is no address and port"),
    "foreign table with an application's role": (
        lambda w: w.create_table("--message-table", "public.theirs", "--application-role", "shop"),
        "the application owns it. Omit others.",
    ),
    "principal without a type": (
        lambda w: w.run("acl", "print", "--role", "application", "--principal", "orders", "--topic", "orders"),
        "Write its type and name",
    ),
    "mark without a foreign table": (lambda w: w.create_table("--mark-column", "sent"), "Give both, or neither."),
    "role of no right": (
        lambda w: w.run("table", "create", "--application-role", "public"),
        "name one role, at most 63 bytes",
    ),
}


@pytest.fixture(scope="module")
def world(servers: Any) -> Iterator[World]:
    with Site(servers.bootstrap_servers, servers.postgres_url) as site:
        site.create("orders")
        with site.half_outbox(publish_timeout_seconds=20.0) as outbox:
            yield World(site, outbox)


@pytest.fixture
def tables(world: World) -> Iterator[None]:
    """Give the site its own tables back, which a case may have changed."""
    kept = world.site.tables
    yield
    world.site.tables = kept


@pytest.mark.parametrize("case", OFFLINE)
def test_user_error_without_servers_says_what_to_do(case: str) -> None:
    provoke, remedy = OFFLINE[case]
    with pytest.raises(OutboxError, match=re.escape(remedy)):
        provoke()


@pytest.mark.parametrize("case", ON_SITE)
@pytest.mark.usefixtures("tables")
def test_user_error_on_servers_says_what_to_do(world: World, case: str) -> None:
    provoke, remedy = ON_SITE[case]
    with pytest.raises(OutboxError, match=re.escape(remedy)):
        provoke(world)


FAULTS = (
    "ry again",  # halves that Kafka refused or did not acknowledge; a transaction that the checker was quicker with
    "Try again, or raise queue.buffering.max.messages",
    "Roll the local transaction back and try again",
    "The circuit closes by itself when Kafka answers",
    "run the command again",
    "give them again",
    "tart it, or correct bootstrap.servers, the network or the credentials",
    "Kafka does not answer",  # connection_causes adds what to do
    "\0 failed: \0: \0\0",  # a refused admin request: the last part says what to do
    "Run the transaction again",
    "Check-back will find the row, or run this again",
    "run it again to list what is decided",
    "Begin a new one, on a connection of the child process",
    "un `outbox table create`",
    "Publish before session.commit()",  # needs a listener of the user's own between two of ours
    "stop the relays of the channel",  # tests/integration/library/test_bad_input.py
    "Give it an event as `stop`",  # tests/unit/outbox/test_consumer_loop.py
    "Look at its failures in the log",  # tests/unit/outbox/test_token_provider.py
    "give the role BYPASSRLS",  # tests/integration/library/test_table_mode.py, relay/test_altered_tables.py
    "Let the trigger leave the table's rows alone",  # tests/integration/library/test_table_copy.py
    # tests/integration/library/test_outbox_contract.py
    *("Use another session", "Commit it or roll it back first", "Publish inside the with block"),
    *("key of the transaction's first message smaller", "Publish with a session of one database"),  # the same
    "Publish further ones in another one",  # tests/unit/outbox/test_protocol_draft.py
    "Use AsyncOutbox",  # tests/integration/library/test_table_mode.py
    *("Return a LocalTransactionState", "Release it first"),  # tests/integration/library/test_listener.py
    # tests/integration/library/test_transaction.py
    *("nothing was published. Roll it back", "Leave BEGIN, COMMIT and ROLLBACK", "was ended inside the block"),
    "Use tx.savepoint()",  # tests/integration/library/test_session_more.py
    "Use another isolation level",  # tests/integration/library/test_session.py
    # tests/integration/library/test_session_routing.py
    *("The session's connection is read-only", "The session has no engine for publish() to choose"),
    *("Give outcome() another connection", "Give the id of a receipt"),  # tests/integration/library/test_outcomes.py
    "Grant it.",  # tests/integration/operator/test_secured_site.py, relay/test_gate.py
)
"""Words of remedies of errors that a fault of Kafka, of Postgres or of the process gives, not the user."""

COMMANDS = (
    "or write deliver or drop",  # tests/unit/outbox/test_subcommands.py
    "\0 (schema \0)",  # tests/integration/operator/test_publishing_rights.py
    # tests/unit/outbox/test_channel_settings.py
    *("has the setting", "would be replaced by", "decides for its channel", "Choose one of them with --channel or"),
    *("[channels", "channel \0: \0"),  # the second part says what to do
    # tests/integration/operator: test_resolve.py, test_trace.py, test_foreign_commands.py; unit/checker
    *("give either --commit or --rollback", "give --reason", "--all takes --rollback only"),
    *("name one transaction, or give --all and --service", "not a valid transaction or message id"),
    *("Give --since", "is not a valid time", "not a valid duration"),
    *("decided as a whole", "which this command does not read", "Give --table"),
    *("the sources are those of `tables`", "has an owner", "nothing was changed. \0", "is not a valid partition. \0"),
    *("database \0 does not answer", "database \0: \0"),  # the second part says what to do
    *("Give another --directory", "--service \0 cannot be used"),  # tests/unit/outbox/test_init.py
    *("nothing was changed. Run this again", "which was not changed. Run this again"),
    "GRANT EXECUTE ON FUNCTION",  # tests/integration/library/test_lock.py
    *("let a superuser run GRANT", "must be above 0"),  # tests/unit/outbox: test_table_errors.py, test_tables.py
    # tests/integration/library/test_inbox.py
    "was not stored in table",
    *("the SQL of `outbox table create --inbox", "Give --inbox, too"),
    # tests/integration/operator/test_grants.py
    *("let a role that may run `outbox ", "let the owner of the schema grant it", "create it first, then run"),
    "list the topics of each service",  # tests/integration/relay/test_allow_list.py
    # tests/integration/library/test_consumer_loop.py
    *("Give begin of a sessionmaker", "sets \0 itself. Remove it from the", "of `dead_letters` does not exist"),
    *("of `dead_letters` is read itself", "has rolled its transaction back"),
    "Topic \0 takes \0, not \0",  # tests/unit/outbox/test_serialization.py
    # tests/integration/relay/test_scheduled.py
    *("a half cannot wait for a time", "was published without not_before", "no time with a time zone"),
    *("needs a key", "Choose one of \0.", "Name one transaction, or", "[console]"),  # tests/unit/outbox/test_console.py
    "\0 does not exist: \0",  # provoked above; the second part is what there is
    # tests/integration: relay/test_table_counts.py, relay/test_tables_only.py, library/test_django_app.py
    *("Drop it, or run this with another role", "do not become each other", "or captured_messages()", "was looked at"),
    "Give one of them as `using`",  # library/test_django_app.py
    "was not found; \0 could not be read",  # tests/integration/operator/test_one_server_away.py
    *("Let the owner of the tables run", "Table source \0: \0"),  # the second part of this says what to do
)
"""Words of errors that operators' commands give: the tests of these commands provoke them."""


def _template(node: ast.expr) -> str:
    match node:
        case ast.Constant(value=str(words)):
            return words
        case ast.JoinedStr(values=parts):
            return "".join(_template(part) for part in parts)
        case ast.BinOp(left=left, right=right):
            return _template(left) + _template(right)
    return "\0"


def _templates() -> Iterator[tuple[str, str]]:
    """Find each text with which the library raises one of its errors; NUL stands for what is filled in."""
    errors = {name for name, value in vars(outbox.errors).items() if isinstance(value, type)}
    for path in sorted((ROOT / "outbox").rglob("*.py")):
        if path.is_relative_to(ROOT / "outbox" / "_service") or path.is_relative_to(ROOT / "outbox" / "testing"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(func=ast.Name(id=name), args=[first, *_]) if name in errors:
                    yield f"{path.relative_to(ROOT)}:{node.lineno}", _template(first)


def test_every_error_of_the_library_is_provoked() -> None:
    remedies = [remedy for _, remedy in [*OFFLINE.values(), *ON_SITE.values()]]
    missing = {
        place: template
        for place, template in _templates()
        if template.strip("\0 .;") and not any(words in template for words in [*remedies, *FAULTS, *COMMANDS])
    }
    assert not missing, "\n".join(f"{place} {template!r}" for place, template in missing.items())
