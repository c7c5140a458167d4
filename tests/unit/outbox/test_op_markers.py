"""Op markers: each is sent at once; where many transactions end, those of a moment are one record."""

from collections.abc import Callable
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from outbox._half import sender as module
from outbox._half.sender import _BUSY, _COLLECT_SECONDS, Sender
from outbox.protocol.op import OpEntry, OpKind, parse_op
from outbox.protocol.positions import Positions
from outbox.settings import HalfSettings

ID = "00000000-0000-7000-8000-00000000000"


@pytest.mark.parametrize("send", [lambda sender: sender._serve(sender._producer), lambda sender: sender.close(0)])
def test_markers_of_busy_times_are_one_record(send: Callable[[Sender], None], monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    sender = Sender(HalfSettings(service="orders", kafka={"bootstrap.servers": "none:1"}))
    sender._producer, sender.recorder = MagicMock(**{"flush.return_value": 0}), MagicMock()
    produce = sender._producer.produce
    for number in range(_BUSY + 2):
        entry = OpEntry(OpKind.COMMIT, f"{ID}{number % 9}", f"{ID}0", number % 2, Positions.first(1), 1, 1)
        sender.send_op_soon(entry)
    sender._serve(sender._producer)
    assert produce.call_count == _BUSY - 1
    sender._producer.poll.assert_called_once_with(_COLLECT_SECONDS)
    now[0] += _COLLECT_SECONDS
    produce.side_effect = BufferError("full")
    send(sender)
    records = [call.args for call in produce.call_args_list[_BUSY - 1 :]]
    assert [(args[3], len(parse_op(args[1], args[7])[1])) for args in records] == [(1, 2), (0, 1)]
    assert [call.args[1] for call in sender.recorder.ops_dropped.call_args_list] == [2, 1]
    sender.send_op_soon(entry)
    assert sender.recorder.ops_dropped.call_count == 3, "it does not wait"
