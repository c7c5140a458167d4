"""When a transaction is overdue, by the broker's clock, and when it is asked about again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbox._rules.broker_clock import BrokerClock
from outbox.protocol.half import Truth
from relay.half.state.check_schedule import CheckPolicy, Overdue
from relay.half.state.message_transaction import State, Transaction
from tests.support import protocol_strategies as some
from tests.support.ledger_model import transaction_id

POLICY = CheckPolicy(transaction_timeout_ms=6_000, check_interval_ms=30_000, check_interval_max_ms=600_000)


def pending(number: int, due: int) -> Transaction:
    return Transaction(transaction_id(number), "orders", Truth.ROW, None, None, due)


def overdue(*transactions: Transaction, ops_read_until: int = 10**9) -> Overdue:
    return watching({transaction.id: transaction for transaction in transactions}, ops_read_until)


def watching(known: dict[str, Transaction], ops_read_until: int = 10**9) -> Overdue:
    found = Overdue(POLICY, known.get)
    for transaction in known.values():
        found.watch(transaction)
    found.ops_read_until(ops_read_until)
    found.ops_read_until(10**9, verdict=True)
    return found


@some.relaxed
@given(id_=some.uuids, asked=st.integers(1, 100))
def test_pauses_double_up_to_the_longest_and_are_spread_by_a_tenth(id_: str, asked: int) -> None:
    exact = min(30_000 * 2 ** (asked - 1), 600_000)
    pause = POLICY.pause(id_, asked)
    assert 0.9 * exact <= pause <= 1.1 * exact
    assert pause == POLICY.pause(id_, asked), "the same after a hand-over"


@pytest.mark.parametrize("asked", [1, 2, 5, 6, 1_000])
def test_checks_of_many_transactions_do_not_come_in_waves(asked: int) -> None:
    pauses = {POLICY.pause(transaction_id(number), asked) for number in range(1_000)}
    assert len(pauses) > 150
    assert max(pauses) - min(pauses) > 0.15 * min(pauses)


def test_the_spread_changes_from_check_to_check() -> None:
    pauses = {POLICY.pause(transaction_id(1), asked) for asked in range(10, 60)}
    assert len(pauses) > 30


def test_the_clock_knows_nothing_before_it_saw_something() -> None:
    assert BrokerClock().now(12_345) == 0


def test_the_clock_goes_on_by_itself_after_the_newest_append() -> None:
    clock = BrokerClock()
    clock.saw(1_000_000, 500)
    assert clock.now(500) == 1_000_000
    assert clock.now(2_500) == 1_002_000


def test_an_older_append_does_not_turn_the_clock_back() -> None:
    clock = BrokerClock()
    clock.saw(1_000_000, 500)
    clock.saw(1_000_500, 1_500)
    assert clock.now(1_500) == 1_001_000
    clock.saw(1_001_001, 1_500)
    assert clock.now(1_500) == 1_001_001


@some.relaxed
@given(st.lists(st.tuples(st.integers(1, 10**13), st.integers(0, 10**6)), min_size=1, max_size=30))
def test_the_clock_never_goes_backwards_and_never_lags_behind_an_append(steps: list[tuple[int, int]]) -> None:
    clock, monotonic, last = BrokerClock(), 77, 0
    for append_time, passed in steps:
        monotonic += passed
        assert clock.now(monotonic) >= last
        clock.saw(append_time, monotonic)
        last = clock.now(monotonic)
        assert last >= append_time


def test_what_was_read_once_stays_read() -> None:
    found = overdue(pending(1, 7_000), ops_read_until=7_000)
    found.ops_read_until(10)
    assert len(found.take(60_000)) == 1


def test_the_op_end_is_not_needed_while_nobody_is_due() -> None:
    assert not overdue(pending(1, 7_000), ops_read_until=0).needs_op_end(6_999)
    assert not overdue(ops_read_until=0).needs_op_end(10**9)
    assert not overdue(pending(1, 7_000), ops_read_until=7_000).needs_op_end(10**9)


def test_who_was_asked_is_due_again_after_the_pause() -> None:
    transaction = pending(1, 7_000)
    found = overdue(transaction)
    for asked in range(1, 9):
        now = transaction.due
        assert found.take(now) == [transaction]
        assert transaction.asked == asked
        assert transaction.due == found.next_due() == now + POLICY.pause(transaction.id, asked)
        assert not found.take(transaction.due - 1)


def test_the_earliest_is_asked_first_and_equals_in_the_order_of_their_arrival() -> None:
    found = overdue(pending(3, 9_000), pending(1, 7_000), pending(2, 7_000), pending(4, 99_000))
    assert [transaction.id for transaction in found.take(50_000)] == [transaction_id(number) for number in (1, 2, 3)]


def test_of_very_many_that_are_due_only_so_many_are_asked_about_at_once() -> None:
    found = overdue(*(pending(number, 7_000 + number) for number in range(5)))
    asked = [[transaction.id for transaction in found.take(8_000, 2)] for _ in range(4)]
    assert asked == [[transaction_id(number) for number in numbers] for numbers in ((0, 1), (2, 3), (4,), ())]


@pytest.mark.parametrize("state", [state for state in State if state is not State.PENDING])
def test_the_decided_are_not_asked_about(state: State) -> None:
    first, second = pending(1, 7_000), pending(2, 8_000)
    found = overdue(first, second)
    first.state = state
    assert found.next_due() == 8_000
    assert found.take(50_000) == [second]


def test_one_that_is_undecided_again_is_due_at_its_new_time_only() -> None:
    transaction = pending(1, 7_000)
    found = overdue(transaction)
    transaction.state = State.COMMITTED
    assert found.next_due() is None
    transaction.state, transaction.due = State.PENDING, 0
    found.watch(transaction)
    assert found.take(100) == [transaction]
    assert not found.take(7_000), "its first entry is void"


def test_an_earlier_due_time_voids_the_later_one() -> None:
    transaction = pending(1, 7_000)
    found = overdue(transaction)
    transaction.due = 7_000
    found.watch(transaction)
    assert found.take(7_000) == [transaction]
    assert not found.take(7_000)


def test_a_settled_transaction_is_not_asked_about() -> None:
    known = {transaction.id: transaction for transaction in (pending(1, 1_000), pending(2, 7_000))}
    found = watching(known)
    del known[transaction_id(1)]
    assert found.next_due() == 7_000
    assert [other.id for other in found.take(50_000)] == [transaction_id(2)]


def test_a_second_transaction_of_one_id_is_asked_about_after_the_first_was_settled() -> None:
    """A straggler's: the id is the same, the transaction is another one for the ledger."""
    first, second = pending(1, 7_000), pending(1, 9_000)
    known = {first.id: first}
    found = watching(known)
    known[second.id] = second
    found.watch(second)
    assert not found.take(8_999)
    assert found.take(9_000) == [second]
