"""A local session prints nothing of its own: an operator reads the job's lines alone."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
from spark_jobs.runtime.session import local_session

with local_session("quiet", [], {"spark.driver.memory": "512m"}) as session:
    assert session.range(3).count() == 3
"""
OF_THE_JVM = "WARNING: Using incubator modules"


@pytest.mark.long
def test_local_session_prints_no_log_of_spark() -> None:
    program = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=False)
    assert program.returncode == 0, program.stderr
    printed = (program.stdout + program.stderr).splitlines()
    assert [line for line in printed if not line.startswith(OF_THE_JVM)] == []
