"""The command `outbox` as a user calls it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping

from tests.harness import Site


def run_command(
    site: Site, *words: str, environ: Mapping[str, str] | None = None, typed: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run `outbox …` on a site; no traceback is ever shown.

    Args:
        site: Where.
        words: The command line.
        environ: Variables over the site's.
        typed: What the user types.
    """
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
