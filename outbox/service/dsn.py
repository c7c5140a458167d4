"""Connection strings in errors: what may be shown of an error that Postgres' client library raised for one."""

from __future__ import annotations

import re

import psycopg

_SERVER_SAID = "connection to server at"
_UNMISTAKABLE = re.compile(r"(?:[A-Za-z0-9._~!$&()*+,;=-]|%[0-9A-Fa-f]{2})*")
"""A password that no parser can take for something else."""


def connection_problem(error: psycopg.Error, dsn: str) -> str:
    """Why a connection failed, in one line in which nothing of the password stands.

    A password with special characters that are not percent-encoded is taken apart by the parser, and its parts come
    back in the error: as a host, a port or a malformed token.

    Args:
        error: What was raised.
        dsn: The connection string, `postgresql://…` or `name=value …`.
    """
    lines = str(error).strip().splitlines() or [type(error).__name__]
    if _SERVER_SAID in lines[-1] or _UNMISTAKABLE.fullmatch(_password(dsn)):
        return lines[-1]
    return (
        "the reason is not shown, because it may hold a part of the password: "
        "percent-encode the special characters of the password in the connection string"
    )


def _password(dsn: str) -> str:
    """The password as it was written, with everything that might belong to it."""
    scheme, separator, rest = dsn.partition("://")
    if separator and scheme in {"postgresql", "postgres"}:
        return rest.rpartition("@")[0].partition(":")[2]
    match = re.search(r"password\s*=\s*(.*?)(?:\s+\w+\s*=|$)", dsn)
    return match[1] if match else ""
