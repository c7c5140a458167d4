"""The compose file: built, brought up until the demo is reconciled, taken down."""

import json
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from outbox._service.exit_codes import Exit
from tests.containers.engine import Engine
from tests.containers.images import KAFKA_IMAGE, POSTGRES_IMAGE, PYTHON_IMAGE, site_certificates
from tests.containers.steps import StepError, Steps

PROJECT = "outbox-test"
FILE = Path(__file__).parents[2] / "docker-compose.yml"

_PORTS = ("KAFKA_PORT", "POSTGRES_PORT", "RELAY_PORT", "CHECKER_PORT")
_STAY_UP = ("kafka", "postgres", "relay", "checker")
_ONE_SHOT = ("init", "demo", "land", "audit", "reconcile")
_FORGET_ONE = "DELETE FROM flights_told WHERE id = (SELECT min(id) FROM flights_told)"

_PROJECT_LABEL = f"label=com.docker.compose.project={PROJECT}"


def prove_compose(engine: Engine, steps: Steps, rows: int) -> None:
    """Build the product's images and bring everything up until `reconcile` has ended; it must end with 0."""
    project = _Project(engine, steps, {**engine.environ, **_variables(rows)})
    with steps.step("compose: images built"):
        project.compose("build", "relay", "demo", "spark")
    with project.taken_down():
        with steps.step(f"compose: {rows:,} flights reconciled"):
            project.up()
            code = engine.output("wait", project.container("reconcile")).strip()
        for service in _ONE_SHOT:
            steps.note(f"  {service}", project.ended(service))
        for service in _STAY_UP:
            steps.note(f"  {service}", project.health(service))
        steps.console.print(project.said("reconcile"), markup=False, soft_wrap=True)
        if code != "0":
            raise StepError(f"the reconciliation ended with {code or 'nothing: its container is gone'}")
        with steps.step("compose: the image for clusters lands the topics"):
            project.compose("run", "--rm", "--no-deps", "spark")
        with steps.step("compose: a made-up message is found"):
            project.require_that_a_phantom_is_found()


def _variables(rows: int) -> dict[str, str]:
    images = {
        "PYTHON_IMAGE": PYTHON_IMAGE,
        "KAFKA_IMAGE": KAFKA_IMAGE,
        "POSTGRES_IMAGE": POSTGRES_IMAGE,
        "OUTBOX_IMAGE": "outbox-test/services:local",
        "OUTBOX_DEMO_IMAGE": "outbox-test/demo:local",
        "OUTBOX_SPARK_IMAGE": "outbox-test/spark:local",
    }
    ports = dict(zip(_PORTS, _free_ports(len(_PORTS)), strict=True))
    return {**images, **ports, "ROWS": str(rows), "CA_CERTIFICATES": site_certificates()}


def _free_ports(count: int) -> list[str]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [str(each.getsockname()[1]) for each in sockets]
    for each in sockets:
        each.close()
    return ports


@dataclass(frozen=True, slots=True)
class _Project:
    engine: Engine
    steps: Steps
    environ: Mapping[str, str]

    def compose(self, *arguments: str) -> None:
        command = [*self.engine.compose, "--project-name", PROJECT, "--file", str(FILE), *arguments]
        self.steps.run(command, f"compose-{arguments[0]}", self.environ)

    def up(self) -> None:
        """Bring everything up in the order of its conditions; `reconcile`, the last, has begun then."""
        try:
            self.compose("up", "--detach", "--no-build", "reconcile")
        except StepError as error:
            raise StepError(f"{error}\n{self._all_logs()}") from None

    def require_that_a_phantom_is_found(self) -> None:
        """Make the application forget one message: a proof that cannot fail is none."""
        postgres = self.container("postgres")
        if self.engine.output("exec", postgres, "psql", "--username=outbox", "--command", _FORGET_ONE) != "DELETE 1\n":
            raise StepError("the application's word could not be changed in Postgres")
        try:
            self.compose("run", "--rm", "--no-deps", "reconcile")
        except StepError as error:
            if f"ended with {Exit.FINDINGS}:" in str(error):
                return
            raise
        raise StepError("the reconciliation is clean although a made-up message is visible")

    @contextmanager
    def taken_down(self) -> Iterator[None]:
        """Nothing is there of an earlier run when the block begins, and nothing of this one when it has ended."""
        self.down()
        try:
            yield
        finally:
            with self.steps.step("compose: down"):
                self.down()

    def down(self) -> None:
        self.compose("down", "--volumes", "--timeout", "30")

    def container(self, service: str) -> str:
        label = f"label=com.docker.compose.service={service}"
        return self.engine.output("ps", "--all", "--quiet", "--filter", _PROJECT_LABEL, "--filter", label).strip()

    def said(self, service: str) -> str:
        return self.engine.output("logs", self.container(service)).rstrip()

    def ended(self, service: str) -> str:
        state = self._state(service)
        with suppress(KeyError, ValueError):
            began, finished = (datetime.fromisoformat(state[name][:19]) for name in ("StartedAt", "FinishedAt"))
            return f"ended with {state['ExitCode']} after {(finished - began).total_seconds():.0f} s"
        return "did not run"

    def health(self, service: str) -> str:
        status: str = self._state(service).get("Health", {}).get("Status", "not there")
        if status != "healthy":
            raise StepError(f"{service} is {status}:\n{self.engine.logs(self.container(service), 40)}")
        return status

    def _state(self, service: str) -> dict[str, Any]:
        state: dict[str, Any] = json.loads(
            self.engine.output("inspect", "--format", "{{json .State}}", self.container(service)) or "{}"
        )
        return state

    def _all_logs(self) -> str:
        made = [(service, self.container(service)) for service in (*_STAY_UP, *_ONE_SHOT)]
        return "\n".join(f"--- {service}\n{self.engine.logs(id_, 30)}" for service, id_ in made if id_)
