"""What the two distributions install, and what they do beside packages of the same names."""

import os
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from configparser import ConfigParser
from importlib.metadata import EntryPoint
from pathlib import Path
from types import MappingProxyType
from zipfile import ZipFile

import pytest

import outbox
from outbox._cli import main as cli
from outbox.testing.stacks import servers_named
from tests.support.commands import ran

ROOT = Path(__file__).parents[3]
_WHEEL = [sys.executable, "-m", "pip", "wheel", "-q", "--no-build-isolation", "--no-deps"]


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("wheels")
    subprocess.run([*_WHEEL, "--wheel-dir", folder, ROOT, ROOT / "services"], check=True, timeout=120)
    return {path.name.split("-")[0]: path for path in folder.iterdir()}


def _packages(wheel: Path) -> set[str]:
    with ZipFile(wheel) as opened:
        tops = {name.split("/")[0] for name in opened.namelist()}
    return {top for top in tops if not top.endswith(".dist-info")}


def _entry_points(wheel: Path) -> ConfigParser:
    parser = ConfigParser(delimiters=["="])
    with ZipFile(wheel) as opened:
        name = next(name for name in opened.namelist() if name.endswith("/entry_points.txt"))
        parser.read_string(opened.read(name).decode())
    return parser


def _run(
    *command: str, path: Path, environ: Mapping[str, str] = MappingProxyType({})
) -> subprocess.CompletedProcess[str]:
    return ran(command, cwd=path, env={**os.environ, **environ, "PYTHONPATH": str(path)})


def test_the_library_installs_one_package(wheels: dict[str, Path]) -> None:
    assert _packages(wheels["kafka_transactional_outbox"]) == {"outbox"}


def test_the_services_install_their_packages(wheels: dict[str, Path]) -> None:
    services = wheels["kafka_transactional_outbox_services"]
    assert _packages(services) == {"relay", "checker", "spark_jobs", "stack"}
    with ZipFile(services) as opened:
        assert {"spark_jobs/runtime/spark.lock", "spark_jobs/auditing/report.html.j2"} <= set(opened.namelist())


def test_no_distribution_has_a_pytest_plugin(wheels: dict[str, Path]) -> None:
    for wheel in wheels.values():
        assert "pytest11" not in _entry_points(wheel)


def test_every_service_command_names_its_extra(wheels: dict[str, Path]) -> None:
    commands = _entry_points(wheels["kafka_transactional_outbox_services"])["outbox.commands"]
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(commands) == set(cli._EXTRAS)
    assert set(cli._EXTRAS.values()) <= set(extras)


def test_both_distributions_have_one_version() -> None:
    library, services = (
        tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["project"] for folder in ("", "services")
    )
    version = library["version"]
    assert services["version"] == version
    assert services["dependencies"] == [f"kafka-transactional-outbox[service]=={version}"]
    pinned = [
        requirement
        for requirements in library["optional-dependencies"].values()
        for requirement in requirements
        if requirement.startswith("kafka-transactional-outbox-services")
    ]
    assert pinned
    assert all(requirement.endswith(f"]=={version}") for requirement in pinned)


def test_pytest_runs_in_a_project_with_an_outbox_module(tmp_path: Path) -> None:
    (tmp_path / "outbox.py").write_text("MINE = True\n")
    (tmp_path / "test_mine.py").write_text("import outbox\n\n\ndef test_mine():\n    assert outbox.MINE\n")
    done = _run(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", path=tmp_path)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout


def test_the_plugin_is_turned_on_in_conftest(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["outbox.testing.plugin"]\n')
    (tmp_path / "test_mine.py").write_text(
        "def test_mine(in_memory_outbox):\n    assert not in_memory_outbox.published\n"
    )
    done = _run(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", path=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_command_names_the_module_that_hides_it(tmp_path: Path) -> None:
    (tmp_path / "relay.py").write_text("MINE = True\n")
    done = _run(sys.executable, "-m", "outbox", "relay", "--help", path=tmp_path)
    assert done.returncode == 1
    assert f"{tmp_path / 'relay.py'} hides the package relay of kafka-transactional-outbox-services" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_command_names_the_extra_that_it_needs() -> None:
    land = EntryPoint("land", "spark_jobs.landing.cli:app", cli.GROUP)
    reason = cli._missing(land, ModuleNotFoundError(name="pyspark"))
    assert reason == "the module pyspark is missing: pip install 'kafka-transactional-outbox[spark]'"
    assert cli._is_not_wanted("land", reason), "`outbox --help` has no word of it"
    assert not cli._is_not_wanted("table", reason)


def test_the_command_and_the_library_have_the_version(tmp_path: Path) -> None:
    done = _run(sys.executable, "-m", "outbox", "--version", path=tmp_path)
    assert done.stdout == f"outbox {outbox.__version__}\n"


def test_a_command_that_is_not_installed_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "entry_points", lambda **_: ())
    monkeypatch.setattr(sys, "argv", ["outbox", "relay"])
    with pytest.raises(SystemExit, match=r"`outbox relay` is not installed: pip install '.*\[relay\]'"):
        cli.run_subcommand()


NO_LIBPQ = {"PSYCOPG_IMPL": "c"}  # psycopg's variable: an implementation that is not installed
INSTALL = "pip install 'kafka-transactional-outbox[binary]', or install the system's libpq (Debian: libpq5)"


def test_import_without_libpq_says_what_to_install(tmp_path: Path) -> None:
    done = _run(sys.executable, "-c", "from outbox import HalfOutbox", path=tmp_path, environ=NO_LIBPQ)
    assert done.stderr.splitlines()[-1].startswith("ImportError: psycopg cannot load libpq (")
    assert done.stderr.splitlines()[-1].endswith(INSTALL)


def test_command_without_libpq_says_what_to_install(tmp_path: Path) -> None:
    done = _run(sys.executable, "-m", "outbox", "doctor", path=tmp_path, environ=NO_LIBPQ)
    assert done.returncode == 1
    assert done.stderr.startswith("outbox: `outbox doctor` cannot start: psycopg cannot load libpq (")
    assert done.stderr.strip().endswith(INSTALL)


def test_help_without_libpq_has_one_line_and_no_traceback(tmp_path: Path) -> None:
    done = _run(sys.executable, "-m", "outbox", "--help", path=tmp_path, environ=NO_LIBPQ)
    assert done.returncode == 0
    (line,) = done.stderr.splitlines()
    assert line.startswith("outbox: some commands cannot start: psycopg cannot load libpq (")


def test_a_stack_that_is_not_installed_names_its_extra() -> None:
    with pytest.raises(Exception, match=r"pip install '.*\[testing-servers\]'"):
        servers_named("unknown")
