"""The listener API without Kafka: what a listener is given, and what its answers become."""

import itertools
import logging
from dataclasses import replace
from typing import Any

import pytest

from outbox import Message, MessageRefused
from outbox._half.check_server import MAX_REASON, Question, read_question
from outbox.errors import UsageError
from outbox.listener import HalfMessage, TransactionListener
from outbox.protocol.check import CheckRequest
from outbox.protocol.envelope import Envelope
from outbox.protocol.errors import NewerFormatError, ProtocolError
from outbox.protocol.half import HalfControl, HalfOptions, Truth
from outbox.protocol.names import Channel
from outbox.protocol.op import OpEntry, OpKind, OpSource, encode_op, parse_op
from outbox.protocol.positions import Positions
from outbox.transactional_producer import TransactionalProducer
from tests.support.listeners import COMMIT, ROLLBACK, UNKNOWN, Scripted

ID = "0197a1b2-c3d4-7e5f-8a6b-7c8d9e0f1a2b"
TOPIC_ID = "7d1c0d1e-2c57-4c3e-9a51-0c7c4a2f9b10"
CONTROL = HalfControl("orders", 2, ID, 0, "shop", Truth.LISTENER, HalfOptions(timestamp=5, immunity=0))
USER_HEADERS = (("type", b"created"), ("type", None), ("naïve", b"\xff"))
HALF = Envelope(b"42", b"secret body", (*CONTROL.encode(), *USER_HEADERS), 1_700_000_000_000, 17)
REQUEST = CheckRequest(ID, "shop", Truth.LISTENER, TOPIC_ID, 3, Positions.first(1), 17, 17, 4, None, HALF)


def _answer(result: object) -> OpEntry:
    return Question(REQUEST).answer(Scripted(check=result))


def _raises(error: BaseException) -> Any:
    def run(_check: object) -> None:
        raise error

    return run


def test_a_check_carries_the_whole_message() -> None:
    listener = Scripted(check=COMMIT)
    Question(REQUEST).answer(listener)
    (check,) = listener.checked
    assert (check.transaction_id, check.message_id, check.service, check.check) == (ID, f"{ID}/0", "shop", 4)
    assert (check.topic, check.partition, check.key, check.value) == ("orders", 2, b"42", b"secret body")
    assert check.headers == USER_HEADERS
    assert check.timestamp == 1_700_000_000_000


def test_a_tombstone_without_a_key_can_be_judged_too() -> None:
    question = Question(replace(REQUEST, message=replace(HALF, key=None, value=None)))
    assert (question.check.key, question.check.value) == (None, None)


def test_no_payload_is_in_the_representation_of_a_check() -> None:
    shown = repr(Question(REQUEST).check)
    assert ID in shown
    assert "secret" not in shown
    assert "42" not in shown.replace(ID, "")


@pytest.mark.parametrize(
    ("state", "kind"), [(COMMIT, OpKind.COMMIT), (ROLLBACK, OpKind.ROLLBACK), (UNKNOWN, OpKind.UNKNOWN)]
)
def test_an_answer_lists_what_the_request_lists_and_carries_its_number(state: object, kind: OpKind) -> None:
    assert _answer(state) == OpEntry(kind, ID, TOPIC_ID, 3, Positions.first(1), 17, 17, 4)


def test_no_answer_is_unknown() -> None:
    assert _answer(None) == _answer(UNKNOWN)


@pytest.mark.parametrize("error", [ValueError("no such order"), SystemExit("no such order")])
def test_an_exception_is_unknown_with_its_type_and_message(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "outbox"):
        entry = _answer(_raises(error))
    assert (entry.kind, entry.checks) == (OpKind.UNKNOWN, 4)
    assert entry.reason == f"{type(error).__name__}: no such order"
    assert ID in caplog.text
    assert "no such order" not in caplog.text, "what an exception says may be the user's data"


def test_a_long_reason_of_several_lines_is_cut_and_put_on_one_line() -> None:
    entry = _answer(_raises(RuntimeError("first\nsecond\t" + "x" * 10_000)))
    assert len(entry.reason) == MAX_REASON
    (parsed,) = parse_op(encode_op([entry], OpSource.LISTENER)[0], [("outbox-op", b"1;listener")])[1]
    assert parsed.reason.startswith("RuntimeError: first second xxx")
    assert (parsed.kind, parsed.checks) == (OpKind.UNKNOWN, 4)


@pytest.mark.parametrize("result", [True, "commit", OpKind.COMMIT, 0])
def test_an_answer_of_another_kind_decides_nothing(result: object) -> None:
    entry = _answer(result)
    assert entry.kind is OpKind.UNKNOWN
    assert type(result).__name__ in entry.reason


def test_a_request_of_this_service_is_read() -> None:
    question = read_question(b"shop", REQUEST.encode(), "shop")
    assert question is not None
    assert question.request == REQUEST


@pytest.mark.parametrize(
    ("key", "value"),
    [
        pytest.param(b"other", REQUEST.encode(), id="another service's"),
        pytest.param(b"other", b"{broken", id="another service's, malformed"),
        pytest.param(b"other", b'{"version":99}', id="another service's, of a newer format"),
        pytest.param(None, REQUEST.encode(), id="without a key"),
        pytest.param(b"shop", replace(REQUEST, service="other").encode(), id="keyed wrongly"),
        pytest.param(b"shop", replace(REQUEST, truth=Truth.ROW, message=None).encode(), id="answered by the checker"),
    ],
)
def test_what_others_are_asked_is_passed(key: bytes | None, value: bytes) -> None:
    assert read_question(key, value, "shop") is None


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(None, id="nothing"),
        pytest.param(b"{broken", id="no JSON"),
        pytest.param(replace(REQUEST, message=None).encode(), id="no message"),
        pytest.param(replace(REQUEST, message=replace(HALF, headers=())).encode(), id="no control headers"),
    ],
)
def test_a_malformed_request_is_an_error(value: bytes | None) -> None:
    with pytest.raises(ProtocolError):
        read_question(b"shop", value, "shop")


def test_a_newer_format_is_an_error_of_its_own() -> None:
    with pytest.raises(NewerFormatError, match="upgrade"):
        read_question(b"shop", REQUEST.encode().replace(b'"version":1', b'"version":2'), "shop")


def test_consumer_groups_of_listeners_are_apart_from_all_others() -> None:
    channels = [Channel(name) for name in ("a", "a-listeners", "a-relay", "b")]
    services = ["b", "b.c", "listeners.b", "relay", "-listeners.b"]
    found = [channel.listener_group(service) for channel, service in itertools.product(channels, services)]
    found += [name for channel in channels for name in (channel.relay_group, channel.checker_group)]
    assert len(set(found)) == len(found)


def test_the_local_transaction_is_given_the_message_with_its_transaction_id() -> None:
    message = Message("orders", "body", "key", {"type": "created"}, 1, 5)
    half = HalfMessage.of(message, ID)
    assert isinstance(half, Message)
    assert (half.transaction_id, half.message_id) == (ID, f"{ID}/0")
    assert (half.topic, half.partition, half.timestamp) == (message.topic, message.partition, message.timestamp)
    assert (half.value, half.key, half.header_list()) == (message.value, message.key, message.header_list())
    assert "body" not in repr(half)


def test_a_listener_must_have_both_methods() -> None:
    class Half(TransactionListener):
        def execute_local_transaction(self, message: HalfMessage, arg: Any) -> None:
            """Do nothing."""

    with pytest.raises(TypeError, match="check_local_transaction"):
        Half()  # type: ignore[abstract]  # that is what is tested


def test_a_producer_without_a_listener_is_refused() -> None:
    with pytest.raises(UsageError, match="TransactionListener"):
        TransactionalProducer("orders", None, {"bootstrap.servers": "127.0.0.1:1"})  # type: ignore[arg-type]  # as above


@pytest.mark.parametrize("seconds", [0, 0.5, 3_600])
def test_the_immunity_time_of_a_message_is_at_most_an_hour(seconds: float) -> None:
    assert Message("orders", check_immunity=seconds).immunity_ms() == seconds * 1_000


@pytest.mark.parametrize("seconds", [-1, 3_600.5, float("nan"), float("inf")])
def test_another_immunity_time_is_refused(seconds: float) -> None:
    with pytest.raises(MessageRefused, match="check_immunity"):
        Message("orders", check_immunity=seconds)
