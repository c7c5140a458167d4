"""The command `outbox` as a user calls it."""

import json
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

import typer
from typer.testing import CliRunner

from tests.support.forked import run_outbox
from tests.support.harness import Site


def ran(command: Sequence[Any], **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a program for a minute at most, unless the options of `subprocess.run()` say otherwise; keep its output."""
    options = {"capture_output": True, "timeout": 60, "check": False, **options}
    return subprocess.run([str(word) for word in command], text=True, **options)  # noqa: PLW1510 - it is an option


def run_command(
    site: Site, *words: str, environ: Mapping[str, str] | None = None, typed: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run `outbox …` on a site; no traceback is ever shown."""
    result = run_outbox(words, {**site.environment(), "COLUMNS": "250", **(environ or {})}, typed)
    assert "Traceback" not in result.stdout + result.stderr
    return result


def call_command(
    app: typer.Typer, site: Site, *words: str, environ: Mapping[str, str | None] | None = None, typed: str = ""
) -> tuple[int, str]:
    """Run a subcommand in this process, which is faster, over `environ` (None: not set); exit code and output."""
    variables = {**site.environment(), "COLUMNS": "250", **(environ or {})}
    result = CliRunner().invoke(app, list(words), input=typed, env=variables)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def call_for_json(
    app: typer.Typer, site: Site, *words: str, environ: Mapping[str, str | None] | None = None
) -> tuple[int, Any]:
    """The same with `--json`: exit code, and the document that it printed."""
    code, printed = call_command(app, site, *words, "--json", environ=environ)
    return code, json.loads(printed)
