"""Images made on this machine, from the distribution's packages and from jars: no registry is asked."""

import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from outbox._jars.fetch import fetch
from stack.servers import KAFKA_LOCK
from tests.containers.engine import Engine
from tests.containers.steps import StepError, Steps

PYTHON_IMAGE = "outbox-test/python:local"
POSTGRES_IMAGE = "outbox-test/postgres:local"
# testcontainers reads the tag as a version of Confluent's platform: 8.3 has Kafka 4.3.
KAFKA_IMAGE = "outbox-test/kafka:8.3.1"

_FOLDER = Path(__file__).with_name("images")
_AUTHORITIES = Path("/usr/local/share/ca-certificates")
_PROXIES = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")


def site_certificates() -> str:
    """Certificates of authorities that this machine's administrator added, PEM; empty if there are none."""
    return "\n".join(path.read_text().strip() for path in sorted(_AUTHORITIES.rglob("*.crt")))


def build_images(engine: Engine, steps: Steps, base_image: str | None) -> None:
    """Make the base image (None: by debootstrap), Python's, Postgres' and Kafka's, where something changed."""
    base = base_image or _base(engine, steps)
    with steps.step("image: Python"):
        _build(engine, steps, PYTHON_IMAGE, _FOLDER / "python", {"DEBIAN_IMAGE": base})
    with steps.step("image: Postgres"):
        _build(engine, steps, POSTGRES_IMAGE, _FOLDER / "postgres", {"PYTHON_IMAGE": PYTHON_IMAGE})
    with steps.step("image: Kafka"), tempfile.TemporaryDirectory() as temporary:
        context = Path(temporary, "kafka")
        shutil.copytree(_FOLDER / "kafka", context)
        (context / "libs").mkdir()
        for jar in fetch(KAFKA_LOCK):
            shutil.copy2(jar, context / "libs")
        _build(engine, steps, KAFKA_IMAGE, context, {"PYTHON_IMAGE": PYTHON_IMAGE})


def _build(engine: Engine, steps: Steps, tag: str, context: Path, arguments: Mapping[str, str]) -> None:
    proxies = {name: os.environ[name] for name in _PROXIES if name in os.environ}
    options = [f"--build-arg={name}={value}" for name, value in {**proxies, **arguments}.items()]
    steps.run(["docker", "build", "--tag", tag, *options, str(context)], f"build-{context.name}", engine.environ)


def _base(engine: Engine, steps: Steps) -> str:
    suite = platform.freedesktop_os_release().get("VERSION_CODENAME", "stable")
    tag = f"outbox-test/base:{suite}"
    if engine.output("image", "inspect", tag):
        steps.note(f"image: {suite} by debootstrap", "still there from an earlier run")
        return tag
    if os.geteuid():
        raise StepError("only root can make a base image by debootstrap: name a Debian image with --base-image")
    # Beside the engine's data and not in /tmp, where a file system may forbid devices.
    with steps.step(f"image: {suite} by debootstrap"), tempfile.TemporaryDirectory(dir=steps.logs) as temporary:
        root = Path(temporary, "root")
        command = ["debootstrap", "--variant=minbase", "--include=ca-certificates", suite, str(root)]
        steps.run([*command, *_mirror(suite)], "debootstrap", os.environ)
        _import(engine, root, tag)
    return tag


def _mirror(suite: str) -> list[str]:
    command = ["apt-get", "indextargets", "--format", "$(CODENAME) $(COMPONENT) $(REPO_URI)", "Created-By: Packages"]
    lines = subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()
    return [words[2] for words in map(str.split, lines) if words[:2] == [suite, "main"]][:1]


def _import(engine: Engine, root: Path, tag: str) -> None:
    exclude = ["--exclude=./var/cache/apt/archives/*.deb", "--exclude=./var/lib/apt/lists/*"]
    with subprocess.Popen(["tar", "-C", root, *exclude, "-c", "."], stdout=subprocess.PIPE) as tar:
        command = ["docker", "import", "-", tag]
        done = subprocess.run(
            command, stdin=tar.stdout, capture_output=True, text=True, check=False, env=engine.environ
        )
    if tar.returncode or done.returncode:
        raise StepError(f"the base image was not imported: {done.stderr}")
