"""What a fork means to the library: the child starts afresh and never touches a client of its parent (R46).

The threads of librdkafka stay in the parent. In the child a client neither answers nor ends, and its destruction would
wait for threads that do not exist.
"""

import ctypes
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol
from weakref import WeakSet


class Forked(Protocol):
    """Something that has threads, locks or clients of librdkafka."""

    def start_afresh(self) -> None:
        """Replace, in a forked child, all that belongs to the parent. Called before any other code of the child."""


_followers: WeakSet[Forked] = WeakSet()
_creation = threading.RLock()


def follow(follower: Forked) -> None:
    """Call `start_afresh()` of an object in each forked child, as long as the object lives."""
    _followers.add(follower)


def abandon(*clients: object) -> None:
    """Keep clients of the parent for the rest of the child's life, so that nothing destroys them."""
    for client in clients:
        if client is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(client))


class ForkSafeLock:
    """A lock of a module; it is free in a forked child.

    It is taken by `with lock.free:`, a lock of Python's own: no exception of a signal handler comes between it and the
    block.
    """

    def __init__(self) -> None:
        self.start_afresh()
        follow(self)

    def start_afresh(self) -> None:
        self.free = threading.Lock()


@contextmanager
def creation() -> Iterator[None]:
    """Hold off forks while a client is created: a child would inherit the lock that librdkafka holds meanwhile."""
    with _creation:
        yield


def _before() -> None:
    _creation.acquire()


def _in_parent() -> None:
    _creation.release()


def _in_child() -> None:
    global _creation  # noqa: PLW0603 - its owner may be a thread of the parent
    _creation = threading.RLock()
    for follower in list(_followers):
        follower.start_afresh()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
