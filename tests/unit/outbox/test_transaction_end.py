"""What a process knows of the end of a local transaction only becomes more definite."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from outbox._receipts import LocalState, TransactionEnd

WORDS: list[tuple[Callable[[TransactionEnd], None], LocalState]] = [
    (TransactionEnd.committed, LocalState.COMMITTED),
    (lambda end: end.rolled_back("why"), LocalState.ROLLED_BACK),
    (TransactionEnd.unknown, LocalState.UNKNOWN),
]


def test_a_transaction_is_open_at_first() -> None:
    end = TransactionEnd()
    assert end.state is LocalState.OPEN
    assert end.why_never(0) is None


@pytest.mark.parametrize(("first", "state"), WORDS)
@pytest.mark.parametrize(("second", "later"), WORDS)
def test_a_definite_word_stays_and_an_unknown_end_may_become_definite(
    first: Callable[[TransactionEnd], None],
    state: LocalState,
    second: Callable[[TransactionEnd], None],
    later: LocalState,
) -> None:
    end = TransactionEnd()
    first(end)
    assert end.state is state
    second(end)
    assert end.state is (later if state is LocalState.UNKNOWN else state)


def test_the_reason_of_the_first_rollback_is_told_for_every_message() -> None:
    end = TransactionEnd()
    end.rolled_back("the seal failed")
    end.rolled_back("the session was rolled back")
    assert end.why_never(0) == end.why_never(7) == "the seal failed"


def test_a_struck_message_is_never_delivered_whatever_becomes_of_the_others() -> None:
    end = TransactionEnd()
    end.strike(iter([1, 2]))
    end.strike([4])
    end.committed()
    assert [position for position in range(6) if end.why_never(position)] == [1, 2, 4]
    assert "SAVEPOINT" in (end.why_never(1) or "")


def test_of_many_threads_one_has_the_first_word() -> None:
    for _ in range(200):
        end = TransactionEnd()
        threads = [threading.Thread(target=word) for word in (end.committed, lambda end=end: end.rolled_back("why"))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert end.state in {LocalState.COMMITTED, LocalState.ROLLED_BACK}
