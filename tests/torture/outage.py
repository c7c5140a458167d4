"""`python -m tests.torture.outage`: a database is down for long while many halves wait; another goes on (R26)."""

import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer

from benchmarks.environment import environment
from outbox import Message
from outbox._postgres.callback_table import CallbackTable
from outbox.protocol.names import LATE_HEADER
from outbox.protocol.op import OpKind
from stack import Stack, postgres_alone
from tests.support.bulk import publish_bulk, send_halves
from tests.support.harness import Service, Site, wait_until
from tests.support.reports import CONSOLE, figures, finish
from tests.support.signals import end_in_order

SECONDS = 300.0
HALVES = 100_000
BILLS_BEFORE = 5
"""Transactions of the other database that show how long one takes without any outage."""

KEYS = 1_000
_PATIENCE_SECONDS = 120.0
_SLOWEST_PER_SECOND = 200
"""A machine that decides fewer halves a second is taken for one that decides none."""

_ASKED_PER_SECOND = 3_000
"""So many of those that wait the relay asks about; by default it were 3,300 of 100,000, and then fewer."""

_UNREACHABLE = re.compile(r'"UNREACHABLE": (\d+)')

Say = Callable[[str], None]


@dataclass(slots=True)
class OutageResult:
    """What came of an outage.

    `bills_before`: how long a transaction of the other database took from its half until it was visible, before, s;
    `late`: messages of it that came out of their order: their transactions were parked while decisions came in, for the
    checkpoint's string could not say which of them were settled (R20).
    """

    seconds: float
    halves: int  # halves that waited for it, one for each transaction
    unreachable: int = 0
    bills_before: list[float] = field(default_factory=list)
    bills_meanwhile: list[float] = field(default_factory=list)
    decided_seconds: float = 0.0  # from the start of the database until everything was decided
    late: int = 0
    wrong: list[str] = field(default_factory=list)
    environment: Mapping[str, Any] = field(default_factory=dict)

    def figures(self) -> list[tuple[str, str]]:
        """For people: what, and how much."""
        return [
            ("the database was down", f"{self.seconds:,.0f} s"),
            ("halves that waited for it", f"{self.halves:,}"),
            ("checks without an answer", f"{self.unreachable:,}"),
            ("from its return until all were decided", f"{self.decided_seconds:.1f} s"),
            ("decided", f"{self.halves / self.decided_seconds:,.0f}/s"),
            ("messages delivered late", f"{self.late:,}"),
            ("a transaction of the other database, before", f"{median(self.bills_before):.2f} s"),
            ("the same meanwhile", f"{median(self.bills_meanwhile):.2f} s of {len(self.bills_meanwhile):,}"),
            ("the slowest of these", f"{max(self.bills_meanwhile):.2f} s"),
            *(("wrong", sentence) for sentence in self.wrong),
        ]


class _Outage:
    """Two databases behind one channel, with the same tables: that of `orders` goes away, that of `bills` stays."""

    def __init__(self, stack: Stack, orders: Site, bills: Site, say: Say, halves: int) -> None:
        self._stack, self._orders, self._bills, self._say, self._halves = stack, orders, bills, say, halves
        self._patience = _PATIENCE_SECONDS + halves / _SLOWEST_PER_SECOND
        self._outbox = orders.half_outbox("orders", publish_timeout_seconds=60.0)
        self._bills_outbox = bills.half_outbox("bills")
        self._billed: list[str] = []

    def run(self, seconds: float) -> OutageResult:
        halves, result = self._halves, OutageResult(seconds, self._halves, environment=environment(self._stack))
        checker, relay = self._checker(), self._relay()
        result.bills_before = [self._bill() for _ in range(BILLS_BEFORE)]
        relay.terminate()
        self._say(f"{halves:,} halves")
        # What came last has committed: this is the application's database, and it is at work (R10).
        orphans = send_halves(self._orders, self._outbox, self._messages(halves - halves // 2))
        committed = publish_bulk(self._orders, self._outbox, self._messages(halves // 2), ops=False)
        self._say(f"the database is down for {seconds:,.0f} s")
        self._stack.postgres.kill()
        self._relay()
        end = time.monotonic() + seconds
        while time.monotonic() < end or not _count_unreachable(checker):
            result.bills_meanwhile.append(self._bill())
        result.unreachable = _count_unreachable(checker)
        if parked := self._orders.discards():
            result.wrong.append(
                f"{len(parked):,} records were in the discard topic: the outage was taken for an answer"
            )
        self._say("the database comes back")
        result.decided_seconds = self._come_back()
        result.late = sum(LATE_HEADER in dict(record.headers) for record in self._orders.read("orders"))
        result.wrong += self._wrong(committed, {entry.transaction_id for entry in orphans})
        return result

    def _messages(self, count: int) -> Iterator[Message]:
        topic = self._orders.topic("orders")
        return (Message(topic, str(number), f"key{number % KEYS}") for number in range(count))

    def _relay(self) -> Service:
        interval = str(max(1_000, 1_000 * self._halves // _ASKED_PER_SECOND))
        settings = {
            "OUTBOX_CHECK_INTERVAL_MS": interval,
            "OUTBOX_CHECK_INTERVAL_MAX_MS": interval,
            "OUTBOX_CHECK_MAX": "2",  # an outage that counted would park everything
        }
        return self._orders.relay(extra=settings)

    def _checker(self) -> Service:
        names = {"orders": self._orders.postgres_url, "bills": self._bills.postgres_url}
        config = Path(self._orders.log_folder) / "checker.toml"
        config.write_text(
            "".join(
                f'[databases.{name}]\ndsn = "{url}"\nservices = ["{name}"]\ntable_prefix = "{self._orders.name}"\n'
                for name, url in names.items()
            )
        )
        started = self._orders.checker(extra={"OUTBOX_POSTGRES_URL": None, "OUTBOX_CONFIG": str(config)})
        wait_until(lambda: "Checker started" in started.output(), explain=self._orders.logs)
        return started

    def _bill(self) -> float:
        """A transaction of the other database that the checker must decide; how long it took, in seconds."""
        began = time.monotonic()
        message = Message(self._bills.topic("bills"), str(len(self._billed)), "bill")
        self._billed += publish_bulk(self._bills, self._bills_outbox, [message], ops=False)
        wait_until(lambda: len(self._bills.read("bills")) >= len(self._billed), self._patience, self._orders.logs)
        return time.monotonic() - began

    def _come_back(self) -> float:
        self._stack.postgres.start()
        began = time.monotonic()
        self._orders.wait_settled(self._patience)
        wait_until(lambda: not self._orders.discards(), self._patience, self._orders.logs)
        return time.monotonic() - began

    def _wrong(self, committed: list[str], orphans: set[str]) -> Iterator[str]:
        for name, ids in (("orders", committed), ("bills", self._billed)):
            seen = Counter(record.message_id for record in self._orders.read(name))
            if seen != Counter(ids):
                yield f"{len(ids):,} {name} were committed, {seen.total():,} are visible, {len(seen):,} different ones"
        rows = self._orders.rows()
        if {id_ for id_, state in rows.items() if state == "R"} != orphans:
            yield f"{len(orphans):,} transactions had no row, not all of them, or others too, were fenced"
        unknown = sum(entry.kind is OpKind.UNKNOWN for _, entry in self._orders.ops())
        if unknown:
            yield f"{unknown:,} op markers say UNKNOWN: an outage was taken for an answer"


def outage(seconds: float, halves: int, say: Say) -> OutageResult:
    """Let the database go while `halves` wait, half of them committed, and come back; nothing is left running."""
    with _world() as (stack, orders, bills):
        return _Outage(stack, orders, bills, say, halves).run(seconds)


@contextmanager
def _world() -> Iterator[tuple[Stack, Site, Site]]:
    with (
        Stack() as stack,
        postgres_alone() as other,
        Site(stack.bootstrap_servers, stack.postgres_url) as orders,
        Site(stack.bootstrap_servers, other.url, orders.name) as bills,
    ):
        orders.create("orders", "bills")
        bills.create_tables(CallbackTable)
        yield stack, orders, bills


def _count_unreachable(checker: Service) -> int:
    return sum(map(int, _UNREACHABLE.findall(checker.output())))


def main(
    seconds: Annotated[float, typer.Option(help="How long the database is down.")] = SECONDS,
    halves: Annotated[int, typer.Option(help="Halves that wait for it.")] = HALVES,
    report: Annotated[Path, typer.Option(help="Where the report goes.")] = Path("build/torture/outage.json"),
) -> None:
    """Let a database be down for long while many halves wait; ends with 2 if something is wrong afterwards."""
    end_in_order()
    result = outage(seconds, halves, CONSOLE.print)
    finish(report, asdict(result), figures("outage", result.figures()), wrong=result.wrong)


if __name__ == "__main__":
    typer.run(main)
