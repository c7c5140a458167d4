"""Prometheus's own tool, which checks alert rules and runs their tests."""

import shutil
import subprocess
from pathlib import Path

UNPACKED = Path(__file__).parents[2] / "build/promtool"
PROGRAM = UNPACKED / "usr/bin/promtool"


def promtool() -> str:
    """Return its path: that of the system, or that of Debian's package, which is unpacked into `build`."""
    if found := shutil.which("promtool"):
        return found
    if not PROGRAM.exists():
        _unpack()
    return str(PROGRAM)


def _unpack() -> None:
    UNPACKED.mkdir(parents=True, exist_ok=True)
    try:
        subprocess.run(["apt-get", "update", "-qq"], check=False)  # needs root; the lists may be there without it
        subprocess.run(["apt-get", "download", "-q", "prometheus"], cwd=UNPACKED, check=True)
        (package,) = UNPACKED.glob("*.deb")
        subprocess.run(["dpkg-deb", "-x", package, UNPACKED], check=True)
    except (OSError, subprocess.CalledProcessError, ValueError) as error:
        raise RuntimeError("promtool is missing: put it on PATH (Debian: prometheus)") from error
