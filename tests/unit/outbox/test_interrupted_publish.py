"""An exception of a signal handler inside publish() of a session loses no later message (R47)."""

import linecache
from contextlib import suppress
from types import FrameType

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

import outbox
from outbox import Message, OutboxError
from outbox.testing import InMemoryHalfOutbox
from tests.support.interrupting import Interrupter, Interruption

TRACED = str(outbox.__file__).removesuffix("__init__.py")


def _may_raise(frame: FrameType) -> bool:
    """Return whether a line is not that of `with`, also at its end, where Python runs no signal handler."""
    return not linecache.getline(frame.f_code.co_filename, frame.f_lineno).lstrip().startswith("with ")


def publish_interrupted(line: int, *, in_savepoint: bool) -> tuple[int, bool, list[bytes | str | None]]:
    """Publish "first", interrupted at a line, then "second"; the lines, whether it was accepted, what is there."""
    with InMemoryHalfOutbox() as box, Session(create_engine("sqlite://")) as session:
        accepted = True
        session.execute(text("SELECT 1"))
        with suppress(Interruption), Interrupter(line, lambda file: file.startswith(TRACED), _may_raise) as interrupter:
            box.publish(session, Message("orders", "first", "k"))
        try:
            box.publish(session, Message("orders", "second", "k"))
            if in_savepoint:
                inner = session.begin_nested()
                box.publish(session, Message("orders", "undone", "k"))
                inner.rollback()
            session.commit()
        except OutboxError:
            accepted = False
        return interrupter.lines, accepted, [message.value for message in box.published]


@pytest.mark.parametrize("in_savepoint", [False, True])
def test_message_after_an_interrupted_one_is_published(in_savepoint: bool) -> None:  # noqa: FBT001 - a parameter
    lines, *_ = publish_interrupted(0, in_savepoint=in_savepoint)
    found = {line: publish_interrupted(line, in_savepoint=in_savepoint)[1:] for line in range(1, lines + 1)}
    lost = {line: values for line, (accepted, values) in found.items() if accepted and values.count(b"second") != 1}
    assert lost == {}
    assert not any(b"undone" in values for _, values in found.values())
    assert sum(accepted for accepted, _ in found.values()) > len(found) // 2
