"""The ways in which an application may have a connection to Postgres, sync, for table mode."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import django
import pg8000.dbapi
import psycopg
import psycopg2
import psycopg2.extras
from django.conf import settings as django_settings
from django.db.utils import ConnectionHandler
from psycopg.rows import dict_row
from sqlalchemy import NullPool, create_engine, text
from sqlalchemy.orm import Session, scoped_session, sessionmaker


@dataclass(frozen=True)
class Opened:
    """An open connection, before its transaction."""

    target: Any
    execute: Callable[[str], Any]
    commit: Callable[[], Any]
    rollback: Callable[[], Any]


def sqlalchemy_url(url: str, driver: str) -> str:
    return url.replace("postgresql://", f"postgresql+{driver}://", 1)


def pg8000_arguments(url: str) -> dict[str, Any]:
    parts = urlsplit(url)
    login = {"user": parts.username, "password": parts.password}
    return {**login, "host": parts.hostname, "port": parts.port, "database": parts.path[1:]}


def django_connection(url: str) -> Any:
    if not django_settings.configured:
        django_settings.configure()
        django.setup()
    parts = pg8000_arguments(url)
    names = {"user": "USER", "password": "PASSWORD", "host": "HOST", "port": "PORT", "database": "NAME"}
    database = {"ENGINE": "django.db.backends.postgresql", **{names[name]: value for name, value in parts.items()}}
    return ConnectionHandler({"default": database})["default"]


def _of_session(session: Any) -> Opened:
    return Opened(session, lambda statement: session.execute(text(statement)), session.commit, session.rollback)


def _of_connection(connection: Any, target: Any = None) -> Opened:
    def execute(statement: str) -> None:
        with closing(connection.cursor()) as cursor:
            cursor.execute(statement)

    return Opened(target or connection, execute, connection.commit, connection.rollback)


@contextmanager
def session_on(driver: str, url: str) -> Iterator[Opened]:
    engine = create_engine(sqlalchemy_url(url, driver), poolclass=NullPool)
    with Session(engine) as session:
        yield _of_session(session)


@contextmanager
def scoped_session_on(url: str) -> Iterator[Opened]:
    scoped = scoped_session(sessionmaker(create_engine(sqlalchemy_url(url, "psycopg2"), poolclass=NullPool)))
    yield _of_session(scoped)
    scoped.remove()


@contextmanager
def core_on(driver: str, url: str) -> Iterator[Opened]:
    with create_engine(sqlalchemy_url(url, driver), poolclass=NullPool).connect() as connection:
        yield _of_session(connection)


@contextmanager
def bare(connection: Any) -> Iterator[Opened]:
    with closing(connection):
        yield _of_connection(connection)


@contextmanager
def bare_cursor(connection: Any) -> Iterator[Opened]:
    with closing(connection):
        yield _of_connection(connection, connection.cursor())


@contextmanager
def django_on(url: str) -> Iterator[Opened]:
    with closing(django_connection(url)) as connection:
        connection.set_autocommit(False)
        yield _of_connection(connection)


DOORS: dict[str, Callable[[str], Any]] = {
    "session, psycopg": lambda url: session_on("psycopg", url),
    "session, psycopg2": lambda url: session_on("psycopg2", url),
    "session, pg8000": lambda url: session_on("pg8000", url),
    "scoped session": scoped_session_on,
    "Core, psycopg": lambda url: core_on("psycopg", url),
    "Core, psycopg2": lambda url: core_on("psycopg2", url),
    "psycopg": lambda url: bare(psycopg.connect(url, row_factory=dict_row)),
    "psycopg cursor": lambda url: bare_cursor(psycopg.connect(url)),
    "psycopg2": lambda url: bare(psycopg2.connect(url)),
    "psycopg2 dicts": lambda url: bare(psycopg2.connect(url, cursor_factory=psycopg2.extras.RealDictCursor)),
    "psycopg2 cursor": lambda url: bare_cursor(psycopg2.connect(url)),
    "pg8000": lambda url: bare(pg8000.dbapi.connect(**pg8000_arguments(url))),
    "pg8000 cursor": lambda url: bare_cursor(pg8000.dbapi.connect(**pg8000_arguments(url))),
    "Django": django_on,
}
"""By name: opens a connection outside a transaction to the database of a URL."""
