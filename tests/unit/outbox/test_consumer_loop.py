"""What the loops of an inbox store where the partition of a waiting message goes and comes back (R88); signals."""

import asyncio
import signal
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest.mock import Mock

import pytest
from confluent_kafka import TopicPartition

from outbox._consume import consumer_loop
from outbox._consume.async_consumer_loop import set_by_signal
from outbox._consume.consumer_loop import ConsumerLoop
from outbox.errors import UsageError
from outbox.inbox import Inbox


def message(offset: int) -> Mock:
    made = Mock(**{"topic.return_value": "orders", "partition.return_value": 0, "offset.return_value": offset})
    made.error.return_value = None
    return made


def test_nothing_behind_a_message_that_was_left_is_stored_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, again = message(0), message(1), message(0)
    polled, handled = deque([first, second, again]), deque[Mock]()
    consumer = Mock(**{"poll.side_effect": lambda _: polled.popleft() if polled else None})
    consumer.assignment.side_effect = lambda: [TopicPartition("orders", 0)] if len(polled) != 1 else []  # lost once

    def handle(one: Any) -> None:
        handled.append(one)
        if one is first:
            raise ConnectionError

    loop = ConsumerLoop("billing", handle, {}, ["orders"], None, 5, 60.0, lambda: not polled and handled[-1] is again)
    monkeypatch.setattr(consumer_loop, "Consumer", Mock(return_value=consumer))
    loop.run()
    assert list(handled) == [first, again]
    consumer.store_offsets.assert_called_once_with(again)


def test_outside_the_main_thread_a_consumer_needs_an_event() -> None:
    inbox, unused = Inbox("billing"), Mock()
    with ThreadPoolExecutor() as pool, pytest.raises(UsageError, match="Give it an event as `stop`"):
        pool.submit(inbox.run, unused, unused, {}, "orders").result()
    with ThreadPoolExecutor() as pool, pytest.raises(UsageError, match="Give it an event as `stop`"):
        pool.submit(asyncio.run, inbox.run_async(unused, unused, {}, "orders")).result()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("handled", [True, False])
def test_signal_ends_the_loop_and_reaches_the_application(number: int, *, handled: bool) -> None:
    heard: list[int] = []

    async def main() -> None:
        async with asyncio.timeout(10):
            with set_by_signal() as first, set_by_signal() as second:
                signal.raise_signal(number)
                await first.wait()
                await second.wait()

    asked = (signal.SIGTERM, signal.SIGINT)
    before = [signal.getsignal(one) for one in asked]
    try:
        if handled:
            for one in asked:
                signal.signal(one, lambda one, _: heard.append(one))
        there = [signal.getsignal(one) for one in asked]
        asyncio.run(main())
        assert heard == ([number] if handled else [])
        assert [signal.getsignal(one) for one in asked] == there
    finally:
        for one, handler in zip(asked, before, strict=True):
            signal.signal(one, handler)
