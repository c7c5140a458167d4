"""`outbox relay`: run the relay."""

import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import typer
from prometheus_client import CollectorRegistry

from outbox._cli.setting_options import Check, layers, setting_options
from outbox._service.channels.channel_threads import ServiceControl
from outbox._service.output import Figures
from outbox._service.process import collect_rarely, share_one_arena
from outbox._service.run import run_service
from outbox._settings.layers import load_all
from relay import metrics
from relay.service import RelayService
from relay.settings import RelaySettings, require_allow_list


class RelayProgress:
    """The relay's figures; rates are those since the last call."""

    def __init__(self, registry: CollectorRegistry, clock: Callable[[], float] = time.monotonic) -> None:
        self._registry = registry
        self._clock = clock
        self._delivered = 0
        self._at = clock()

    def __call__(self) -> Figures:
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


app = typer.Typer(
    epilog=layers(RelaySettings),
    help="Run the relay: deliver committed halves and table rows to their real topics, exactly once, in order.",
)


@app.callback(invoke_without_command=True)
@setting_options(RelaySettings)
def run(given: dict[str, Any], check: Check = False) -> None:  # noqa: FBT002 - a flag
    """Run the relay until SIGTERM."""
    given = {name: str(value) for name, value in given.items()}
    if check:
        # Not above: with SQLAlchemy it is half of what the start of a relay costs, which needs none of it.
        from outbox.operator.checks.checks import check_service  # noqa: PLC0415
        from relay.self_check import examine_relay  # noqa: PLC0415

        check_service(RelaySettings, given, examine_relay)
    else:
        _run(given)


def _make(settings: RelaySettings, control: ServiceControl) -> RelayService:
    require_allow_list(settings.profile, settings.allowed_topics)
    return RelayService(settings, control)


def _run(given: dict[str, str]) -> None:
    share_one_arena()
    collect_rarely()
    channels = load_all(RelaySettings, given)
    for name, settings in channels.items():
        require_allow_list(settings.profile, settings.allowed_topics, name)
    run_service(RelaySettings, given, metrics.TABLE, _make, RelayProgress(metrics.TABLE.registry))
