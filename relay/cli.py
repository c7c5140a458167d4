"""`outbox relay`: run the relay."""

from typing import Any

import structlog

from outbox._cli.setting_options import Check, subcommand
from outbox._kafka.channel import as_created
from outbox._service.channels.channel_threads import ServiceControl
from outbox._service.membership import MemberFenced
from outbox._service.process import collect_rarely, share_one_arena
from outbox._service.run import run_service
from outbox._service.settings import shared_admin
from outbox._settings.layers import load_all
from outbox.errors import ConfigurationError
from relay import metrics
from relay.service import RelayService
from relay.settings import RelaySettings, require_allow_list
from relay.table_service import TableService

log = structlog.get_logger()


@subcommand(RelaySettings)
def app(given: dict[str, Any], check: Check = False) -> None:
    """Run the relay: deliver committed halves and table rows to their real topics, exactly once, in order."""
    if check:
        # Not above: with SQLAlchemy it is half of what the start of a relay costs, which needs none of it.
        from outbox.operator.checks.checks import check_service  # noqa: PLC0415

        check_service(RelaySettings, given)
    else:
        _run(given)


class _Relay:
    """A relay that begins again if it fences itself, as a static member may after its session has expired."""

    def __init__(self, settings: RelaySettings, control: ServiceControl) -> None:
        require_allow_list(settings.profile, settings.allowed_topics)
        self._parts = (settings, control)
        self._relay = _service(*self._parts)

    def run(self) -> None:
        while True:
            try:
                return self._relay.run()
            except MemberFenced as error:
                if self._parts[0].group_instance_id:  # another process may have it; no other has one that we hold
                    raise
                log.warning("The relay begins again: Kafka fenced its consumer", error=str(error))
                self._relay = _service(*self._parts)


def _service(settings: RelaySettings, control: ServiceControl) -> TableService:
    channel = as_created(shared_admin(settings), settings.channel_names())
    if channel.tables_only and not settings.tables:
        raise ConfigurationError(
            f"Channel {channel.name} is of message tables only, and the setting tables names none. Name them in "
            "OUTBOX_CONFIG or with --table, or set OUTBOX_CHANNEL to another channel."
        )
    return (TableService if channel.tables_only else RelayService)(settings, control, channel)


def _run(given: dict[str, Any]) -> None:
    share_one_arena()
    collect_rarely()
    channels = load_all(RelaySettings, given)
    for name, settings in channels.items():
        require_allow_list(settings.profile, settings.allowed_topics, name)
    run_service(RelaySettings, given, metrics.TABLE, _Relay)
