"""Operators: what they see and decide, and how commands end."""

import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NoReturn

import psycopg

from outbox._cli.main import run_and_end
from outbox._kafka.range_reader import Span
from outbox._postgres.source_statements import OWNER, Owner
from outbox._rules.callback_row import Row
from outbox.operator.deciding.discarded_rows import DiscardedRows
from outbox.operator.deciding.resumption import ChannelResumption
from outbox.operator.reading.database_view import DatabaseStatus, DatabaseView
from outbox.operator.reading.table_view import TableView
from outbox.operator.state.discarded import DiscardedTransaction
from outbox.operator.state.repairs import StoredHalf, first_checkpoint
from outbox.operator.state.rulings import SourceState
from outbox.protocol.check import CheckRequest
from outbox.protocol.checkpoint import HalfCheckpoint
from outbox.protocol.identifiers import xid_of
from outbox.protocol.op import OpKind
from tests.mutants.runner.catalogue import fails, mutant
from tests.mutants.runner.mutant import Harm


@mutant(DatabaseView._lock, "R32", Harm.PHANTOM)
@fails("integration/operator/test_resolve.py::test_an_open_local_transaction_is_left_alone_at_the_last_moment_too")
def r32_open_local_transaction(
    self: DatabaseView, connection: psycopg.Connection[Any], requests: Sequence[CheckRequest]
) -> set[str]:
    """An operator decides nothing on an open local transaction. The row of the application meets the operator's COMMIT:
    it rolls back and tries again, and one message is delivered for a change that never happened."""
    return {request.transaction_id for request in requests}


@mutant(DatabaseView.decide, "R32", Harm.LOST)
@fails("integration/operator/test_resolve.py::test_an_application_that_commits_after_a_rollback_is_fenced")
def r32_row_before_the_op_marker(
    self: DatabaseView, requests: Sequence[CheckRequest], kind: OpKind
) -> dict[str, DatabaseStatus]:
    """An operator's decision becomes the row first, and only then an op marker. An op marker alone is a guess: an
    application that is still about to write its row commits it, and its message is lost, as its half is settled."""
    committed = kind is OpKind.COMMIT
    standing = SourceState.COMMITTED if committed else SourceState.ROLLED_BACK
    return {
        one.transaction_id: DatabaseStatus(
            standing,
            self.name,
            Row(committed, one.topic_id, one.partition, one.first_offset, one.last_offset, one.positions),
        )
        for one in requests
    }


@mutant(run_and_end, "R64", Harm.STUCK)
@fails("process/test_process_end.py::test_a_relay_whose_clients_still_wait_ends_with_its_exit_code")
def r64_end_of_the_process(command: Callable[[], None]) -> NoReturn:
    """A command ends its process itself. A client's thread that enters the interpreter while it is taken apart crashes
    it: a relay without a right ends with SIGSEGV, not with 4, and is started again for ever."""
    command()
    sys.exit()


@mutant(TableView.owner, "R67", Harm.STUCK)
@fails("integration/operator/test_owner_lock.py::test_a_role_without_rights_is_no_owner")
def r67_role_without_rights(self: TableView) -> Owner | None:
    """A session whose role may not deliver is not taken for the owner of a table source. Without it, `outbox pending`
    and the doctor call a source served whose lock a stranger holds, and no log line names that session."""
    row = self.connection.execute(OWNER, {"source": self._source}).fetchone()
    return None if row is None else Owner(*row)._replace(may_deliver=True)


_DECIDE = DiscardedRows._decide


@mutant(DiscardedRows._decide, "R74", Harm.DOUBLED)
@fails("integration/library/test_table_mode.py::test_a_row_proves_the_commit_wherever_it_is")
def r74_evidence_of_decisions(self: DiscardedRows, view: TableView, one: DiscardedTransaction, kind: OpKind) -> None:
    """An operator who drops a discarded transaction leaves evidence that it committed. Without it `outcome()` calls the
    transaction rolled back, and the application runs it again: its change is made twice."""
    if kind is OpKind.DELIVER:
        _DECIDE(self, view, one, kind)
    else:
        delete = view.table.compose("DELETE FROM {discarded} WHERE xid = CAST(%s AS xid8)")
        view.connection.execute(delete, (str(xid_of(one.transaction)),))


@mutant(ChannelResumption._refusal, "R84", Harm.LOST)
@fails("integration/relay/test_grown_channel.py::test_what_real_topics_cannot_prove_is_refused")
def r84_beginning_of_the_half_partition(self: ChannelResumption, span: Span, discards: int | None) -> str | None:
    """Only a half partition that begins at offset 0, and never had a discard, is resumed by what real topics show.
    Without it halves that are gone, or that were discarded and dropped by an operator, count as never seen."""
    return None


@mutant(first_checkpoint, "R84", Harm.DOUBLED)
@fails("unit/outbox/test_source_repair.py::test_each_half_of_a_delivered_transaction_is_settled")
@fails(
    "integration/relay/test_grown_channel.py::test_what_was_delivered_before_a_checkpoint_was_lost_is_not_delivered_again"
)
def r84_what_real_topics_show(halves: Iterable[StoredHalf], delivered: Collection[str]) -> HalfCheckpoint:
    """A half partition without a checkpoint goes on without what real topics show of it. Without it `outbox channel
    resume` takes every half for undelivered, and what was delivered before becomes visible twice."""
    return HalfCheckpoint(0, 0)
