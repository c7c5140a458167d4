"""What a job says whose Spark lacks the jars that it needs: one line, with how to get them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from outbox._settings.of_jobs import LandSettings
from outbox.errors import ConfigurationError
from spark_jobs.runtime import java_admin
from spark_jobs.runtime.errors import SourceError
from spark_jobs.runtime.java_admin import JavaAdmin
from spark_jobs.runtime.session import SPARK_LOCK, spark_session
from spark_jobs.tables import delta_output
from spark_jobs.tables.delta_output import Output
from tests.support.spark import session


def test_without_kafkas_source_the_command_that_gets_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(java_admin, "JavaPackage", object)  # what py4j gives for a class that is not there
    settings = LandSettings(
        bootstrap_servers="localhost:1", topics="orders", output=str(tmp_path / "lake"), checkpoint=str(tmp_path)
    )
    with pytest.raises(SourceError, match=r'no Kafka source\. .* --jars "\$\(outbox land jars\)"') as told:
        JavaAdmin(session(), settings)
    assert "\n" not in str(told.value)


def test_without_delta_the_command_and_its_settings_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta_output, "JavaPackage", object)  # as above
    with pytest.raises(ConfigurationError, match=r"outbox land jars\)\" --conf spark\.sql") as told:
        Output(session(), str(tmp_path))
    assert "\n" not in str(told.value)


def test_a_pyspark_that_does_not_fit_the_jars_is_named_with_the_one_that_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyspark, "__version__", "3.5.1")
    with (
        pytest.raises(
            ConfigurationError, match=r"PySpark 3\.5\.1 needs jars of its own version.*pip install 'pyspark=="
        ),
        spark_session("jars", {}, [SPARK_LOCK]),
    ):
        raise AssertionError("a session was made")


# --- A local session prints nothing of its own: an operator reads the job's lines alone.

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
