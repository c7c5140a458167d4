"""The stack: real servers come up, survive kills with their data, refuse strangers, and never outlive their owner."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # public, not in its __all__
from psycopg.conninfo import make_conninfo

from examples.flights.certificates import Security
from outbox.testing import read_committed
from stack import PortInUseError, Stack, StartError
from stack.kafka import Listeners, cluster_in
from stack.ports import Ports, is_free
from stack.postgres_binaries import postgres_binaries, server_user, system_binaries
from tests.support.harness import wait_until

GONE_SECONDS = 5.0
"""So long after the owner's death nothing of a stack may be left."""

OWNER = """
import sys
from stack import Stack

with Stack() as stack:
    print(stack.data_dir, stack.postgres_url, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with Stack() as running:
        yield running


def test_both_servers_are_up_and_usable(stack: Stack) -> None:
    topic = make_topic(stack, "usable")
    publish(stack, topic, b"committed")
    publish(stack, topic, b"aborted", commit=False)
    publish(stack, topic, b"last")
    assert records(stack, topic, 2) == [b"committed", b"last"]
    assert query(stack.postgres_url, "SHOW wal_level") == "logical"
    assert query(stack.postgres_url, "SHOW fsync") == "on"


def test_a_wrong_password_is_refused(stack: Stack) -> None:
    for database in ("outbox", "postgres"):
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            psycopg.connect(make_conninfo(stack.postgres_url, password="wrong", dbname=database))
    socket = make_conninfo(stack.postgres_url, host=str(stack.data_dir / "postgres"), password="wrong")
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(socket)


def test_nobody_else_can_read_the_password(stack: Stack) -> None:
    assert (stack.data_dir / "postgres" / "password").stat().st_mode & 0o077 == 0
    password = stack.postgres.password.encode()
    for process in processes_of(stack.data_dir):
        assert password not in Path(f"/proc/{process}/cmdline").read_bytes()


def test_the_servers_listen_on_the_loopback_address_only(stack: Stack) -> None:
    theirs = {f"socket:[{inode}]" for inode in sockets_listening_beyond_loopback()}
    for process in processes_of(stack.data_dir):
        assert not theirs & set(open_files(process))


@pytest.mark.long
def test_a_killed_broker_comes_back_on_its_port_with_its_data(stack: Stack) -> None:
    topic = make_topic(stack, "killed")
    servers = stack.bootstrap_servers
    publish(stack, topic, b"before")
    stack.kafka.kill()
    with pytest.raises(StartError, match=r"kafka-1 ended \(-9\)"):
        stack.check()
    stack.kafka.start()
    stack.check()
    publish(stack, topic, b"after")
    assert stack.bootstrap_servers == servers
    assert records(stack, topic, 2) == [b"before", b"after"]


@pytest.mark.parametrize("end", ["kill", "immediate", "orderly"])
def test_postgres_comes_back_on_its_port_with_its_data(stack: Stack, end: str) -> None:
    url = stack.postgres_url
    query(url, f"CREATE TABLE {end} AS SELECT 1 AS number; SELECT 1")
    with busy_backend(url):
        if end == "kill":
            stack.postgres.kill()
        else:
            stack.postgres.stop(immediate=end == "immediate")
        # The backend that was busy is gone too: it would hold on to the data and keep the server from starting.
        assert not [pid for pid in processes_of(stack.data_dir / "postgres") if command(pid).startswith("postgres")]
        stack.postgres.start()
    assert stack.postgres_url == url
    assert query(url, f"SELECT number FROM {end}") == 1


def test_without_a_standby_there_is_nothing_to_fail_over_to(stack: Stack) -> None:
    with pytest.raises(StartError, match="standby=True"):
        stack.fail_over()
    with pytest.raises(StartError, match="standby=True"):
        stack.rebuild_standby()
    assert query(stack.postgres_url, "SELECT 1") == 1


@pytest.mark.long
def test_stacks_run_side_by_side_and_one_ends_alone(stack: Stack) -> None:
    topic = make_topic(stack, "beside")
    with Stack() as other:
        assert other.bootstrap_servers != stack.bootstrap_servers
        assert other.postgres.port != stack.postgres.port
        query(other.postgres_url, "CREATE TABLE only_there (i int); SELECT 1")
        publish(other, make_topic(other, "only-there"), b"x")
    assert not processes_of(other.data_dir)
    assert not other.data_dir.exists()
    publish(stack, topic, b"still here")
    assert "only-there" not in admin(stack).list_topics(timeout=10).topics
    with pytest.raises(psycopg.errors.UndefinedTable):
        query(stack.postgres_url, "SELECT * FROM only_there")


@pytest.mark.parametrize("which", ["kafka_port", "postgres_port"])
def test_a_port_in_use_is_named(stack: Stack, which: str) -> None:
    kafka_port = int(stack.bootstrap_servers.rpartition(":")[2])
    port = kafka_port if which == "kafka_port" else stack.postgres.port
    failing = Stack(kafka_port=port) if which == "kafka_port" else Stack(postgres_port=port)
    with pytest.raises(PortInUseError, match=rf"^port {port} of 127\.0\.0\.1 is in use: stop what listens there"):
        failing.start()


def test_a_port_is_claimed_by_one_stack_before_any_server_listens() -> None:
    first, second = Ports(), Ports()
    port = first.claim()
    assert is_free(port)
    assert port < 32768, "a client's source port could take one above"
    with pytest.raises(PortInUseError):
        second.claim(port)
    first.close()
    assert second.claim(port) == port
    second.close()


def test_a_folder_with_other_listeners_is_refused(tmp_path: Path) -> None:
    ports = Ports()
    cluster_in(tmp_path, ports, brokers=1, port=None)
    ports.close()
    with pytest.raises(StartError, match=r"holds a cluster with \w+\(proxied=False.*: ask for the same"):
        cluster_in(tmp_path, Ports(), brokers=1, port=None, listeners=Listeners(proxied=True))


@pytest.mark.long
def test_a_server_that_cannot_start_says_why() -> None:
    with pytest.raises(StartError, match=r"(?s)kafka-1 failed.*ends with:.*Invalid value nonsense for.*log\.segment"):
        Stack(kafka_settings={"log.segment.bytes": "nonsense"}).start()
    failing = Stack(postgres_settings={"shared_buffers": "nonsense"})
    with pytest.raises(StartError, match=r"(?s)postgres ended.*ends with:.*invalid value for parameter \"shared_buff"):
        failing.start()
    assert not processes_of(failing.data_dir)
    assert not failing.data_dir.exists()


@pytest.mark.long
def test_nothing_is_left_when_the_owner_is_killed() -> None:
    with owner() as (process, folder, url), busy_backend(url):
        assert len(processes_of(folder)) > 3
        process.kill()
        process.wait()
        wait_until(lambda: not processes_of(folder) and not folder.exists(), GONE_SECONDS)


@pytest.mark.long
def test_nothing_is_left_when_the_supervisor_is_killed() -> None:
    with owner() as (process, folder, _):
        (supervisor,) = (pid for pid in processes_of(folder) if "supervisor.py" in command(pid))
        os.kill(supervisor, signal.SIGKILL)
        wait_until(lambda: not processes_of(folder), GONE_SECONDS)
        process.communicate()  # the end of its input ends it in order
        assert process.returncode == 0
        assert not folder.exists()


@pytest.mark.long
def test_a_given_folder_is_kept_and_used_again() -> None:
    with reachable_folder() as folder:
        with Stack(data_dir=folder) as first:
            topic = make_topic(first, "kept")
            publish(first, topic, b"kept")
            query(first.postgres_url, "CREATE TABLE kept AS SELECT 1 AS number; SELECT 1")
        with Stack(data_dir=folder) as second:
            assert second.bootstrap_servers == first.bootstrap_servers
            assert second.postgres.password == first.postgres.password
            assert records(second, topic, 1) == [b"kept"]
            assert query(second.postgres_url, "SELECT number FROM kept") == 1
        assert "database system was interrupted" not in second.postgres.log.read_text()


@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts servers under another account")
def test_programs_in_a_closed_folder_are_copied_for_the_account(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = postgres_binaries(None, Path("/nowhere")).parents[1]
    closed = tmp_path_factory.mktemp("closed")
    closed.chmod(0o700)
    for part in (installed.name, f"{installed.name}.libs"):
        shutil.copytree(installed.parent / part, closed / part)
    monkeypatch.syspath_prepend(str(closed))
    user = server_user()
    assert user
    with reachable_folder() as folder:
        programs = postgres_binaries(user, folder)
        assert programs.is_relative_to(folder)
        data = folder / "data"
        data.mkdir()
        os.chown(data, user.uid, user.gid)
        made = subprocess.run([programs / "initdb", "-D", data], capture_output=True, user=user.uid, check=False)
        assert made.returncode == 0, made.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="an ordinary user may enter his own folders")
def test_a_folder_that_the_account_may_not_enter_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    with pytest.raises(StartError, match=r"may not enter \S+: name a data folder elsewhere"):
        Stack(data_dir=tmp_path / "data").start()


@pytest.mark.long
def test_the_command_creates_topics_and_prints_where_the_servers_are() -> None:
    command = [sys.executable, "-m", "outbox", "stack", "up", "--topic", "orders", "--topic", "stock"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            lines = [process.stdout.readline().removeprefix("export ").rstrip() for _ in range(3)]
            printed = {name: value.strip("'") for name, value in (line.split("=", 1) for line in lines)}
            admin = AdminClient({"bootstrap.servers": printed["OUTBOX_BOOTSTRAP_SERVERS"], "log_level": 0})
            wait_until(lambda: {"orders", "stock"} <= set(admin.list_topics(timeout=10).topics), GONE_SECONDS)
            assert query(printed["OUTBOX_POSTGRES_URL"], "SELECT 1") == 1
        finally:
            process.terminate()
        assert process.wait(60) == 0


@pytest.mark.long
def test_three_brokers_and_a_standby_lose_one_of_each() -> None:
    with Stack(brokers=3, standby=True) as big:
        topic = make_topic(big, "replicated", replicas=3)
        for node in range(3):
            big.kafka.kill(node)
            publish(big, topic, b"%d" % node)
            big.kafka.start(node)
        assert records(big, topic, 3) == [b"0", b"1", b"2"]
        assert big.standby
        query(big.postgres_url, "CREATE TABLE replicated AS SELECT 1 AS number; SELECT 1")
        assert query(big.standby.url, "SELECT count(*) FROM replicated") == 1
        big.standby.kill()
        insertion = "INSERT INTO replicated VALUES (2) RETURNING 1"
        insert = threading.Thread(target=query, args=(big.postgres_url, insertion))
        insert.start()
        wait_until(lambda: waits_for_standby(big.postgres_url), GONE_SECONDS)
        big.standby.start()
        insert.join(GONE_SECONDS * 4)
        assert not insert.is_alive()
        assert query(big.standby.url, "SELECT count(*) FROM replicated") == 2


def admin(stack: Stack) -> AdminClient:
    return AdminClient({"bootstrap.servers": stack.bootstrap_servers})


def make_topic(stack: Stack, name: str, replicas: int = 1) -> str:
    client = admin(stack)  # a name of its own keeps it alive until the answer is here
    client.create_topics([NewTopic(name, 1, replicas)])[name].result(30)
    return name


def publish(stack: Stack, topic: str, value: bytes, *, commit: bool = True) -> None:
    producer = Producer({"bootstrap.servers": stack.bootstrap_servers, "transactional.id": topic, "log_level": 0})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, value)
    producer.flush(30)
    if commit:
        producer.commit_transaction(30)
    else:
        producer.abort_transaction(30)


def records(stack: Stack, topic: str, count: int) -> list[bytes | None]:
    found: list[bytes | None] = []

    def enough() -> bool:
        found[:] = [one.value for one in read_committed({"bootstrap.servers": stack.bootstrap_servers}, [topic])]
        return len(found) >= count

    wait_until(enough)
    return found


def query(url: str, statement: str) -> object:
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement)
        while cursor.nextset():
            pass
        row = cursor.fetchone()
    return row and row[0]


def waits_for_standby(url: str) -> bool:
    return query(url, "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'") == 1


@contextlib.contextmanager
def busy_backend(url: str) -> Iterator[None]:
    loop = "DO $$ BEGIN LOOP PERFORM 1; END LOOP; END $$"

    def run() -> None:
        with contextlib.suppress(psycopg.OperationalError), psycopg.connect(url, autocommit=True) as connection:
            connection.execute(loop)

    thread = threading.Thread(target=run)
    thread.start()
    wait_until(lambda: backends(url, "DO $$%") == 1, GONE_SECONDS)
    yield
    thread.join(30)
    assert not thread.is_alive()


def backends(url: str, pattern: str) -> object:
    return query(url, f"SELECT count(*) FROM pg_stat_activity WHERE query LIKE '{pattern}' AND state = 'active'")


@contextlib.contextmanager
def owner() -> Iterator[tuple[subprocess.Popen[str], Path, str]]:
    """A process that holds a stack, the stack's folder and the URL of its Postgres."""
    command = [sys.executable, "-c", OWNER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            folder, url = process.stdout.readline().split()
            yield process, Path(folder), url
        finally:
            process.kill()


@contextlib.contextmanager
def reachable_folder() -> Iterator[Path]:
    """A folder that every account may enter, unlike pytest's own."""
    with tempfile.TemporaryDirectory(prefix="outbox-test-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def processes_of(folder: Path) -> list[int]:
    """Processes that name a folder in their command line or work in it."""
    return [int(path.name) for path in Path("/proc").glob("[0-9]*") if belongs(path, str(folder))]


def belongs(process: Path, folder: str) -> bool:
    try:
        return folder in (process / "cmdline").read_text() or str((process / "cwd").readlink()).startswith(folder)
    except OSError:  # it ended meanwhile
        return False


def command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


def open_files(pid: int) -> Iterator[str]:
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            yield str(path.readlink())


def sockets_listening_beyond_loopback() -> Iterator[str]:
    listening, loopback = "0A", ("0100007F", "0" * 24 + "01000000", "0000000000000000FFFF00000100007F")
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            (_, local, _, state, *_) = line.split()
            if state == listening and not local.startswith(loopback):
                yield line.split()[9]


@pytest.fixture
def folder() -> Iterator[Path]:
    with reachable_folder() as made:
        yield made


def test_machine_without_postgres_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/none")
    monkeypatch.setattr(Path, "glob", lambda *_: iter(()))
    with pytest.raises(StartError, match="Debian: postgresql"):
        system_binaries()


@pytest.mark.long
def test_certificates_are_gone_with_the_stack_and_the_data_stays(folder: Path) -> None:
    """The next stack on the same data has new ones."""
    seen = []
    for _ in range(2):
        with Stack(security=Security, standby=True, data_dir=folder / "kept") as stack:
            assert stack.standby is not None
            certificate = stack.security.authority.certificate
            seen.append(certificate.read_bytes())
        assert not certificate.parent.exists()
    assert seen[0] != seen[1]
