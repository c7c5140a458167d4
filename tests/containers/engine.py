"""A Docker engine: the one that answers, else one of its own, started by hand and stopped by its process id."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.containers.steps import StepError, Steps

START_SECONDS = 60
STOP_SECONDS = 60
BRIDGE = "docker0"
TESTCONTAINERS_LABEL = "org.testcontainers=true"

# Program -> Debian packages that may bring it; the first that exists is installed.
_ENGINE_PROGRAMS = {"dockerd": ("docker.io",), "iptables": ("iptables",), "docker": ("docker-cli", "docker.io")}
_PROGRAMS = {"debootstrap": ("debootstrap",), "docker": ("docker-cli", "docker.io")}
_COMPOSE_PACKAGES = ("docker-compose",)

# Tests reach containers by their published ports, also if this machine looks like a container itself.
_PUBLISHED = {"TESTCONTAINERS_CONNECTION_MODE": "docker_host", "TESTCONTAINERS_HOST_OVERRIDE": "127.0.0.1"}


@dataclass(frozen=True, slots=True)
class Engine:
    environ: Mapping[str, str]
    compose: tuple[str, ...]

    def output(self, *arguments: str) -> str:
        return _output(["docker", *arguments], self.environ)

    def logs(self, container: str, lines: int) -> str:
        command = ["docker", "logs", "--tail", str(lines), container]
        done = subprocess.run(
            command, env=self.environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        return done.stdout.rstrip()

    def remove_testcontainers(self, *images: str) -> int:
        """Remove the containers of these images that testcontainers left behind, as after a kill; how many."""
        ancestors = [f"--filter=ancestor={image}" for image in images]
        left = self.output("ps", "--all", "--quiet", f"--filter=label={TESTCONTAINERS_LABEL}", *ancestors).split()
        if left:
            self.output("rm", "--force", "--volumes", *left)
        return len(left)


@contextmanager
def engine(folder: Path, steps: Steps, *, debootstrap: bool, fresh: bool) -> Iterator[Engine]:
    """The engine that answers, else one with its data in a folder, which ends with the block."""
    # The reaper of testcontainers is an image of a registry; what is left behind is removed here without it.
    environ = {"TESTCONTAINERS_RYUK_DISABLED": "true", **os.environ}
    answers = bool(_output(["docker", "info", "--format", "{{.ServerVersion}}"], environ).strip())
    with steps.step("programs installed"):
        _install(_missing(own_engine=not answers, debootstrap=debootstrap), steps)
    if answers:
        steps.note("engine", "the one that runs already is used")
        yield Engine(environ, _compose(environ))
        return
    with _started(folder, steps, fresh=fresh) as host:
        environ |= {"DOCKER_HOST": host, **_PUBLISHED}
        yield Engine(environ, _compose(environ))


def _missing(*, own_engine: bool, debootstrap: bool) -> list[tuple[str, ...]]:
    programs = {**(_PROGRAMS if debootstrap else {}), **(_ENGINE_PROGRAMS if own_engine else {})}
    missing = [packages for program, packages in programs.items() if not shutil.which(program, path=_path())]
    return missing if _compose(os.environ) else [*missing, _COMPOSE_PACKAGES]


def _install(missing: list[tuple[str, ...]], steps: Steps) -> None:
    if not missing:
        return
    if os.geteuid() or not shutil.which("apt-get"):
        names = ", ".join(" or ".join(packages) for packages in missing)
        raise StepError(
            f"missing, by their names in Debian: {names}. On Debian, root installs them here; otherwise install them, "
            "start the engine, and if there is no debootstrap name a Debian image with --base-image"
        )
    environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    steps.run(["apt-get", "update", "-qq"], "apt-update", environ)
    packages = sorted({_known(choices) for choices in missing})
    steps.run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages], "apt-install", environ)


def _known(packages: tuple[str, ...]) -> str:
    return next((name for name in packages if _output(["apt-cache", "show", name], os.environ)), packages[-1])


def _compose(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Compose v2 if it is there, else v1, else nothing."""
    if _output(["docker", "compose", "version"], environ):
        return ("docker", "compose")
    return ("docker-compose",) if shutil.which("docker-compose") else ()


@contextmanager
def _started(folder: Path, steps: Steps, *, fresh: bool) -> Iterator[str]:
    """Start an engine; the address that it answers on."""
    if os.geteuid():
        raise StepError("no engine answers, and only root can start one")
    if (left_over := _left_over(folder)) is not None:
        with steps.step("engine of an earlier run stopped"):
            _stop_left_over(left_over)
    if fresh and folder.exists():
        with steps.step("images of earlier runs forgotten"):
            shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    had_bridge = _has_bridge()
    # Short, because the path of a socket is; the data stay where they are.
    with tempfile.TemporaryDirectory(prefix="outbox-engine-") as run, (steps.logs / "dockerd.log").open("wb") as log:
        host = f"unix://{run}/docker.sock"
        process = subprocess.Popen(
            _command(folder, Path(run), host),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env={**os.environ, "PATH": _path()},
        )
        try:
            with steps.step("engine started"):
                _wait_until_it_answers(process, host, Path(log.name))
            yield host
        finally:
            with steps.step("engine stopped"):
                _stop(process)
                if not had_bridge and _has_bridge():
                    _output(["ip", "link", "delete", BRIDGE], os.environ)


def _command(folder: Path, run: Path, host: str) -> list[str]:
    command = ["dockerd", f"--host={host}", f"--data-root={folder / 'data'}", f"--exec-root={run / 'exec'}"]
    command += [f"--pidfile={folder / 'dockerd.pid'}"]
    return [*command, f"--mtu={mtu}"] if (mtu := _mtu()) else command


def _mtu() -> int | None:
    """What the machine's way out carries at once, if it is less than usual: containers must not send more."""
    words = _output(["ip", "-o", "route", "show", "default"], os.environ).split()
    device = Path("/sys/class/net", words[words.index("dev") + 1]) if "dev" in words else None
    usual = 1500
    mtu = int((device / "mtu").read_text()) if device else usual
    return mtu if mtu < usual else None


def _wait_until_it_answers(process: subprocess.Popen[bytes], host: str, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not _output(
        ["docker", "info", "--format", "{{.ServerVersion}}"], {**os.environ, "DOCKER_HOST": host}
    ).strip():
        if process.poll() is not None or time.monotonic() > deadline:
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-20:])
            raise StepError(f"dockerd did not start:\n{tail}")
        time.sleep(0.1)


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _left_over(folder: Path) -> int | None:
    """The process id of the engine of a run that was killed: it still holds the folder."""
    file = folder / "dockerd.pid"
    number = int(file.read_text()) if file.exists() else 0
    command = Path(f"/proc/{number}/cmdline")
    return number if command.exists() and str(folder).encode() in command.read_bytes() else None


def _stop_left_over(number: int) -> None:
    os.kill(number, signal.SIGTERM)
    deadline = time.monotonic() + STOP_SECONDS
    while Path(f"/proc/{number}").exists():
        if time.monotonic() > deadline:
            raise StepError(f"the engine of an earlier run (process {number}) does not stop")
        time.sleep(0.1)


def _has_bridge() -> bool:
    return Path("/sys/class/net", BRIDGE).exists()


def _path() -> str:
    """Where programs are; an administrator's are not on everybody's PATH."""
    return os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])


def _output(command: list[str], environ: Mapping[str, str]) -> str:
    with suppress(OSError):
        done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
        return "" if done.returncode else done.stdout
    return ""
