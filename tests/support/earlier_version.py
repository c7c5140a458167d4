"""Library and services of an earlier version, built from its commit and installed beside the present ones."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
BEFORE_VERDICT_TOPIC = "3acdabf53a8de7ce348e0318f8080c2b1d079ce9"
"""The last commit without verdict topic and without the header `outbox-count`."""


def why_missing(commit: str) -> str:
    """Return why a commit cannot be built, empty if it can: a source archive and a shallow clone do not have it."""
    if shutil.which("git") is None:
        return "there is no git"
    found = subprocess.run(
        ["git", "cat-file", "-e", f"{commit}^{{commit}}"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    return (
        "" if found.returncode == 0 else f"commit {commit[:7]} is not in this repository: run `git fetch --unshallow`"
    )


def install_commit(commit: str, folder: Path) -> Path:
    """Build the wheels of a commit and install them, without their dependencies.

    Args:
        commit: The commit.
        folder: An empty folder.

    Returns:
        The folder that processes of this version have in PYTHONPATH.
    """
    source, wheels, target = folder / "source", folder / "wheels", folder / "installed"
    packed = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=True)
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        archive.extractall(source, filter="data")
    pip = [sys.executable, "-m", "pip"]
    build = [*pip, "wheel", "-q", "--no-build-isolation", "--no-deps", "--wheel-dir", str(wheels)]
    subprocess.run([*build, str(source), str(source / "services")], check=True, timeout=120)
    install = [*pip, "install", "-q", "--no-deps", "--no-index", "--target", str(target)]
    subprocess.run([*install, *map(str, sorted(wheels.glob("*.whl")))], check=True, timeout=120)
    return target


def variables_of(installed: Path) -> dict[str, str]:
    """Return the variables by which a process imports an installed version, and of the present one only tests."""
    return {"PYTHONPATH": f"{installed}{os.pathsep}{ROOT}", "PYTHONSAFEPATH": "1"}
