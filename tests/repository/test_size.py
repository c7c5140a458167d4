"""The product stays as small as it is: each figure has a bound, and a bound may only fall."""

import subprocess
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
import typer
from prometheus_client import CollectorRegistry

import checker.metrics
import outbox._settings.of_jobs
import outbox.prometheus
import relay.metrics
import spark_jobs.landing.metrics
from outbox._cli.main import GROUP
from outbox._settings.setting import READERS, settings_of
from tests.documents import metrics_of

ROOT = Path(__file__).parents[2]
PRODUCT = ("outbox", "relay", "checker", "spark_jobs", "stack")
assert outbox._settings.of_jobs  # the settings of the jobs are declared


def _files(*places: str) -> list[bytes]:
    listed = subprocess.run(["git", "ls-files", "-z", *places], cwd=ROOT, capture_output=True, text=True, check=True)
    paths = (ROOT / name for name in listed.stdout.split("\0") if name)
    return [path.read_bytes() for path in paths if path.is_file()]


def _lines(*places: str) -> int:
    return sum(content.count(b"\n") for content in _files(*places))


def _commands(command: Any) -> Iterator[Any]:
    inner = getattr(command, "commands", {})
    if not inner or getattr(command, "invoke_without_command", False):
        yield command
    for one in inner.values():
        yield from _commands(one)


def _all_commands() -> list[Any]:
    apps = (point.load() for point in entry_points(group=GROUP))
    return [one for app in apps for one in _commands(typer.main.get_command(app))]


def _options() -> int:
    options = [one for command in _all_commands() for one in command.params if one.param_type_name == "option"]
    # typer gives those of completion to whatever is loaded alone; in `outbox` they are the root's.
    return sum(one.name not in {"install_completion", "show_completion"} for one in options)


def _settings() -> int:
    return len({id(one) for table in READERS.values() for one in settings_of(table).values()})


def _metrics() -> int:
    services = (relay.metrics, checker.metrics, spark_jobs.landing.metrics)
    return len(outbox.prometheus._metrics(CollectorRegistry())) + sum(len(metrics_of(one)) for one in services)


# A bound may only fall: who makes something smaller lowers it.
FIGURES: dict[str, tuple[Callable[[], int], int]] = {
    "lines of the product": (lambda: _lines(*PRODUCT), 47_190),
    "lines of tests": (lambda: _lines("tests"), 65_045),
    "words of documents": (
        lambda: sum(len(text.split()) for text in _files("docs/*.md", "README.md", "CHANGELOG.md")),
        60_000,
    ),
    "commands": (lambda: len(_all_commands()), 22),
    "options": (_options, 161),
    "settings": (_settings, 73),
    "metrics": (_metrics, 47),
}


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_does_not_grow(name: str) -> None:
    figure, bound = FIGURES[name]
    found = figure()
    print(f"{name}: {found:,} of at most {bound:,}")  # noqa: T201 - `pytest -s` shows how large the project is
    assert found <= bound, f"{name} grew from {bound:,} to {found:,}: make something smaller instead"
