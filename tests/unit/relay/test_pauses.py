"""Pauses of a table source: how long it rests, and how slowly it looks at an empty table."""

from relay.table.pauses import IDLE_MAX_SECONDS, IDLE_MIN_SECONDS, Pauses


def test_an_empty_table_is_looked_at_ever_more_slowly_until_there_is_something() -> None:
    slept: list[float] = []

    def stopping(seconds: float) -> bool:
        slept.append(seconds)
        return False

    pauses = Pauses(stopping)
    for _ in range(10):
        pauses.after(found=False, seconds=0.3)
    assert slept[:3] == [IDLE_MIN_SECONDS, 2 * IDLE_MIN_SECONDS, 4 * IDLE_MIN_SECONDS]
    assert slept[-1] == IDLE_MAX_SECONDS
    pauses.after(found=True, seconds=0.3)
    pauses.after(found=False, seconds=0.3)
    assert slept[-2:] == [0.3, IDLE_MIN_SECONDS]
