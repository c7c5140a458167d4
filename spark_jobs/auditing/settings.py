"""Settings of `audit`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, Field, SecretStr, model_validator

from outbox._security.secret_files import read_secret
from outbox._service.settings import Flag, Milliseconds, PostgresSettings, SecretFile
from outbox.errors import ConfigurationError
from outbox.settings import TableNames
from spark_jobs.auditing.window import Window, last_window, parse_time
from spark_jobs.runtime.settings import JobSettings, TopicNames, names_in


class AuditedDatabase(BaseModel):
    """One database and the services that write to it, as the checker's settings name them too."""

    dsn: SecretStr | None = Field(None, description="Connection string of a role that may read the callback tables.")
    dsn_file: SecretFile | None = Field(None, description="File that holds it.")
    services: tuple[str, ...] = Field(("*",), description="Services: exact names, or prefixes that end in '*'.")
    table_schema: str = Field("public", alias="schema", description="Schema of the callback tables.")
    table_prefix: str = Field("outbox", description="Prefix of the callback table names.")

    @model_validator(mode="after")
    def _check_dsn(self) -> Self:
        if (self.dsn is None) == (self.dsn_file is None):
            raise ValueError("a database has one of dsn and dsn_file. Give exactly one of them.")
        return self

    def connection_string(self) -> str:
        """Return the connection string."""
        if self.dsn is not None:
            return self.dsn.get_secret_value()
        return read_secret(f"dsn_file {self.dsn_file}", Path(str(self.dsn_file)))

    def tables(self) -> TableNames:
        """Where the callback tables are."""
        return TableNames(self.table_schema, self.table_prefix)


class AuditSettings(PostgresSettings, JobSettings):
    """Settings of `audit`.

    One database: `OUTBOX_POSTGRES_URL`. Several: `databases` in the TOML file, by name, which the checker reads too.
    """

    MOST_USED = (
        "output",
        "window_start",
        "window_end",
        "last",
        "grace_ms",
        "bootstrap_servers",
        "channel",
        "postgres_url",
        "topics",
        "spans",
    )

    job_id: str = Field(
        "audit",
        pattern=r"^[a-z0-9][a-z0-9_-]{0,99}$",
        description="Id of the job: in the names of its application and Kafka groups.",
    )
    output: str = Field(description="Folder of the reports; each window has its own in there.")
    window_start: Annotated[str, Flag("--from")] = Field(
        "", description="Start of the window, by append time of halves: ISO 8601, or ms since 1970."
    )
    window_end: Annotated[str, Flag("--to")] = Field(
        "", description="End of the window (exclusive), by append time of halves."
    )
    last: Literal["hour", "day"] = Field(
        "hour", description="Without a start: the last hour or day that is closed, UTC."
    )
    grace_ms: Milliseconds = Field(
        600_000, ge=0, description="How long a message may take to be decided and delivered."
    )
    spans: str = Field("", description="File spans.json of an earlier audit, to repeat it with the same offsets.")
    topics: TopicNames = Field("", description="Real topics to search besides those that the halves name.")
    open_transactions_ms: Milliseconds = Field(
        30_000, ge=0, description="How long to wait for Kafka transactions that are open at the end of a topic."
    )
    databases: dict[str, AuditedDatabase] = Field(
        default_factory=dict, description="Several, by name, as tables of the TOML file."
    )

    @model_validator(mode="after")
    def _check_window(self) -> Self:
        if bool(self.window_start) != bool(self.window_end):
            raise ValueError("one end of the window is missing. Give both --from and --to, or neither.")
        if self.spans and self.window_start:
            raise ValueError("--spans already names the window. Leave --from and --to out.")
        return self

    def topic_names(self) -> tuple[str, ...]:
        """Real topics to search besides those that the halves name."""
        return names_in(self.topics)

    def window(self, now: int) -> Window:
        """Return the window.

        Args:
            now: ms since 1970.
        """
        if not self.window_start:
            return last_window(self.last, now, self.grace_ms)
        return Window(parse_time(self.window_start), parse_time(self.window_end), self.grace_ms)

    def all_databases(self) -> dict[str, AuditedDatabase]:
        """Return the databases by name."""
        found = dict(self.databases)
        if self.postgres_url is not None or self.postgres_url_file is not None:
            single = {
                "dsn": self.postgres_url,
                "dsn_file": self.postgres_url_file,
                "schema": self.table_schema,
                "table_prefix": self.table_prefix,
            }
            found["default"] = AuditedDatabase.model_validate(single)
        if not found:
            raise ConfigurationError(
                "No database is configured. Give OUTBOX_POSTGRES_URL or OUTBOX_POSTGRES_URL_FILE, "
                "or databases in the file of OUTBOX_CONFIG."
            )
        return found
