"""A standby of a table source reports what would keep it from serving, before it is needed."""

from __future__ import annotations

from typing import Any
from unittest.mock import MagicMock

from structlog.testing import capture_logs

from outbox.errors import ConfigurationError
from relay.settings import RelaySettings
from relay.table.source_threads import _SourceThread

SETTINGS: Any = {"bootstrap_servers": "localhost:0"}


def test_a_standby_that_could_not_serve_logs_why() -> None:
    cluster: Any = MagicMock()
    cluster.settings = RelaySettings(**SETTINGS)
    thread = _SourceThread("shop", MagicMock(), cluster)
    table: Any = MagicMock()
    table.try_own.return_value = False
    table.check.side_effect = ConfigurationError("Role app may not DELETE")
    thread._connect = lambda: table  # type: ignore[method-assign]
    thread.stop.set()
    with capture_logs() as logs:
        thread._attempt()
    assert [one["reason"] for one in logs] == ["Role app may not DELETE"]
    table.close.assert_called_once()
