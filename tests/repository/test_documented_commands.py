"""Commands and paths in the documents: a path is there, a program does something, a command line can be parsed."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path

import pytest
import typer
from typer.core import TyperGroup

from outbox._cli.main import GROUP

ROOT = Path(__file__).parents[2]
DOCUMENTS = [one for one in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")) if one.name != "CHANGELOG.md"]
every_document = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))

FOLDERS = "benchmarks|checker|docs|examples|outbox|relay|services|spark_jobs|stack|tests"
PATH = re.compile(
    rf"(?<![\w./-])((?:{FOLDERS})/(?:[\w.-]+/)*[\w-]+\.(?:py|ya?ml|toml|json|html|md|lock|in|sql|txt|svg))\b"
)
"""A file of the project, as a sentence or a command names it."""

SUBMITTED = re.compile(r"is the file `(spark_jobs/\S+\.py)`")
BLOCK = re.compile(r"^ *```console\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"(?<!`)`(outbox [a-z][^`\n]*)`(?!`)")
WORD = re.compile(r"[a-z][a-z-]*")


@every_document
def test_paths_in_documents_exist(document: Path) -> None:
    assert [path for path in PATH.findall(document.read_text()) if not (ROOT / path).exists()] == []


def _submitted() -> dict[str, list[str]]:
    """The files that documents name for `spark-submit`, and the documents."""
    found: dict[str, list[str]] = {}
    for document in DOCUMENTS:
        for path in SUBMITTED.findall(document.read_text()):
            found.setdefault(path, []).append(document.name)
    return found


def test_each_spark_job_has_a_file_for_spark_submit_in_the_documents() -> None:
    assert sorted(_submitted()) == sorted(str(path.relative_to(ROOT)) for path in _jobs())


def _jobs() -> Iterator[Path]:
    return (path for path in (ROOT / "spark_jobs").glob("*.py") if "__main__" in path.read_text())


@pytest.mark.parametrize("path", _submitted())
def test_a_file_for_spark_submit_is_the_job(path: str) -> None:
    """With `--help`, because a run needs a JVM: the long tests of each job run it under `spark-submit`."""
    command, wide = [sys.executable, str(ROOT / path), "--help"], {**os.environ, "COLUMNS": "200"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=wide)
    assert (done.returncode, "--bootstrap-servers" in done.stdout) == (0, True), done.stdout + done.stderr


def _written(text: str) -> Iterator[str]:
    for block in BLOCK.findall(text):
        for line in block.replace("\\\n", " ").splitlines():
            command = re.search(
                r"(?:^\s*\$ |[|&;(] ?)(?:sudo )?(?:[A-Z_]+=\S+ )*(?:\.venv/bin/)?(outbox [^|;&)\n]*)", line
            )
            if command:
                yield command[1]
    yield from INLINE.findall(text)


COMMANDS = {entry.name: entry for entry in entry_points(group=GROUP)}


def _wrong(line: str) -> str:
    """Why a command line cannot be right; empty if it can."""
    try:
        words = shlex.split(re.sub(r" # .*", "", line))[1:]
    except ValueError:
        words = line.split()[1:]
    name, words = words[0], words[1:]
    if name not in COMMANDS:
        return f"there is no `outbox {name}`"
    command = typer.main.get_command(_application(name))
    while isinstance(command, TyperGroup) and words and WORD.fullmatch(words[0]) and not _is_own(command, words[0]):
        if words[0] not in command.commands:
            return f"`{line}`: there is no {words[0]}"
        command, words = command.commands[words[0]], words[1:]
    known = {option for one in command.params for option in (*one.opts, *one.secondary_opts)} | {"--help"}
    asked = {word.partition("=")[0].rstrip("`,.;…)") for word in words if re.match(r"--[a-z]", word)}
    return ", ".join(f"`{line}`: no option {option}" for option in sorted(asked - known))


def _is_own(command: TyperGroup, word: str) -> bool:
    """Whether a word is an argument of a service that is a command itself."""
    return command.invoke_without_command and word not in command.commands


def _application(name: str) -> typer.Typer:
    app = COMMANDS[name].load()
    assert isinstance(app, typer.Typer)
    return app


@every_document
def test_commands_in_documents_can_be_parsed(document: Path) -> None:
    assert list(filter(None, map(_wrong, _written(document.read_text())))) == []


def test_documents_have_commands() -> None:
    assert len({line for document in DOCUMENTS for line in _written(document.read_text())}) > 95


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("outbox tabel create", "no `outbox tabel`"),
        ("outbox table make", "there is no make"),
        ("outbox table create --sinking", "no option --sinking"),
        ("outbox relay --check", ""),
        ("outbox trace ID --topic T", ""),
    ],
)
def test_a_wrong_command_is_found(line: str, wrong: str) -> None:
    assert wrong in _wrong(line)
    assert bool(wrong) is bool(_wrong(line))
