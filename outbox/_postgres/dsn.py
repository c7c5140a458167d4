"""Postgres connection strings: accept the usual spellings, and keep the password out of every message."""

import os
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

import psycopg
from psycopg import conninfo
from psycopg.pq import Conninfo, PGconn, Ping

from outbox._postgres.limited_connection import LimitedConnection
from outbox._security.encryption import is_loopback
from outbox.errors import ConfigurationError

_SQLALCHEMY = re.compile(r"(postgres(?:ql)?)(?:\+\w+)?(://.*)", re.IGNORECASE | re.DOTALL)

PING_SECONDS = 3

_MALFORMED = (
    "The Postgres connection string is malformed; it is not shown because it may hold a password. "
    "Write postgresql://user:password@host:5432/database without quotes, percent-encode special characters of the "
    "password (@ as %40, / as %2F), and use libpq's parameters (sslmode=require, not ssl=require)."
)
_AMBIGUOUS = (
    "The cause is not shown because it may hold a part of the password. "
    "Percent-encode the special characters of the password in the connection string (@ as %40, / as %2F)."
)


def libpq_dsn(text: str) -> str:
    """Return a connection string as libpq takes it.

    White space around it and SQLAlchemy's driver (`postgresql+psycopg://…`) are removed, and the scheme becomes lower
    case. Everything else is libpq's own syntax: a URL, or `name=value …`.

    Raises:
        ConfigurationError: libpq cannot parse it. The message holds no part of it.
    """
    dsn = text.strip()
    url = _SQLALCHEMY.fullmatch(dsn)
    if url:
        dsn = url[1].lower() + url[2]
    _parsed(dsn)
    return dsn


SESSION_SETTINGS: Mapping[str, str] = {
    "TimeZone": "UTC",
    "DateStyle": "ISO",
    "IntervalStyle": "postgres",
    "bytea_output": "hex",
    "extra_float_digits": "1",
    "standard_conforming_strings": "on",
    "array_nulls": "on",
    "lc_monetary": "C",
    "xmlbinary": "base64",
    "quote_all_identifiers": "off",
    "row_security": "off",
}
"""What decides the text of a value, and which rows are seen, in each session of relay, checker and operators (R77).

With `row_security` off, a statement fails from which a policy would hide rows.
"""

_OVERRIDING = ("PGTZ", "PGDATESTYLE")
"""Variables that libpq sends as settings of their own, which come after those in `options`."""


def connect_dsn(text: str, *, options: str = "", statement_seconds: int = 0, **parameters: Any) -> LimitedConnection:
    """Connect to a database by a connection string that a user wrote.

    No setting of a role, a database, a server or an environment decides bytes: `SESSION_SETTINGS` come last.

    Args:
        options: Startup options of the session; they come after those of the string.
        statement_seconds: How long the server lets a statement take; without an answer after some seconds more, the
            connection is given up (R79). 0: without limit.
        parameters: Further arguments of `psycopg.connect`.
    """
    dsn = libpq_dsn(text)
    limit = f"-c statement_timeout={statement_seconds}s" if statement_seconds else ""
    given = f"{_parsed(dsn).get('options', '')} {limit} {options}"
    made = LimitedConnection.connect(dsn, **(parameters | _session_parameters(given)))
    if statement_seconds:
        made.silent_seconds = statement_seconds + ANSWER_SECONDS
    return made


def _session_parameters(options: str) -> dict[str, str]:
    for name in _OVERRIDING:
        os.environ.pop(name, None)
    ours = (f"-c {name}={value}" for name, value in SESSION_SETTINGS.items())
    return {"options": " ".join([options, *ours]), "client_encoding": "UTF8"}


def database_name(text: str) -> str:
    given = _parsed(libpq_dsn(text))
    return str(given.get("dbname") or given.get("user") or "")


def unverified_hosts(text: str) -> list[str]:
    """Return the hosts on other machines to which a connection string connects without `sslmode=verify-full`.

    Parameters that it does not contain are taken from libpq's variables, such as PGSSLMODE.
    """
    if not _is_unambiguous(libpq_dsn(text)):
        raise ConfigurationError(_AMBIGUOUS)
    defaults = {option.keyword.decode(): (option.val or b"").decode() for option in Conninfo.get_defaults()}
    given = {**defaults, **_parsed(libpq_dsn(text))}
    if given.get("sslmode") == "verify-full":
        return []
    hosts = str(given.get("host") or given.get("hostaddr") or "").split(",")
    return [host for host in hosts if host and not host.startswith(("/", "@")) and not is_loopback(host)]


def connection_problem(error: psycopg.Error, text: str) -> str:
    """Return why a connection failed, with host and port, and without any part of the password.

    A password with special characters that are not percent-encoded is split by the parser, and its parts come back in
    the error as a host, a port or a database. Such a cause is not shown.
    """
    if not _is_unambiguous(libpq_dsn(text)):
        return _AMBIGUOUS
    return query_problem(error)


def connection_remedy(text: str, where: str, problem: str = "") -> str:
    """Return what helps where a connection failed: to start the server is no remedy if it answers."""
    if "read-only" in problem:
        return f"set default_transaction_read_only = off for database and role, or name the primary in {where}"
    found = PGconn.ping(conninfo.make_conninfo(libpq_dsn(text), connect_timeout=PING_SECONDS).encode())
    if found == Ping.OK:
        return f"the server answers: correct user, password, database or pg_hba.conf, or name the primary in {where}"
    if found == Ping.REJECT:
        return "wait until Postgres has started"
    return f"start Postgres, or correct host and port in {where}"


def query_problem(error: psycopg.Error) -> str:
    """Return all lines of a Postgres error as one, but for details, which quote rows."""
    lines = [line.strip() for line in str(error).strip().splitlines()]
    return "; ".join(line for line in lines if line and not line.startswith("DETAIL:")) or type(error).__name__


def _parsed(dsn: str) -> dict[str, Any]:
    try:
        return dict(conninfo.conninfo_to_dict(dsn))
    except psycopg.ProgrammingError:
        raise ConfigurationError(_MALFORMED) from None


def _is_unambiguous(dsn: str) -> bool:
    """Return whether the parser took for the password its placeholder."""
    rest = dsn.partition("://")[2]
    if not rest:
        return True  # `name=value …`: a password that is not quoted would not have been parsed
    written = rest.rpartition("@")[0].partition(":")[2]
    return unquote(written) == str(_parsed(dsn).get("password") or "")


ANSWER_SECONDS = 10
KEEPALIVE_SECONDS = 10
CHECK_SECONDS = 5


def server_limits(idle_seconds: int) -> str:
    """Return startup options of a connection (`options=`).

    The server ends the session if its client is idle in a transaction for too long (a stopped or frozen process), if
    the client does not answer TCP keepalives (a lost host or network), and if it closed the connection while a
    statement runs (a killed process).

    They are startup options, not SET statements: with a pooler in transaction mode, SET would change the sessions of
    other clients.

    Args:
        idle_seconds: How long the client may be idle in a transaction.
    """
    limits = {
        "idle_in_transaction_session_timeout": f"{idle_seconds}s",
        "client_connection_check_interval": f"{CHECK_SECONDS}s",
        "tcp_keepalives_idle": f"{KEEPALIVE_SECONDS}s",
        "tcp_keepalives_interval": "5s",
        "tcp_keepalives_count": "3",
        "tcp_user_timeout": f"{KEEPALIVE_SECONDS}s",
        "row_security": "off",
    }
    return " ".join(f"-c {name}={value}" for name, value in limits.items())
