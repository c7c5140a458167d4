"""Prometheus, and its own tool, which checks alert rules and runs their tests."""

import shutil
import subprocess
from pathlib import Path

UNPACKED = Path(__file__).parents[2] / "build/promtool"


def promtool(name: str = "promtool") -> str:
    """Return the path of the tool, or of `prometheus`: the system's, or that of Debian's package."""
    if found := shutil.which(name):
        return found
    program = UNPACKED / "usr/bin" / name
    if not program.exists():
        _unpack()
    return str(program)


def _unpack() -> None:
    UNPACKED.mkdir(parents=True, exist_ok=True)
    try:
        subprocess.run(["apt-get", "update", "-qq"], check=False)  # needs root; the lists may be there without it
        subprocess.run(["apt-get", "download", "-q", "prometheus"], cwd=UNPACKED, check=True)
        (package,) = UNPACKED.glob("*.deb")
        subprocess.run(["dpkg-deb", "-x", package, UNPACKED], check=True)
    except (OSError, subprocess.CalledProcessError, ValueError) as error:
        raise RuntimeError("promtool is missing: put it on PATH (Debian: prometheus)") from error
