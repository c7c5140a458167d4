"""Kill an application's function at a named step of its local transaction, and assert the outcome."""

import asyncio
import inspect
import multiprocessing
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal
from unittest import mock

from outbox._failpoints import VARIABLE
from outbox._postgres.callback_table import CallbackTable
from outbox.errors import UsageError
from outbox.protocol.half import HalfControl, parse_half
from outbox.protocol.identifiers import message_id
from outbox.protocol.positions import Positions
from outbox.testing.reader import VisibleRecord, read_committed
from outbox.testing.site import WAIT_SECONDS, Site

Step = Literal["after half", "before commit", "after commit", "before op"]

_FAILPOINTS: dict[Step, str] = {
    "after half": "outbox.half_acked",
    "before commit": "outbox.sealed",
    "after commit": "outbox.committed",
    "before op": "outbox.op",
}
_STATES = {
    None: "the callback table has no row",
    "C": "the callback row is committed",
    "R": "the callback row is rolled back",
}


@dataclass(frozen=True, slots=True)
class Killed:
    """A function that was killed, and its transaction.

    Args:
        halves: Halves of this transaction in the half topic.
    """

    site: Site
    at: Step
    transaction_id: str
    halves: tuple[HalfControl, ...]

    @property
    def row(self) -> str | None:
        """Present state of the callback row: `C` committed, `R` rolled back by the checker, None: no row."""
        return self.site.rows().get(self.transaction_id)

    def visible(self) -> list[VisibleRecord]:
        """Return the visible messages of the transaction, by topic, partition and offset."""
        topics = sorted({half.topic for half in self.halves})
        return [record for record in self.site.read(*topics) if record.message_id.startswith(f"{self.transaction_id}/")]

    def assert_rolled_back(self, timeout: float = WAIT_SECONDS) -> None:
        """Assert that the checker rolls the transaction back, and that no message of it becomes visible.

        Args:
            timeout: Maximum seconds to wait.

        Raises:
            AssertionError: It committed, or was not decided in time.
        """
        self._wait_for_row(timeout)
        self._require("rolled back", fulfilled=self.row == "R")
        self.site.wait_settled(timeout)
        self._require("rolled back", fulfilled=self.visible() == [])

    def assert_delivered(self, timeout: float = WAIT_SECONDS) -> list[VisibleRecord]:
        """Assert that check-back delivers each message of the transaction once.

        Args:
            timeout: Maximum seconds to wait.

        Raises:
            AssertionError: It did not commit, or was not delivered in time.
        """
        self._wait_for_row(timeout)
        self._require("delivered", fulfilled=self.row == "C")
        self.site.wait_settled(timeout)
        visible = self.visible()
        self._require("delivered", fulfilled=sorted(record.message_id for record in visible) == self._expected())
        return visible

    def _wait_for_row(self, timeout: float) -> None:
        """Wait until the transaction is decided: committed by the application, or fenced by the checker."""
        self.site.wait_for(lambda: self.row is not None, f"transaction {self.transaction_id} to be decided", timeout)

    def _expected(self) -> list[str]:
        """Return the ids of the messages in the row, sorted."""
        query = CallbackTable(self.site.tables).compose("SELECT positions FROM {transaction} WHERE transaction_id = %s")
        with self.site.connect() as connection:
            row = connection.execute(query, (self.transaction_id,)).fetchone()
        positions = Positions.parse(row[0]) if row is not None else Positions(())
        return sorted(message_id(self.transaction_id, position) for position in positions)

    def _require(self, expected: str, *, fulfilled: bool) -> None:
        if not fulfilled:
            raise AssertionError(
                f"The transaction killed {self.at!r} was not {expected}: {_STATES[self.row]}, and "
                f"{len(self.visible())} of {len(self.halves)} message(s) are visible.\n{self.site.logs()}"
            )


class KillPoint:
    """Runs a function in a process that is killed with SIGKILL at a named step.

    Args:
        site: Site with relay and checker.
    """

    def __init__(self, site: Site) -> None:
        self._site = site

    def __call__(
        self, function: Callable[..., object], *args: Any, at: Step, time: int = 1, timeout: float = WAIT_SECONDS
    ) -> Killed:
        """Run a function in a new process, and kill it at a step.

        The process has the site's environment, for `Outbox.from_env()` and OUTBOX_POSTGRES_URL. Steps:
        `after half`: all halves are acknowledged, the callback row is not inserted; `before commit`: the row is
        inserted; `after commit`: COMMIT succeeded; `before op`: right before the op marker is sent.

        Args:
            function: Function at the top level of an importable module; it may be `async def`. It publishes in a
                local transaction and commits.
            args: Arguments of the function; they are pickled.
            time: Kill it the n-th time that it reaches the step, from 1.
            timeout: Maximum seconds for the function.

        Raises:
            UsageError: There is no such step, or the function cannot be imported.
            AssertionError: The function ended, or timed out, before it reached the step.

        Example:
            killed = outbox_kill_point(place_order, site.topic("orders"), 42, at="after commit")
            killed.assert_delivered()
        """
        if at not in _FAILPOINTS:
            raise UsageError(f"Step {at!r} does not exist. Use one of {', '.join(_FAILPOINTS)}.")
        name = f"{function.__module__}.{function.__qualname__}"
        if "<" in name:
            raise UsageError(f"{name} cannot be imported. Define it at the top level of a module.")
        before = set(self._halves())
        self._run(name, function, args, f"{_FAILPOINTS[at]}:{time}", timeout)
        return self._killed(at, set(self._halves()) - before)

    def _run(
        self, name: str, function: Callable[..., object], args: tuple[Any, ...], failpoint: str, timeout: float
    ) -> None:
        process = multiprocessing.get_context("spawn").Process(target=_call, args=(function, args), name=name)
        with mock.patch.dict(os.environ, {**self._site.environment(), VARIABLE: failpoint}):
            process.start()
        process.join(timeout)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise AssertionError(f"{name} did not reach {failpoint} within {timeout} s.")
        if process.exitcode != -signal.SIGKILL:
            raise AssertionError(
                f"{name} ended with exit code {process.exitcode} before it reached {failpoint}. "
                "Check that it publishes in a transaction that commits; its output is in the captured output."
            )

    def _halves(self) -> list[VisibleRecord]:
        return read_committed(self._site.kafka, [self._site.channel.half_topic])

    def _killed(self, at: Step, halves: set[VisibleRecord]) -> Killed:
        """Return the transaction with the newest halves."""
        found = [(half.timestamp, parse_half(half.headers)) for half in halves]
        _, newest = max(found, key=lambda half: (half[0], half[1].transaction_id))
        own = sorted((half for _, half in found if half.transaction_id == newest.transaction_id), key=_position)
        return Killed(self._site, at, newest.transaction_id, tuple(own))


def _call(function: Callable[..., object], args: tuple[Any, ...]) -> None:
    """Call the function, in the new process."""
    result = function(*args)
    if inspect.iscoroutine(result):
        asyncio.run(result)


def _position(half: HalfControl) -> int:
    return half.position
