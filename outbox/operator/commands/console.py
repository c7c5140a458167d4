"""`outbox console`: pages in a browser that show what the commands show."""

import getpass
import signal
import sys
from typing import Annotated, Any

import structlog
import typer

from outbox._cli.setting_options import option, subcommand
from outbox._service.logs import configure_logs
from outbox.errors import ConfigurationError, UsageError
from outbox.operator.settings import DecisionSettings, OperatorSettings

log = structlog.get_logger()


@subcommand(OperatorSettings)
def app(
    given: dict[str, Any],
    listen: Annotated[str, option("Address and port to listen on.")] = "127.0.0.1:8090",
    operator_config: Annotated[str, option("TOML file of an operator, who may decide. Default: only look.")] = "",
    proxy: Annotated[str, option("Address of a proxy, whose X-Forwarded-User names users. Default: a login.")] = "",
) -> None:
    """Show what waits, where a key is and why, in a browser.

    It serves until SIGTERM, and asks Kafka and the databases with the rights of a viewer, and no relay.
    """
    try:
        import uvicorn  # noqa: PLC0415 - of the extra `console`

        from outbox.operator.console.access import Access  # noqa: PLC0415
        from outbox.operator.console.app import WebConsole  # noqa: PLC0415
    except ImportError as error:
        raise ConfigurationError(f"{error}. Install kafka-transactional-outbox[console].") from error
    host, _, port = listen.rpartition(":")
    if not host or not port.isdecimal():
        raise UsageError(f"--listen {listen!r} is no address and port. Write them as 127.0.0.1:8090.")
    configure_logs()
    settings, config = OperatorSettings(**given), {"OUTBOX_CONFIG": operator_config}
    operator = DecisionSettings(config, channel=settings.channel) if operator_config else None
    access = Access(proxy, getpass.getuser())
    login = "" if proxy else f"login?key={access.key}"
    typer.echo(f"http://{listen}/{login}")
    log.info("Console serves", channel=settings.channel, can_decide=operator is not None, proxy=proxy or None)
    served = WebConsole(settings, operator, access).app()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # before it serves; and when the server has ended of it
    options: dict[str, Any] = {"log_config": None, "access_log": False, "server_header": False, "proxy_headers": False}
    uvicorn.run(served, host=host, port=int(port), timeout_graceful_shutdown=20, **options)  # s, for open requests
