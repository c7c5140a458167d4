"""A standalone cluster of Spark: a master and two workers, whose processes a test kills."""

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark

from outbox._jars.java import find_java, spark_java_home
from tests.support.harness import wait_until
from tests.support.land_job import family
from tests.support.spark import SETTINGS

_HOME = Path(pyspark.__file__).parent
_START_SECONDS = 120


class Cluster:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []
        self.url = self._start("master.Master", r"(spark://127\.0\.0\.1:\d+)")
        for _ in range(2):
            place = ["--cores", "1", "--memory", "700m", "--work-dir", str(folder / "work"), self.url]
            self._start("worker.Worker", "(registered with master)", *place)

    @property
    def environment(self) -> dict[str, str]:
        """What a job needs in its environment to run here."""
        more = {"spark.master": self.url, "spark.executor.memory": "600m"}
        return {"OUTBOX_SPARK": json.dumps({**SETTINGS, **more})}

    def kill_executor(self) -> None:
        executors = [pid for worker in self._processes[1:] for pid in family(worker.pid) if pid != worker.pid]
        os.kill(min(executors), signal.SIGKILL)

    def kill_worker(self) -> None:
        """Kill a worker and all below it, as if its machine were gone."""
        self._kill(self._processes.pop())

    def close(self) -> None:
        while self._processes:
            self._kill(self._processes.pop())

    def _start(self, name: str, mark: str, *arguments: str) -> str:
        log = self._folder / f"{len(self._processes)}.log"
        place = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
        command = [str(_HOME / "bin/spark-class"), f"org.apache.spark.deploy.{name}", *place, *arguments]
        java = {"JAVA_HOME": str(spark_java_home(find_java())), "SPARK_HOME": str(_HOME)}
        environment = {**os.environ, **java, "SPARK_DAEMON_MEMORY": "256m"}
        with log.open("wb") as output:
            process = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)
        self._processes.append(process)
        wait_until(lambda: process.poll() is not None or bool(re.search(mark, log.read_text())), _START_SECONDS)
        found = re.search(mark, log.read_text())
        assert found, log.read_text()
        return found[1]

    def _kill(self, process: subprocess.Popen[bytes]) -> None:
        for pid in family(process.pid):
            os.kill(pid, signal.SIGKILL)
        process.wait()


@contextmanager
def cluster_of_two(folder: Path) -> Iterator[Cluster]:
    folder.mkdir()
    cluster = Cluster(folder)
    try:
        yield cluster
    finally:
        cluster.close()


def is_in_batch(checkpoint: Path) -> bool:
    """Whether a batch is planned and not committed."""
    planned, committed = (_batches(checkpoint / name) for name in ("offsets", "commits"))
    return bool(planned - committed)


def _batches(folder: Path) -> set[str]:
    return {file.name for file in folder.glob("[0-9]*")}
