"""A standalone cluster of Spark: a master and two workers, whose processes a test kills."""

import json
import os
import re
import signal
import subprocess
from pathlib import Path
from typing import Self

import pyspark

from outbox._jars.java import find_java, spark_java_home
from tests.support.harness import wait_until
from tests.support.land_job import family
from tests.support.spark import SETTINGS

_HOME = Path(pyspark.__file__).parent


class Cluster:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        while self._processes:
            self.kill_worker()

    def start(self) -> dict[str, str]:
        """Start all; what a job needs in its environment to run here."""
        self._folder.mkdir()
        url = self._start("master.Master", r"(spark://127\.0\.0\.1:\d+)")
        for _ in range(2):
            place = ["--cores", "1", "--memory", "700m", "--work-dir", str(self._folder / "work"), url]
            self._start("worker.Worker", "(registered with master)", *place)
        return {"OUTBOX_SPARK": json.dumps({**SETTINGS, "spark.master": url, "spark.executor.memory": "600m"})}

    def kill_executor(self) -> None:
        executors = [pid for worker in self._processes[1:] for pid in family(worker.pid) if pid != worker.pid]
        os.kill(min(executors), signal.SIGKILL)

    def kill_worker(self) -> None:
        """Kill a worker and all below it, as if its machine were gone; at the end the master likewise."""
        process = self._processes.pop()
        for pid in family(process.pid):
            os.kill(pid, signal.SIGKILL)
        process.wait()

    def _start(self, name: str, mark: str, *arguments: str) -> str:
        log = self._folder / f"{len(self._processes)}.log"
        place = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
        command = [str(_HOME / "bin/spark-class"), f"org.apache.spark.deploy.{name}", *place, *arguments]
        java = {"JAVA_HOME": str(spark_java_home(find_java())), "SPARK_HOME": str(_HOME)}
        environment = {**os.environ, **java, "SPARK_DAEMON_MEMORY": "256m"}
        with log.open("wb") as output:
            process = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)
        self._processes.append(process)
        wait_until(lambda: process.poll() is not None or bool(re.search(mark, log.read_text())), 120)
        found = re.search(mark, log.read_text())
        assert found, log.read_text()
        return found[1]


def is_in_batch(checkpoint: Path) -> bool:
    """Whether a batch is planned and not committed."""
    planned, committed = ({file.name for file in (checkpoint / name).glob("[0-9]*")} for name in ("offsets", "commits"))
    return bool(planned - committed)
