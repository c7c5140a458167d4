"""A command ends with its exit code, whether or not its threads have ended and its output can be written (R64)."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from outbox._service.exit_codes import Exit

_SECONDS = 30.0

_THREADS = """
import ctypes, socket, sys, threading, time
import psycopg
from confluent_kafka import Producer, TopicCollection
from confluent_kafka.admin import AdminClient

silent = socket.create_server(("127.0.0.1", 0), backlog=64)  # connects, and never answers
place = f"127.0.0.1:{silent.getsockname()[1]}"
quiet = {"bootstrap.servers": place, "log_level": 0}
began = []
threading.excepthook = lambda _error: None

def describe():
    admin = AdminClient(quiet)
    topics = TopicCollection(["orders"])
    asked = [admin.describe_topics(topics, request_timeout=float(seconds)) for seconds in range(1, 30)]
    began.append("describe")
    for answers in asked:
        answers["orders"].exception()

def produce():
    producer = Producer({**quiet, "transactional.id": "relay"})
    began.append("produce")
    producer.init_transactions(1.0)

def connect():
    began.append("connect")
    psycopg.connect(f"postgresql://{place}/shop")

def count():
    began.append("count")
    while True:
        time.sleep(0.001)

def busy(command):
    for work in (describe, produce, connect, count):
        threading.Thread(target=work, daemon=True).start()
    while len(began) < 4:
        time.sleep(0.01)
    command()

# The exit handlers of C libraries run after the interpreter is finalized. Here they take 3 seconds, in which at least
# one request gets its time-out.
libc = ctypes.CDLL(None)
libc.__cxa_atexit(ctypes.cast(libc.sleep, ctypes.c_void_p), ctypes.c_void_p(3), None)
"""

_END = """
from outbox._cli.main import run_and_end
from outbox._service.exit_codes import Exit, fail
from outbox.errors import ConfigurationError
"""

_RELAY = """
import relay.cli
from outbox._cli.main import main
run = relay.cli._run
relay.cli._run = lambda given: busy(lambda: run(given))
sys.argv = ["outbox", "relay"]
main()
"""


def _run(program: str, output: int = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    """Run a program as a user's shell does: its output is buffered, no setting is given."""
    return subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", program],
        check=False,
        text=True,
        timeout=_SECONDS,
        stdout=output,
        stderr=output,
        env={name: value for name, value in os.environ.items() if not name.startswith(("OUTBOX_", "PYTHONUNBUFFERED"))},
    )


def test_a_relay_whose_clients_still_wait_ends_with_its_exit_code() -> None:
    """confluent-kafka's own thread enters the interpreter with the answer of an admin request, or its time-out."""
    ended = _run(_THREADS + _RELAY)
    assert "Kafka is not named" in ended.stderr
    assert "Fatal" not in ended.stderr
    assert ended.returncode == Exit.CONFIGURATION


@pytest.mark.parametrize("code", Exit)
def test_each_exit_code_comes_while_threads_work(code: Exit) -> None:
    ended = _run(f"{_END}{_THREADS}run_and_end(lambda: busy(lambda: fail('the reason', Exit({code:d}))))")
    assert (ended.returncode, ended.stderr) == (code, "outbox: the reason\n")


def test_an_unexpected_error_is_printed_while_threads_work() -> None:
    ended = _run(f"{_END}{_THREADS}run_and_end(lambda: busy(lambda: 1 / 0))")
    assert ended.returncode == Exit.FAILED
    assert ended.stderr.splitlines()[-1] == "ZeroDivisionError: division by zero"


def test_exit_text_is_printed_and_early_ctrl_c_is_no_error() -> None:
    ended = _run(f"{_END}import sys\nrun_and_end(lambda: sys.exit('no such command'))")
    assert (ended.returncode, ended.stderr) == (Exit.FAILED, "no such command\n")
    ended = _run(f"{_END}def press(): raise KeyboardInterrupt\nrun_and_end(press)")
    assert (ended.returncode, ended.stderr) == (130, "")


def test_output_is_written_and_exit_handlers_are_called() -> None:
    ended = _run(f"{_END}import atexit\natexit.register(lambda: print('closed'))\nrun_and_end(lambda: print('done'))")
    assert (ended.returncode, ended.stdout) == (Exit.OK, "done\nclosed\n")


@pytest.mark.parametrize(
    ("act", "code"),
    [
        pytest.param("lambda: print('found')", Exit.FAILED, id="nobody has the output"),
        pytest.param("lambda: (print('found'), sys.exit(Exit.FINDINGS))", Exit.FINDINGS, id="finding"),
        pytest.param("lambda: fail('the reason')", Exit.CONFIGURATION, id="one line"),
        pytest.param("lambda: guarded(refuse)", Exit.CONFIGURATION, id="expected error"),
        pytest.param("lambda: sys.exit('no such command')", Exit.FAILED, id="text"),
        pytest.param("lambda: 1 / 0", Exit.FAILED, id="traceback"),
    ],
)
def test_a_reader_that_went_away_changes_no_exit_code(act: str, code: Exit) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    program = f"""
import sys
{_END}
from outbox._service.exit_codes import guarded
def refuse():
    raise ConfigurationError("no right")
run_and_end({act})
"""
    ended = _run(program, writing)
    os.close(writing)
    assert ended.returncode == code


def test_a_process_without_standard_output_ends_with_its_exit_code() -> None:
    ended = _run(f"{_END}import sys\nsys.stdout = sys.stderr = None\nrun_and_end(lambda: sys.exit(Exit.UNSAFE))")
    assert ended.returncode == Exit.UNSAFE


@pytest.mark.skipif(os.getuid() != 0, reason="only root makes a process the first one of a namespace")
def test_a_command_that_is_the_first_process_of_a_container_ends_when_asked() -> None:
    wait = "cli.run_subcommand = lambda: (print(os.getpid(), flush=True), time.sleep(60)); cli.main()"
    program = f"import os, time; from outbox._cli import main as cli; {wait}"
    command = ["unshare", "--pid", "--fork", "--kill-child", sys.executable, "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as outside:
        assert outside.stdout is not None
        assert outside.stdout.readline() == "1\n"
        (inside,) = Path(f"/proc/{outside.pid}/task/{outside.pid}/children").read_text().split()
        os.kill(int(inside), signal.SIGTERM)
        assert outside.wait(_SECONDS) == 128 + signal.SIGTERM


@pytest.mark.parametrize("service", ["relay", "checker"])
def test_a_service_starts_without_what_only_its_check_needs(service: str) -> None:
    """SQLAlchemy and the operator's checks are half of a start, and 30 MiB of memory."""
    code = f"import sys, {service}.cli; print([name for name in sys.modules if name in UNNEEDED])"
    found = f"UNNEEDED = {{'sqlalchemy', 'outbox.operator'}}; {code}"
    assert subprocess.run([sys.executable, "-c", found], capture_output=True, text=True, check=True).stdout == "[]\n"
