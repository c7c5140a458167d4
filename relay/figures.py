"""How far the relay is, in figures that its metrics give."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping

from prometheus_client import CollectorRegistry

from outbox._service.output import Figures


class RelayProgress:
    """The relay's figures; rates are those since the last call.

    Args:
        clock: Seconds of any clock that never goes back.
    """

    def __init__(self, registry: CollectorRegistry, clock: Callable[[], float] = time.monotonic) -> None:
        self._registry = registry
        self._clock = clock
        self._delivered = 0
        self._at = clock()

    def __call__(self) -> Figures:
        """Return the present figures."""
        found = self._found()
        delivered, now = found["outbox_relay_delivery_seconds_count"], self._clock()
        rate = (delivered - self._delivered) / max(now - self._at, 0.001)
        self._delivered, self._at = delivered, now
        return {
            "delivered": delivered,
            "per_second": round(rate),
            "rolled_back": found["outbox_relay_transactions_total rolled_back"],
            "pending": found["outbox_relay_pending"],
            "lag": found["outbox_relay_lag"],
            "discarded": found["outbox_relay_discarded"],
            "discarded_rows": found["outbox_relay_table_rows discarded"],
            "partitions": found["outbox_relay_partitions served"],
        }

    def _found(self) -> Mapping[str, int]:
        """Return the sums of all samples by name, and by name and outcome or state."""
        sums: defaultdict[str, int] = defaultdict(int)  # a channel that was not begun yet has no samples
        for metric in self._registry.collect():
            for sample in metric.samples:
                sums[sample.name] += int(sample.value)
                for label in sample.labels.keys() & {"outcome", "state"}:
                    sums[f"{sample.name} {sample.labels[label]}"] += int(sample.value)
        return sums
