"""Which brokers count as lost: those whose connection broke, unless only this process does not reach them."""

from relay.delivery.broker_watch import DISBELIEF_SECONDS, BrokerStates, BrokerView

UP = {1: "UP", 2: "UP", 3: "UP"}


def test_broker_is_lost_with_its_connection_and_back_with_it() -> None:
    states = BrokerStates()
    assert states.saw(UP, 1.0)
    assert states.view == BrokerView(frozenset(), 1.0)
    assert not states.saw(UP, 2.0)
    assert states.saw({**UP, 3: "TRY_CONNECT"}, 3.0)
    assert states.view == BrokerView(frozenset({3}), 3.0)
    assert not states.saw({**UP, 3: "CONNECT"}, 4.0)
    assert states.saw(UP, 5.0)
    assert states.view == BrokerView(frozenset(), 5.0)


def test_broker_that_was_never_reached_is_not_lost() -> None:
    """A relay that starts while it is away has only fresh descriptions."""
    states = BrokerStates()
    states.saw({1: "UP", 2: "INIT"}, 1.0)
    assert not states.view.lost


def test_change_of_the_list_makes_descriptions_stale() -> None:
    """The controller has noticed that the broker is dead: now its descriptions tell."""
    states = BrokerStates()
    states.saw(UP, 1.0)
    states.saw({**UP, 3: "DOWN"}, 2.0)
    assert states.saw({1: "UP", 2: "UP"}, 11.0)
    assert states.view == BrokerView(frozenset({3}), 11.0)


def test_broker_that_the_controller_goes_on_listing_counts_after_a_while() -> None:
    """It is alive, and this process alone does not reach it."""
    states = BrokerStates()
    states.saw(UP, 1.0)
    away = {**UP, 3: "TRY_CONNECT"}
    states.saw(away, 2.0)
    assert not states.saw(away, 2.0 + DISBELIEF_SECONDS - 1)
    assert states.saw(away, 2.0 + DISBELIEF_SECONDS)
    assert not states.view.lost
