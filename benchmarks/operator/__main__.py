"""`python -m benchmarks.operator`: seconds and memory of operators' commands, and seconds of the console's pages."""

from __future__ import annotations

import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Annotated, NamedTuple
from urllib.parse import urlencode

import typer

from benchmarks.environment import environment
from benchmarks.figures import Figure, Target
from benchmarks.operator.site import Ids, Size, fill
from benchmarks.results_file import FOLDER
from benchmarks.run import Run
from stack import Stack
from tests.support.harness import Site, wait_until
from tests.support.message_rows import relay_settings
from tests.support.probes import free_port

SIZE = Size(rows=1_000_000, halves=300_000, dead=200_000, records=10_000_000)
SOON = Target("ours", "at most", 10)
SMALL = Target("ours", "at most", 200)
_MIB = 1024
_LONGEST_SECONDS = 600.0

_DECIDED = ("--reason", "a benchmark", "--yes", "--min-age-ms", "0")
_ALL = ("resolve", "--all", "--service", "orders", "--rollback", *_DECIDED)


class Command(NamedTuple):
    """A command, and what it may take.

    Args:
        name: Of its figures.
        codes: Exit codes of one that did its work.
    """

    name: str
    words: Sequence[str]
    target: Target = SOON
    codes: Sequence[int] = (0,)


def commands(ids: Ids, topic: str) -> list[Command]:
    """Return the commands in their order: the last one leaves nothing undecided."""
    return [
        Command("find_delivered", ["find", "--key", "delivered", "--topic", topic]),
        *(Command(f"find_{key}", ["find", "--key", key]) for key in ("waiting", "undecided", "dead7")),
        Command("trace_delivered", ["trace", ids.delivered]),
        Command("trace_waiting", ["trace", ids.waiting]),
        Command("trace_undecided", ["trace", ids.undecided]),
        Command("pending", ["pending"]),
        Command("discarded", ["discarded"]),
        Command("drop_all_dry_run", ["discarded", "drop", "--all", "--dry-run"]),
        Command("resolve_one", ["resolve", ids.undecided, "--rollback", *_DECIDED]),
        Command("resolve_all_dry_run", [*_ALL, "--dry-run"], Target("ours", "at most", 30)),
        Command("resolve_all", _ALL, Target("ours", "at most", 120)),
    ]


def pages(ids: Ids) -> Mapping[str, str]:
    """Return the pages of the console, by the names of their figures."""
    return {
        "overview": "/",
        "find": f"/find?{urlencode({'key': 'undecided', 'since': '24h'})}",
        "story": f"/story?{urlencode({'id': ids.undecided})}",
    }


def measure_commands(site: Site, chosen: Sequence[Command]) -> list[Figure]:
    """Run each command once in a process of its own."""
    figures, most = [], (0.0, "")
    for each in chosen:
        seconds, mib = _run(site, each)
        what = each.name.removeprefix(each.words[0]).replace("_", " ").strip()
        words = f"`{each.words[0]}`{what and f': {what}'}"
        figures.append(Figure(f"operator_{each.name}_seconds", words, "s", "", [seconds], [], each.target))
        print(f"  {words}: {mib:.1f} MiB")
        most = max(most, (mib, words))
    figures.append(Figure("operator_most_mib", f"most memory, of {most[1]}", "MiB", "", [most[0]], [], SMALL))
    return figures


def _environment(site: Site) -> dict[str, str]:
    return {**site.environment(), **relay_settings(site)}


# A process begins with the peak of the one that it was forked from, so a small one is between.
_MEASURED = """
import resource, subprocess, sys
code = subprocess.run(sys.argv[1:], stderr=subprocess.STDOUT).returncode
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr)
sys.exit(code)
"""


def _run(site: Site, command: Command) -> tuple[float, float]:
    began = time.monotonic()
    words = [sys.executable, "-S", "-c", _MEASURED, sys.executable, "-m", "outbox", *command.words]
    ran = subprocess.run(words, env=_environment(site), capture_output=True, text=True, check=False)
    if ran.returncode not in command.codes:
        raise RuntimeError(f"`outbox {' '.join(command.words)}` ended with {ran.returncode}: {ran.stdout}")
    return time.monotonic() - began, int(ran.stderr.split()[-1]) / _MIB


def measure_pages(site: Site, chosen: Mapping[str, str]) -> list[Figure]:
    """Ask a console for each page once."""
    with _console(site) as (address, browser):
        return [
            Figure(
                f"operator_page_{name}_seconds",
                f"`console`: {name}",
                "s",
                "",
                [_seconds(browser, address + path)],
                [],
                SOON,
            )
            for name, path in chosen.items()
        ]


def _seconds(browser: urllib.request.OpenerDirector, address: str) -> float:
    began = time.monotonic()
    text = browser.open(address, timeout=_LONGEST_SECONDS).read().decode()
    seconds = time.monotonic() - began
    if "not read" in text:
        raise RuntimeError(f"{address} did not read all: {text}")
    return seconds


@contextmanager
def _console(site: Site) -> Iterator[tuple[str, urllib.request.OpenerDirector]]:
    """Start a console, and log in."""
    service = site.start_module("outbox", "console", "--listen", f"127.0.0.1:{free_port()}", extra=relay_settings(site))
    wait_until(lambda: "login?key=" in service.output(), explain=site.logs)
    login = next(line for line in service.output().splitlines() if "login?key=" in line)
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
    wait_until(lambda: _is_there(browser, login), explain=site.logs)
    yield login.partition("/login")[0], browser
    service.terminate()


def _is_there(browser: urllib.request.OpenerDirector, login: str) -> bool:
    try:
        browser.open(login, timeout=_LONGEST_SECONDS).read()
    except OSError:
        return False
    return True


def main(
    share: Annotated[float, typer.Option(min=0.0001, max=1, help="Share of the whole size.")] = 1.0,
    output: Annotated[Path, typer.Option(help="The results' file.")] = FOLDER / "operator.json",
    only: Annotated[list[str] | None, typer.Option(help="Name of a command, without pages; repeatable.")] = None,
) -> None:
    """Fill a site, and measure the commands and pages that operators use on it."""
    size = SIZE.times(share)
    with Stack() as stack, Site(stack.bootstrap_servers, stack.postgres_url) as site:
        run = Run(output, environment(stack), asdict(size))
        ids = fill(site, size)
        if not only:
            run.measure("pages", partial(measure_pages, site, pages(ids)))
        chosen = [one for one in commands(ids, site.topic("orders")) if not only or one.name in only]
        run.measure("commands", partial(measure_commands, site, chosen))
        run.end()


if __name__ == "__main__":
    typer.run(main)
