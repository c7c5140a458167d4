"""Questions to the cluster: one thread, shared answers, and no caller who is left waiting."""

import threading
from concurrent.futures import Future

import pytest

from outbox._half.cluster_connection import Enquiries
from outbox.errors import UsageError

_SECONDS = 30.0


def test_callers_with_one_question_share_its_answer() -> None:
    enquiries, held, asked = Enquiries(), threading.Event(), []

    def answer() -> int:
        asked.append("once")
        held.wait(_SECONDS)
        return 7

    first, second = enquiries.ask("q", answer), enquiries.ask("q", answer)
    held.set()
    assert (first.result(_SECONDS), second.result(_SECONDS)) == (7, 7)
    assert asked == ["once"]
    assert enquiries.ask("q", answer).result(_SECONDS) == 7
    assert asked == ["once", "once"], "what was answered is asked again"
    enquiries.close()


def test_urgent_questions_come_first() -> None:
    enquiries, held, order = Enquiries(), threading.Event(), []
    enquiries.ask("now", lambda: held.wait(_SECONDS))
    last = enquiries.ask("later", lambda: order.append("later"), urgent=False)
    enquiries.ask("urgent", lambda: order.append("urgent"))
    held.set()
    last.result(_SECONDS)
    assert order == ["urgent", "later"]
    enquiries.close()


def test_error_is_raised_where_the_answer_is_awaited() -> None:
    enquiries = Enquiries()

    def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        enquiries.ask("q", fail).result(_SECONDS)
    assert enquiries.ask("q", lambda: 7).result(_SECONDS) == 7, "the thread goes on"
    enquiries.close()


def test_close_fails_open_questions_and_refuses_new_ones() -> None:
    enquiries, held = Enquiries(), threading.Event()
    waiting: list[Future[bool]] = [enquiries.ask(number, lambda: held.wait(_SECONDS)) for number in range(2)]
    enquiries.close()
    for future in waiting:
        with pytest.raises(UsageError, match="closed"):
            future.result(_SECONDS)
    with pytest.raises(UsageError, match="closed"):
        enquiries.ask("q", lambda: 7)
    assert enquiries.closed()
    held.set()


def test_thread_without_questions_ends_and_starts_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outbox._half.cluster_connection._IDLE_SECONDS", 0.01)
    enquiries = Enquiries()
    enquiries.ask("q", threading.current_thread).result(_SECONDS).join(_SECONDS)
    assert enquiries.ask("q", lambda: 7).result(_SECONDS) == 7
    enquiries.close()
