"""`outbox init`: its files are valid and agree with each other, and no file that is there is touched."""

import json
from pathlib import Path

import pytest
import yaml
from kubernetes_validate import latest_version, validate
from typer.testing import CliRunner

from outbox._service.channels import channel_threads
from outbox._service.exit_codes import Exit
from outbox.operator.commands.init import COMPOSE, KUBERNETES, app
from relay.half.serving import served
from relay.service import DRAIN_SECONDS
from relay.table import source_threads


def _init(folder: Path, service: str = "shop", *more: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["--service", service, "--topic", "orders", "--directory", str(folder), *more])
    return result.exit_code, result.output


def test_compose_and_kubernetes_run_the_same_relay(tmp_path: Path) -> None:
    code, printed = _init(tmp_path / "new", "shop", "--migration", "django")
    assert (code, 'OUTBOX = {"name": "shop"}' in printed) == (Exit.OK, True)
    steps = ("channel create", "--create --topic", "docker build", "create secret", "outbox relay --table")
    assert all(step in printed for step in steps)
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == [COMPOSE, KUBERNETES]
    relay = yaml.safe_load((tmp_path / "new" / COMPOSE).read_text())["services"]["relay"]
    *known, monitor = yaml.safe_load_all((tmp_path / "new" / KUBERNETES).read_text())
    deployment, budget, policy = known
    for version in ("1.25", latest_version()):
        assert [validate(one, version, strict=True) for one in known] == [version.removesuffix(".0")] * 3
    template, pod = deployment["spec"]["template"], deployment["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["args"] == relay["command"]
    assert {one["name"]: one["value"] for one in container["env"]} == relay["environment"]
    assert json.loads(relay["environment"]["OUTBOX_ALLOWED_TOPICS"]) == {"shop": ["orders"]}
    selector = {"matchLabels": template["metadata"]["labels"]}
    assert deployment["spec"]["selector"] == budget["spec"]["selector"] == monitor["spec"]["selector"] == selector
    assert policy["spec"]["podSelector"] == selector
    (port,) = container["ports"]
    assert {"port": port["name"]} in [*policy["spec"]["ingress"][0]["ports"], *monitor["spec"]["podMetricsEndpoints"]]
    assert {"port": 9092} in policy["spec"]["egress"][0]["ports"]
    assert pod["securityContext"]["runAsNonRoot"]
    paths = [container[f"{name}Probe"]["httpGet"]["path"] for name in ("liveness", "readiness")]
    assert paths == ["/livez", "/readyz"]
    assert relay["stop_grace_period"] == f"{pod['terminationGracePeriodSeconds']}s"
    # SIGTERM may come while half partitions are given up; then the sources stop, then the other partitions.
    seconds = served.STOP_SECONDS + source_threads.STOP_SECONDS + DRAIN_SECONDS
    assert pod["terminationGracePeriodSeconds"] >= max(seconds, channel_threads.STOP_SECONDS)


def test_nothing_is_overwritten_and_nothing_else_written(tmp_path: Path) -> None:
    (tmp_path / KUBERNETES).write_text("mine")
    code, printed = _init(tmp_path)
    assert (code, f"{KUBERNETES} exists and is not overwritten" in printed) == (Exit.CONFIGURATION, True)
    for folder, service in ((tmp_path / KUBERNETES, "shop"), (tmp_path / "new", "My Shop")):
        assert _init(folder, service)[0] == Exit.CONFIGURATION
    assert "--service 'My Shop' cannot be used" in _init(tmp_path / "new", "My Shop")[1]
    code, printed = _init(tmp_path / "new", "shop", "--topic", "__x")
    assert (code, "Topic '__x' is an internal topic of Kafka" in printed) == (Exit.CONFIGURATION, True)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(KUBERNETES, "mine")]


@pytest.mark.parametrize(
    ("servers", "replicas", "is_here"), [("127.0.0.1:1", 1, True), ("localhost:1,[::1]:2", 2, True), ("k:9", 3, False)]
)
def test_what_is_printed_fits_the_brokers(tmp_path: Path, servers: str, replicas: int, *, is_here: bool) -> None:
    printed = _init(tmp_path, "shop", "--bootstrap-servers", servers)[1]
    assert f"--replication {replicas} --bootstrap-servers {servers}" in printed
    assert (f"# {servers} is the container itself" in printed) is is_here
