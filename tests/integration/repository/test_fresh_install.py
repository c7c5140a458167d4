"""What `make dist` builds, installed into a fresh environment outside the checkout, runs the quickstart."""

import json
import subprocess
import sys
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.commands import ran
from tests.support.harness import Site, wait_until
from tests.support.servers import Servers

ROOT = Path(__file__).parents[3]
EXTRAS = "kafka-transactional-outbox[binary,relay,checker]"


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a fresh environment with the library, relay and checker."""
    folder = tmp_path_factory.mktemp("fresh")
    for project in (ROOT, ROOT / "services"):
        build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder / "dist")]
        subprocess.run(build, cwd=project, check=True, capture_output=True, timeout=120)
    venv.create(folder / "venv", with_pip=True)
    install = [str(folder / "venv/bin/pip"), "install", "-q", "--find-links", str(folder / "dist"), EXTRAS]
    subprocess.run(install, cwd=folder, check=True, timeout=900)
    return folder


@contextmanager
def _running(fresh: Path, site: Site, *words: str, **environ: str) -> Iterator[None]:
    command = [str(fresh / "venv/bin/outbox"), *words]
    process = subprocess.Popen(command, cwd=fresh, env={**site.environment(), **environ})
    try:
        yield
    finally:
        process.terminate()
        assert process.wait(60) == 0


def _run(fresh: Path, site: Site, *words: str | Path, **environ: str) -> str:
    environment = {**site.environment(), **environ}
    done = ran([fresh / "venv/bin" / words[0], *words[1:]], cwd=fresh, env=environment, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_wheels_in_a_fresh_environment_run_the_quickstart(fresh: Path, servers: Servers) -> None:
    with Site(servers.bootstrap_servers, servers.postgres_url, name="outbox") as site:
        site.create_named_topics("orders")
        site.sql("CREATE TABLE IF NOT EXISTS orders (id integer, what text)")
        _run(fresh, site, "outbox", "channel", "create", "--partitions", "2", "--replication", "1")
        _run(fresh, site, "outbox", "table", "create")
        url = site.postgres_url.replace("postgresql://", "postgresql+psycopg://", 1)
        tables = {"OUTBOX_TABLES": json.dumps({"orders": {"dsn": site.postgres_url}})}
        with _running(fresh, site, "relay", **tables), _running(fresh, site, "checker"):
            printed = _run(fresh, site, "python", ROOT / "examples/quickstart.py", DATABASE_URL=url)
            _, message_id = printed.split()
            wait_until(lambda: "visible: readers see" in _run(fresh, site, "outbox", "trace", message_id, **tables))


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_a_bill_of_materials_names_the_licences_of_what_the_wheels_install(fresh: Path) -> None:
    """As `make dist` writes it."""
    written = fresh / "sbom.cdx.json"
    command = [sys.executable, "-m", "cyclonedx_py", "environment", "--output-file", str(written)]
    subprocess.run([*command, str(fresh / "venv/bin/python")], check=True, timeout=120)
    components = {each["name"].lower(): each for each in json.loads(written.read_text())["components"]}
    assert components["psycopg"]["licenses"] == [{"license": {"acknowledgement": "declared", "id": "LGPL-3.0-only"}}]
    installed = {line.split("==")[0].lower() for line in _freeze(fresh)}
    assert installed <= components.keys()
    assert {"kafka-transactional-outbox", "kafka-transactional-outbox-services"} <= installed


def _freeze(fresh: Path) -> list[str]:
    command = [str(fresh / "venv/bin/pip"), "list", "--format", "freeze"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return done.stdout.splitlines()
