"""What TLS and logins cost: one relay and one application, by the plain listener of a Kafka and by its secured ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

from sqlalchemy.orm import Session

from benchmarks.application import SMALL, THREADS, Application, Rate, Tell
from benchmarks.draining import PARTITIONS, Drain, drain, relay
from benchmarks.figures import Figure
from benchmarks.interleaved import interleave
from benchmarks.relay.table_drain import fill_rows
from examples.flights.certificates import Security
from outbox import HalfOutbox
from outbox._postgres.message_table import MessageTable
from outbox._rules.role_rights import Role
from stack import Stack
from tests.support.secured import Login, SecuredSite

_TOPIC = "real"
_PLAIN = "plaintext"
_BASELINE = "plaintext, without a login"
_LOGINS = {
    Login.PASSWORD: "TLS and a password (SCRAM-SHA-256)",
    Login.CERTIFICATE: "TLS and a certificate",
    Login.TOKEN: "TLS and a token (OAUTHBEARER)",
}
_WARM_UP_SECONDS = 3.0


def measure_secured(rounds: int, messages: int, seconds: float) -> list[Figure]:
    """Measure drains and publications with each kind of login, on servers of their own; Postgres has TLS in all.

    Args:
        messages: How many committed rows wait for a drain.
    """
    with Stack(security=Security) as stack:
        logins: dict[str, Login | None] = {_PLAIN: None, **{login: login for login in _LOGINS}}
        drains = interleave({name: partial(_drain, stack, messages, login) for name, login in logins.items()}, rounds)
        rates = _publish(stack, rounds, seconds)
    figures = []
    for login, words in _LOGINS.items():
        drained = f"drain of {messages:,} rows of a message table, 256 B, {words}"
        published = f"{THREADS} threads, publish() in half mode, 256 B, without a relay, {words}"
        ours, beside = ([run.per_second for run in drains[name]] for name in (login, _PLAIN))
        figures.append(Figure(f"secured_drain_{login}", drained, "messages/s", _BASELINE, ours, beside))
        ours, beside = ([run.per_second for run in rates[name]] for name in (login, _PLAIN))
        figures.append(Figure(f"secured_publish_{login}", published, "transactions/s", _BASELINE, ours, beside))
    return figures


def _drain(stack: Stack, messages: int, login: Login | None) -> Drain:
    with _site(stack, login) as site:
        with site.connect() as connection:
            MessageTable(site.tables).create(connection)
        fill_rows(site, site.topic(_TOPIC), messages)
        user = site.user(Role.RELAY, topic=[site.topic(_TOPIC)], source=[site.name]) if login else ""
        return drain(site, _TOPIC, messages, _relay_as(site, user))


@contextmanager
def _relay_as(site: SecuredSite, user: str) -> Iterator[None]:
    """Run a relay with the login of a user; the benchmark itself stays who it is."""
    with ExitStack() as running:
        with site.acting(user):
            running.enter_context(relay(site, tables=[site.name]))
        yield


def _publish(stack: Stack, rounds: int, seconds: float) -> dict[str, list[Rate]]:
    with _site(stack, None) as site, ExitStack() as made, Application(site, site.topic(_TOPIC)) as application:
        application.use_payload(SMALL)
        tells: dict[str, Tell] = {_PLAIN: application.publish}
        for login in _LOGINS:
            tells[login] = _telling(application, made.enter_context(_outbox(site, login)))
        application.warm_up(list(tells.values()), _WARM_UP_SECONDS, THREADS)
        rates = {name: partial(application.rate_for, tell, THREADS, seconds) for name, tell in tells.items()}
        return interleave(rates, rounds)


def _telling(application: Application, outbox: HalfOutbox) -> Tell:
    def tell(session: Session, key: bytes) -> None:
        outbox.publish(session, application.message(key))

    return tell


def _outbox(site: SecuredSite, login: Login) -> HalfOutbox:
    site.login = login
    with site.acting(site.user(Role.APPLICATION, topic=[site.topic(_TOPIC)])):
        return site.half_outbox()


@contextmanager
def _site(stack: Stack, login: Login | None) -> Iterator[SecuredSite]:
    servers = stack.bootstrap_servers, stack.postgres_url
    with SecuredSite(*servers, stack=stack, login=login or Login.PASSWORD) as site:
        site.create(partitions=PARTITIONS)
        site.create_topics(_TOPIC, partitions=PARTITIONS)
        yield site
