"""The outage stops a broker once, starts it again, and reports when."""

import pytest

from examples.flights.kafka_outage import KafkaOutage


class _Broker:
    def __init__(self, error: Exception | None = None) -> None:
        self.calls: list[str] = []
        self._error = error

    def stop(self) -> None:
        self.calls.append("stop")

    def start(self) -> None:
        self.calls.append("start")
        if self._error is not None:
            raise self._error


def test_outage_happens_once() -> None:
    broker, lines = _Broker(), list[str]()
    outage = KafkaOutage(broker, lines.append, seconds=0.01)
    outage.begin()
    outage.begin()
    span = outage.end()
    outage.begin()
    assert span is not None
    assert span.start < span.stop <= span.back
    assert broker.calls == ["stop", "start"]
    assert len(lines) == 4


def test_broker_that_does_not_start_is_an_error() -> None:
    outage = KafkaOutage(_Broker(RuntimeError("it does not start")), lambda _line: None, seconds=0.0)
    outage.begin()
    with pytest.raises(RuntimeError, match="does not start"):
        outage.end()
    with pytest.raises(RuntimeError, match="does not start"):
        outage.begin()
