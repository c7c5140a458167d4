"""One attack: what is tried, who refuses it, with which code, and the function that tries it."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, NamedTuple

import psycopg
from confluent_kafka import KafkaException

if TYPE_CHECKING:
    from tests.attacks.teams import Teams

DONE = "done"
SECONDS = 20.0


class By(enum.StrEnum):
    KAFKA = "Kafka"
    POSTGRES = "Postgres"
    RELAY = "the relay"
    CHECKER = "the checker"
    NOBODY = "not refused"


class Attack(NamedTuple):
    what: str
    by: By
    code: str  # with which code, as Kafka, Postgres or the discard topic name it
    run: Callable[[Teams], str]
    effect: str = ""

    @property
    def name(self) -> str:
        return self.what.replace("`", "").replace(" ", "-")


def refusal(tried: Callable[[], object]) -> str:
    """Return the code with which a call is refused, `DONE` if it is not."""
    try:
        tried()
    except KafkaException as error:
        return str(error.args[0].name())
    except psycopg.Error as error:
        return error.sqlstate or type(error).__name__
    return DONE


def answer(futures: Mapping[Any, Future[Any]], check: Callable[[Any], object] = lambda _: None) -> str:
    """Return the codes with which an admin client's requests are refused; `check` raises the error in an answer."""

    def asked(future: Future[Any]) -> Callable[[], object]:
        return lambda: check(future.result(SECONDS))

    return ", ".join(sorted({refusal(asked(future)) for future in futures.values()}))
