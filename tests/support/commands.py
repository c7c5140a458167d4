"""The command `outbox` as a user calls it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import typer
from typer.testing import CliRunner

from tests.support.harness import Site


def run_command(
    site: Site, *words: str, environ: Mapping[str, str] | None = None, typed: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run `outbox …` on a site; no traceback is ever shown."""
    result = subprocess.run(
        [sys.executable, "-m", "outbox", *words],
        env={**site.environment(), **(environ or {}), "COLUMNS": "250"},
        input=typed,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "Traceback" not in result.stdout + result.stderr
    return result


def call_command(
    app: typer.Typer, site: Site, *words: str, environ: Mapping[str, str | None] | None = None, typed: str = ""
) -> tuple[int, str]:
    """Run a subcommand in this process, which is much faster.

    Args:
        environ: Variables over the site's; None: not set.

    Returns:
        Exit code, and what it printed.
    """
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
