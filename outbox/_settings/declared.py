"""Every setting, once: its name, type, unit, default and text. Who reads it has it in its class, or inherits it.

The library, the services, the jobs and the commands read the same file and the same environment, each what is its own.
"""

import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Literal

from outbox._rules.foreign_layout import After, Layout, LayoutName, QualifiedName, check_name, make_layout
from outbox._security.secret_files import read_secret
from outbox._settings.layers import DEFAULT_DATABASE, LayeredSettings
from outbox._settings.properties import usable_properties
from outbox._settings.setting import DATABASE, Secret, SettingsTable, setting
from outbox._settings.table_names import TableNames, channel_names
from outbox.errors import ConfigurationError
from outbox.protocol.names import DEFAULT_CHANNEL, Channel

NO_KAFKA = "Kafka is not named: set OUTBOX_BOOTSTRAP_SERVERS or give --bootstrap-servers"
"""Error if no bootstrap servers are given."""

NO_TABLES = "no message table is named (--table NAME=DSN, or the setting tables)"
"""Why rows of table mode are not looked for."""

DAY_MS = 86_400_000
SOON_MS = 7 * DAY_MS
"""Time for which discarded messages are shown as expiring before they are deleted."""

_PATTERN = re.compile(r"[A-Za-z0-9._-]{1,249}\*?|\*")
_SOURCE = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_FOREIGN = frozenset({"message_table", "after", "mark_column", "columns", "topic", "service", "additional_placement"})
"""Settings of a table that only a foreign table has."""


def matching(pattern: str, words: str) -> Callable[[str], None]:
    """Return a check of a text, with the words of the refusal."""

    def check(text: str) -> None:
        if not re.fullmatch(pattern, text):
            raise ValueError(words)

    return check


class ChannelName(LayeredSettings):
    """Which channel."""

    channel: str = setting(DEFAULT_CHANNEL, "Name of the channel: prefix of its internal topics.")

    def channel_names(self) -> Channel:
        return channel_names(self.channel)


class ChannelSettings(ChannelName):
    """Which channel of which cluster."""

    OPTIONS: ClassVar[tuple[str, ...]] = ("channel", "bootstrap_servers")
    OF_ONE_CHANNEL = True

    bootstrap_servers: str = setting("", "Kafka's bootstrap servers, host:port, separated by commas.")
    kafka: dict[str, str] = setting(
        {},
        "More librdkafka properties, such as TLS and SASL: a table, in the environment a JSON object. "
        "A secret may be in a file (sasl.password_file), oauth_cb is package.module:function.",
    )

    def connection(self) -> dict[str, Any]:
        """Return librdkafka properties for a client that is used now and then: its errors are raised, not logged."""
        return {"log_level": "0", **self.client_properties()}

    def client_properties(self) -> dict[str, Any]:
        """Return librdkafka properties for any client, with the secrets of files as they are at this moment."""
        if not self.bootstrap_servers:
            raise ConfigurationError(NO_KAFKA)
        # A client finds a broker again within about a second; librdkafka's limit is 10 s.
        ours = {} if "reconnect.backoff.ms" in self.kafka else {"reconnect.backoff.max.ms": 1_000}
        return {"bootstrap.servers": self.bootstrap_servers, **ours, **usable_properties(self.kafka)}


class KafkaSettings(ChannelSettings):
    """Which channel of which cluster, for what cannot do without."""

    def check(self) -> None:
        super().check()
        if not self.bootstrap_servers:
            raise ConfigurationError(NO_KAFKA)


class OperatorName(LayeredSettings, reader="operators"):
    """Who decides."""

    operator: str = setting(
        "",
        "Your name; it is recorded beside the client's principal in Kafka. Default: the principal alone.",
        check=matching(r"[^:()\x00-\x1f\x7f]{0,100}", "use at most 100 characters, no colon and no parentheses"),
    )


class ProfileSettings(LayeredSettings):
    """What a site asks of its cluster and its databases."""

    profile: Literal["production", "development"] = setting(
        "production", "development: topics need no second replica, and may lose messages."
    )


class TablePlace(SettingsTable):
    """Where the outbox's tables are in a database."""

    schema: str = setting("public", "Schema of the outbox tables; with a foreign table, of what is beside it.")
    table_prefix: str = setting("outbox", "Prefix of the names of these tables; each foreign table needs its own.")

    def table_names(self) -> TableNames:
        return TableNames(self.schema, self.table_prefix)


class PostgresSettings(TablePlace, LayeredSettings):
    """One database with callback tables."""

    OPTIONS: ClassVar[tuple[str, ...]] = ("postgres_url", "postgres_url_file", "schema", "table_prefix")
    RIVALS = (frozenset({"postgres_url", "postgres_url_file"}),)

    postgres_url: Secret | None = setting(None, "Connection string of the database.")
    postgres_url_file: Path | None = setting(None, "File that contains the connection string; read at each connect.")

    def check(self) -> None:
        """Refuse two databases."""
        super().check()
        if self.postgres_url is not None and self.postgres_url_file is not None:
            raise ValueError("give either postgres_url or postgres_url_file")

    def connection_string(self) -> str:
        """Return the connection string as it is at this moment; empty if no database is named."""
        if self.postgres_url_file is not None:
            return read_secret(f"postgres_url_file {self.postgres_url_file}", self.postgres_url_file)
        return self.postgres_url.text if self.postgres_url else ""


class Database(TablePlace):
    """A database and how to connect to it, as a table of a TOML file names it."""

    dsn: Secret | None = setting(
        None, "Connection string of the service's role. The relay's takes no transaction pooler."
    )
    dsn_file: Path | None = setting(None, "File that contains the connection string; read at each connect.")

    def check(self) -> None:
        super().check()
        if (self.dsn is None) == (self.dsn_file is None):
            raise ValueError("give either dsn or dsn_file")

    def connection_string(self) -> str:
        if self.dsn_file is None:
            return self.dsn.text if self.dsn else ""
        return read_secret(f"dsn_file {self.dsn_file}", self.dsn_file)


Durability = Literal["production", "development"]


class FenceSettings(SettingsTable):
    """How the checker decides in a database; what a table of a database does not have, the top of the file has."""

    synchronous_standby: bool = setting(
        default=False, text="Require that each COMMIT waits for a standby; refuse to start otherwise."
    )
    breaker_limit: int = setting(
        200,
        "Maximum transactions newer than the service's last committed row that are rolled back before the circuit "
        "breaker opens; 0: however many.",
        unit="transactions",
        least=0,
    )


class CheckerDatabase(FenceSettings, Database, reader="a database of the checker"):
    """One database and the services that write to it."""

    services: tuple[str, ...] = setting(("*",), "Services: exact names, or prefixes that end in '*'.")
    durability: Durability | None = setting(None, "Durability that the server must have. Default: the profile.")

    def place(self) -> Hashable:
        """Return what distinguishes its callback tables from those of other databases."""
        return self.dsn, self.dsn_file, self.schema, self.table_prefix


class DatabasesSettings(LayeredSettings):
    """The databases of the checker, by name."""

    databases: dict[str, CheckerDatabase] = setting(
        {}, "Databases of the checker, by name, as tables of the TOML file."
    )

    def exclusive_tables(self) -> Iterable[tuple[str, Hashable]]:
        yield from super().exclusive_tables()
        for name, database in self.all_databases().items():
            yield f"database {name}", database.place()

    def all_databases(self) -> dict[str, CheckerDatabase]:
        return self.databases


class Service(SettingsTable):
    """Who publishes."""

    service: str = setting(
        "",
        "Name of the service; all its processes have the same one. Of a foreign table, by default: the column service, "
        "else the name of the source.",
    )


class KeptSettings(SettingsTable):
    """How long what is done is kept."""

    keep_settled_ms: int = setting(
        DAY_MS,
        "Age at which rows of settled transactions, or the evidence of delivered messages, are deleted.",
        least=0,
    )


class DiscardSettings(SettingsTable):
    """How long what could not be delivered is kept."""

    keep_discarded_ms: int = setting(
        30 * DAY_MS,
        "Age at which discarded messages are deleted, with an alert a week before.",
        least=DAY_MS,
    )


class TableSettings(DiscardSettings, KeptSettings, Service, Database, reader="a table source"):
    """One message table, or foreign table, that the relay delivers from."""

    layout: LayoutName = setting(
        "outbox", "Columns of the table. debezium and mapping are for foreign tables (docs/foreign_tables.md)."
    )
    message_table: str = setting("", "Of a foreign table: its schema and name, with a dot between.")
    after: After = setting("delete", "Of a foreign table: what the relay does with a delivered row.")
    mark_column: str = setting("delivered_at", "With after=mark: the column that the relay sets.", check=check_name)
    columns: dict[str, str] = setting({}, "Of a foreign table: names of its columns, by what they hold.")
    topic: str = setting(
        "", "Of a foreign table: the real topic; ${routedByValue} in it is the value of the column topic."
    )
    additional_placement: str = setting(
        "", "Of a foreign table: columns for headers, as in Debezium's table.fields.additional.placement."
    )

    def check(self) -> None:
        """Refuse settings that do not fit the layout."""
        super().check()
        if not self.is_foreign:
            if given := self.given & _FOREIGN:
                raise ValueError(
                    f"{', '.join(sorted(given))} is for a foreign table. Set layout to debezium or mapping."
                )
            return
        self.table_names().check_foreign(*self.foreign_name())
        self.foreign_layout()
        if self.after == "delete" and "mark_column" in self.given:
            raise ValueError("mark_column is given and rows are deleted. Set after to mark, or remove it.")
        if "keep_settled_ms" in self.given:
            raise ValueError("keep_settled_ms is given, and a foreign table has no evidence. Remove it.")

    @property
    def is_foreign(self) -> bool:
        """Return whether the application made the table."""
        return self.layout != "outbox"

    def foreign_name(self) -> QualifiedName:
        if not self.message_table:
            raise ValueError(f"layout is {self.layout} and message_table is missing. Name the table as schema.table.")
        return QualifiedName.parse(self.message_table)

    def foreign_layout(self) -> Layout:
        return make_layout(self.layout, self.columns, self.topic, self.service, self.additional_placement)

    def message_names(self) -> TableNames:
        """Return where the message table is, for commands that read no foreign table."""
        if self.is_foreign:
            raise ConfigurationError(
                f"{self.message_table} is a foreign table, which this command does not read (docs/foreign_tables.md)."
            )
        return self.table_names()


def _check_sources(tables: dict[str, TableSettings]) -> None:
    for name in tables:
        if not _SOURCE.fullmatch(name):
            raise ValueError(f"{name!r} is not allowed: use at most 63 of a-z, 0-9, '_' and '-', a letter first")
    foreign = Counter((table.dsn, table.dsn_file, table.message_table) for table in tables.values())
    for (_, _, message_table), count in foreign.items():
        if message_table and count > 1:
            raise ValueError(f"{message_table} is the message_table of {count} sources. Give it to one of them.")


class MessageTables(LayeredSettings):
    """The message tables of a channel, by the names of their table sources."""

    tables: dict[str, TableSettings] = setting(
        {},
        "Message tables to deliver from (table mode), by name, as tables of the TOML file. The option takes a "
        "connection string, which others of the machine see, or @ and its file.",
        check=_check_sources,
        option="--table",
        each=DATABASE,
    )

    def exclusive_tables(self) -> Iterable[tuple[str, Hashable]]:
        """See `LayeredSettings`: the message tables and foreign tables."""
        yield from super().exclusive_tables()
        for name, table in self.tables.items():
            place = table.message_table or (table.schema, table.table_names().message)
            yield f"table source {name}", (table.dsn, table.dsn_file, place)


def _check_patterns(allowed: dict[str, tuple[str, ...]] | None) -> None:
    for pattern in chain(allowed or (), *(allowed or {}).values()):
        if not _PATTERN.fullmatch(pattern):
            raise ValueError(f"{pattern!r} is neither a name nor a prefix that ends in '*'")


class AllowedTopics(ProfileSettings):
    """To which real topics services may write."""

    allowed_topics: dict[str, tuple[str, ...]] | None = setting(
        None,
        "Allowed real topics by service: names, or prefixes that end in '*'. Required with profile production.",
        check=_check_patterns,
    )


class CheckAge(LayeredSettings):
    """When a transaction is old enough to be checked, or decided by hand."""

    transaction_timeout_ms: int = setting(6_000, "Age of a half at its first check.", least=1)


class LogSettings(LayeredSettings):
    """How a process that runs for long logs."""

    log_level: Literal["debug", "info", "warning", "error"] = setting(
        "info", "debug: also each transaction, with its offsets.", of_process=True
    )
    log_format: Literal["auto", "json", "text"] = setting(
        "auto", "auto: text on a terminal, else JSON.", of_process=True
    )


class ServiceFields(LogSettings, ProfileSettings, KafkaSettings, reader="both services"):
    """What relay and checker have in common."""

    OPTIONS: ClassVar[tuple[str, ...]] = ("channel", "bootstrap_servers", "profile", "http_port", "log_level")

    contract_interval_ms: int = setting(
        60_000,
        "Interval between two checks of the topics' configuration; they also detect deleted topics.",
        least=1,
    )
    http_port: int = setting(
        0, "Port of /livez, /readyz and /metrics; 0: none.", unit="port", least=0, most=65_535, of_process=True
    )
    http_host: str = setting("127.0.0.1", "Address on which the HTTP port listens.", of_process=True)


class LibrarySettings(Service, TablePlace, ChannelName, reader="the library"):
    """What the library reads of environment and file; `Outbox` takes the same as arguments."""

    OPTIONS: ClassVar[tuple[str, ...]] = ()
    OF_ONE_CHANNEL = False

    reject_transactions: bool = setting(default=False, text="Refuse every publication.")

    def check(self) -> None:
        super().check()
        if not self.service:
            raise ValueError("The service is not set. Set OUTBOX_SERVICE, or `service` in the TOML file.")


class HalfLibrarySettings(LibrarySettings, ChannelSettings, reader="the library in half mode"):
    """What the library reads in half mode; `HalfOutbox` takes the same as arguments."""

    publish_timeout_seconds: float = setting(
        5.0, "Maximum time to send the halves; after it the local transaction is rolled back."
    )
    eager: bool = setting(default=False, text="Send each half at publish(), not at COMMIT.")
    eager_idle_timeout_seconds: float = setting(
        300.0, "Time that a transaction with eager halves may be idle before Postgres ends it."
    )


class RelayFields(DiscardSettings, CheckAge, MessageTables, AllowedTopics, ServiceFields, reader="relay"):
    """What the relay reads."""

    OPTIONS: ClassVar[tuple[str, ...]] = (*ServiceFields.OPTIONS, "tables")

    check_interval_ms: int = setting(30_000, "Interval after the first check; doubles after each one.", least=1)
    check_interval_max_ms: int = setting(600_000, "Maximum interval between checks.", least=1)
    check_max: int = setting(15, "UNKNOWN answers after which a transaction is parked.", unit="answers", least=1)
    undecided_max_age_ms: int = setting(DAY_MS, "Age at which an undecided transaction is parked.", least=1)
    listener_max_age_ms: int = setting(
        7_200_000,
        "As undecided_max_age_ms, for transactions that a listener decides; the lower one applies.",
        least=1,
    )
    service_pending_max: int = setting(
        100_000,
        "Maximum pending halves of a service per partition. Above it, its oldest are parked and further ones deferred.",
        unit="halves",
        least=1,
    )
    service_pending_max_bytes: int = setting(
        268_435_456, "Approximate size of a service's pending halves per partition.", least=1
    )
    pending_max: int = setting(
        200_000,
        "Maximum pending halves of all services per partition. At the limit, reading pauses.",
        unit="halves",
        least=1,
    )
    body_bytes: int = setting(16_777_216, "Approximate size of the bodies kept in memory per partition.", least=0)
    delivery: Literal["exactly_once", "at_least_once"] = setting(
        "exactly_once",
        "at_least_once: half mode without Kafka transactions. Must be the same for all relays of a channel.",
    )
    distrusted_checkpoint: Literal["stop", "deliver_again"] = setting(
        "stop", "What to do with a damaged or foreign checkpoint. deliver_again: redeliver its topic (duplicates)."
    )
    skip_lost: str = setting(
        "",
        "Half partitions, such as 0,3, that continue although halves were deleted from the topic.",
        check=matching(r"(\d+(,\d+)*)?", "write numbers of half partitions, separated by commas, such as 0,3"),
    )
    hanging_transaction: Literal["decide", "abort", "commit"] = setting(
        "decide",
        "How to end a hanging transaction that blocks a checkpoint. decide: as Kafka decided it. "
        "abort or commit: for one start, if Kafka no longer has its outcome.",
    )
    topic_missing_max_age_ms: int = setting(
        60_000,
        "Maximum wait for a real topic that is missing, has too few partitions or is not authorized.",
        least=0,
    )
    batch_messages: int = setting(
        10_000, "Approximate number of messages in one Kafka transaction.", unit="messages", least=1
    )
    group_instance_id: str = setting(
        "", "Static member name (KIP-345), unique per process: a restart moves no partitions.", of_process=True
    )


class CheckedDatabases(DatabasesSettings, PostgresSettings):
    """One database: `postgres_url`. Several: `databases` in the TOML file, by name."""

    def all_databases(self) -> dict[str, CheckerDatabase]:
        """Return all databases by name, with that of `postgres_url`."""
        if self.postgres_url is None and self.postgres_url_file is None:
            return self.databases
        single = {"dsn": self.postgres_url, "dsn_file": self.postgres_url_file}
        place = {"schema": self.schema, "table_prefix": self.table_prefix}
        return {**self.databases, DEFAULT_DATABASE: CheckerDatabase(**single, **place)}


class CheckerFields(CheckedDatabases, KeptSettings, FenceSettings, ServiceFields, reader="checker"):
    """What the checker reads."""

    OPTIONS: ClassVar[tuple[str, ...]] = (*ServiceFields.OPTIONS, "postgres_url_file")

    purge: bool = setting(default=True, text="Whether rows of settled transactions are deleted.")
    upkeep_interval_ms: int = setting(
        600_000, "Pause between two walks over the callback tables, for purge and settlement audit.", least=100
    )
    keep_tombstones_ms: int = setting(30 * DAY_MS, "Age at which rollback rows are deleted.", least=DAY_MS)
    settlement_max_age_ms: int = setting(
        600_000, "Age at which a committed transaction that is not delivered is reported.", least=0
    )

    def check(self) -> None:
        """Refuse a service of two databases."""
        super().check()
        counts = Counter(pattern for database in self.all_databases().values() for pattern in database.services)
        if doubled := sorted(pattern for pattern, count in counts.items() if count > 1):
            raise ValueError(f"services {', '.join(doubled)} are given to more than one database")

    def all_databases(self) -> dict[str, CheckerDatabase]:
        """Return the databases by name, with all defaults filled in."""
        ours = {name: getattr(self, name) for name in ("synchronous_standby", "breaker_limit")}
        return {
            name: database.replaced(
                durability=database.durability or self.profile,
                **{key: value for key, value in ours.items() if key not in database.given},
            )
            for name, database in super().all_databases().items()
        }
