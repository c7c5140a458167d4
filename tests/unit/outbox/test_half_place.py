"""Where the halves of a transaction lie: the id and the offsets must fit (R39)."""

from collections.abc import Collection

import pytest

from outbox._rules.half_place import HalfPlace

PLACE = HalfPlace("former", 3, 10)


def test_offsets_from_the_floor_on_lie_in_the_topic() -> None:
    assert PLACE.holds([12, 10, 11], {"former"})


def test_low_offset_shows_a_new_topic() -> None:
    assert not PLACE.holds([11, 9, 12], {"former"})


@pytest.mark.parametrize("topic_ids", [{"new"}, {"former", "new"}, ()])
def test_id_that_changed_or_is_not_known_is_refused(topic_ids: Collection[str]) -> None:
    assert not PLACE.holds([10], topic_ids)
