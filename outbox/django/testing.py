"""What a `TestCase` needs: the messages that `publish()` was given, without Postgres."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import outbox.django
from outbox.testing import InMemoryOutbox


@contextmanager
def captured_messages() -> Iterator[InMemoryOutbox]:
    """Replace the outbox of this process by one in memory, on any database, until the end of the block.

    In a `TestCase`, whose transaction never commits, the messages are in `uncommitted`, or with
    `captureOnCommitCallbacks(execute=True)` in `published`, as in a `TransactionTestCase`; if nested, in the innermost.

    Example:
        with captured_messages() as outbox:
            self.client.post("/orders", {"id": 42})
            assert_published(outbox.uncommitted, "orders", key="42", count=1)
    """
    name = outbox.django.configured()["name"]
    with InMemoryOutbox(name) as memory, mock.patch.object(outbox.django, "current", return_value=memory):
        yield memory
