"""The seal of auto mode: halves while Kafka answers, otherwise rows in the same local transaction (R58).

A transaction goes one way. The callback row is inserted only after all halves were acknowledged, and it is what names
them. So halves that were sent before a transaction fell back are named by no row, and check-back strikes them; no
COMMIT marker is ever sent for them. A rollback marker follows if Kafka acknowledges them later, which saves the check.

The order of a lane across both ways rests on two rules. A transaction goes to the table while a row of its lane is
there (R56). The relay delivers rows of a lane after all earlier halves of it (R57).
"""

from __future__ import annotations

import logging
import os
import time

from outbox._auto.auto_draft import AutoDraft
from outbox._auto.auto_sender import AutoSender
from outbox._auto.fallback_rows import FallbackRows, Look, require_mark
from outbox._failpoints import failpoint
from outbox._postgres.callback_table import CallbackTable
from outbox._publish.local_connection import LocalConnection
from outbox._publish.seal import Seal, Sealer
from outbox._publish.validation import refuse_own, require_accepted
from outbox._publish.waiting import Budget
from outbox.errors import PublishFailed
from outbox.message import Message
from outbox.protocol.identifiers import auto_transaction_id
from outbox.protocol.partitioner import lane_number
from outbox.recorder import FallbackReason
from outbox.settings import Settings

log = logging.getLogger("outbox")


class AutoSealer:
    """Creates the seals of one outbox in auto mode.

    Args:
        settings: Settings of the outbox.
        sender: Its connection to Kafka.
        table: Its callback table.
    """

    def __init__(self, settings: Settings, sender: AutoSender, table: CallbackTable) -> None:
        self._sealer = Sealer(settings, sender, table)
        self._sender = sender
        self._rows = FallbackRows(settings)

    def connection(self, driver: object) -> LocalConnection:
        """Wrap a connection of psycopg.

        Raises:
            UsageError: It is a connection of another driver.
        """
        return self._sealer.connection(driver)

    def start(self, connection: LocalConnection) -> AutoSeal:
        """Create a seal in the connection's transaction, with a new id for its halves."""
        id_ = auto_transaction_id(time.time_ns() // 1_000_000, os.urandom(10))
        draft = AutoDraft(id_)
        return AutoSeal(self._sealer, connection, draft, self._sender, self._rows)


class AutoSeal(Seal):
    """An outbox's participant in one local transaction, in auto mode.

    Args:
        sealer: Has what the seal of half mode needs.
        connection: Connection on which COMMIT will run.
        draft: The messages.
        sender: The connection to Kafka.
        rows: The statements on the message table.
    """

    def __init__(
        self, sealer: Sealer, connection: LocalConnection, draft: AutoDraft, sender: AutoSender, rows: FallbackRows
    ) -> None:
        super().__init__(sealer, connection, draft)
        self._draft = draft
        self._auto_sender = sender
        self._rows = rows

    def _refuse(self, message: Message, budget: Budget) -> None:
        """Refuse a message that could not be delivered; while Kafka does not answer, the relay's pre-flight decides."""
        require_accepted(self._sender)
        refuse_own(message, self._sender.channel_names)
        if self._auto_sender.answers:
            try:
                super()._refuse(message, budget)
            except PublishFailed as error:
                log.debug("Message not checked, Kafka does not answer: %s", error)

    def seal(self, *, marked: bool = False) -> None:
        """Send the halves and insert the callback row; if that is not possible now, insert the messages as rows.

        Args:
            marked: Whether `begin()` began the transaction, so that its mark must still be set.

        Raises:
            TransactionFenced: The checker decided ROLLBACK before.
            CallbackTableError: Tables are missing.
            ChannelError: The channel's topics are missing or wrong.
            UsageError: The transaction failed, or was ended.
            psycopg.Error: Postgres refuses a statement.
        """
        self._require_own_process()
        reason = self._half_first(marked=marked)
        if reason is None:
            self._draft.assign(self._id)
        else:
            self._fall_back(reason, marked=marked)

    def _half_first(self, *, marked: bool) -> FallbackReason | None:
        """Send the halves and insert the callback row; return why that was not possible, None if it was."""
        with self._auto_sender.attempt() as attempt:
            if not attempt.is_allowed:
                return FallbackReason.CIRCUIT_OPEN
            if (reason := why_behind_rows(self._look())) is not None:
                return reason
            try:
                super().seal(marked=marked)
            except PublishFailed as error:
                log.debug("Transaction %s falls back to rows: %s", self._id, error)
                return FallbackReason.NO_ANSWER
            attempt.succeeded()
        return None

    def _lane(self) -> int | None:
        key = self.draft.ordering_key
        return None if key is None else lane_number(self._settings.group, key)

    def _look(self) -> Look | None:
        """Look for earlier rows; return None for a transaction without an ordering key, which has no order."""
        lane = self._lane()
        return None if lane is None else self._rows.look(self._connection, lane)

    def withdraw_halves(self) -> None:
        """Give up the halves that were sent: no row will name them, whatever becomes of the local transaction."""
        self._withdraw()

    def _fall_back(self, reason: FallbackReason, *, marked: bool) -> None:
        self.withdraw_halves()
        messages = self._draft.numbered()
        inserted = self._rows.insert(self._connection, [message for _, message in messages], self._lane())
        if marked:
            require_mark(inserted.mark, self._id)
        self._connection.require_healthy()
        numbers = (number for number, _ in messages)
        self._draft.assign(inserted.transaction_id, dict(zip(numbers, inserted.ids, strict=True)))
        self.writes_rows = True
        self._recorder.messages_fell_back(self._settings.group, len(messages), reason)
        failpoint("outbox.fell_back")

    def has_row(self, *, presumed: bool) -> bool | None:
        """Return whether the transaction committed, when SQLAlchemy did not report that COMMIT returned.

        Args:
            presumed: Ignored, because Postgres has the answer.
        """
        if not self.writes_rows:
            return super().has_row(presumed=presumed)
        return self._rows.committed(self._connection, self._draft.transaction_id)


def why_behind_rows(look: Look | None) -> FallbackReason | None:
    """Return why a transaction goes to the table although Kafka answers (R56); None if it goes to Kafka.

    Args:
        look: What it found about earlier rows of its lane; None if it has no lane.
    """
    if look is None:
        return None
    if look.rows_wait:
        return FallbackReason.EARLIER_ROWS
    return FallbackReason.ISOLATION if look.in_doubt else None
