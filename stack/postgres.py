"""A real Postgres: made by `initdb`, reached with a password, ready when a query is answered."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlencode

import psycopg
from psycopg.conninfo import make_conninfo

from stack.errors import StartError, log_tail
from stack.ports import HOST, Ports
from stack.postgres_binaries import let_in, postgres_binaries, server_user
from stack.processes import Command, Processes, User

ROLE = "outbox"
DATABASE = "outbox"
READY_SECONDS = 60.0
"""A server that has not answered by then has failed; on a quiet machine one is up in 1 s, after a crash in 2."""

STANDBY_NAME = "standby"
"""What a standby calls itself when it connects, whichever of two servers it is at the time."""

_STOP_SECONDS = 30.0
_POLL_SECONDS = 0.05
_LONGEST_SOCKET_FOLDER = 90
"""The system allows 107 characters for the whole path of a socket."""

_IN_STEP = """
SELECT 1 FROM pg_stat_replication
 WHERE state = 'streaming' AND (sync_state = 'sync' OR current_setting('synchronous_standby_names') = '')
"""

_SETTINGS = {
    "listen_addresses": HOST,
    "wal_level": "logical",
    "max_connections": "200",
    "max_prepared_transactions": "20",
    # A standby that was away for a while finds what it missed.
    "wal_keep_size": "256MB",
    # A primary that came back is found at once, not after 5 s in which every COMMIT would wait.
    "wal_retrieve_retry_interval": "200ms",
    # In files of the data folder: nothing stays behind in shared memory when a server is killed.
    "dynamic_shared_memory_type": "mmap",
}


class ServerTls(NamedTuple):
    """With what a server encrypts its connections, all of them."""

    certificate: Path
    key: Path
    authority: Path


class Postgres:
    """A server with one superuser role and one database, both named `outbox`.

    Args:
        programs: Folder of Postgres' programs.
        folder: For logs and data; data that is there already is used again, with its password. Its name is the
            server's.
        user: Account to run it under; None: the current one.
        primary: The server that this one is a streaming standby of; None: it is a primary.
        tls: With what it encrypts all connections; None: they are not encrypted.
    """

    def __init__(
        self,
        processes: Processes,
        programs: Path,
        folder: Path,
        *,
        port: int,
        user: User | None,
        settings: Mapping[str, str] | None = None,
        primary: Postgres | None = None,
        tls: ServerTls | None = None,
    ) -> None:
        self._processes = processes
        self._programs = programs
        self._folder = folder
        self._name = folder.name
        self._user = user
        self._settings = {**_SETTINGS, **(settings or {}), "port": str(port)}
        self._primary = primary
        self._tls = tls
        self.port = port
        self._folder.mkdir(parents=True, exist_ok=True)
        self.password: str = primary.password if primary else self._own_password()
        self._give(folder)
        folder.chmod(0o700)

    @property
    def url(self) -> str:
        """How to connect as the superuser role, for psycopg, SQLAlchemy and libpq."""
        parameters = f"?{urlencode(self._verified(), safe='/')}" if self._tls else ""
        return f"postgresql://{ROLE}:{self.password}@{HOST}:{self.port}/{DATABASE}{parameters}"

    @property
    def log(self) -> Path:
        """The file with everything that the server printed."""
        return self._folder / "server.log"

    def start(self) -> None:
        """Start the server, on new data if there is none yet, and wait until it answers."""
        data = self._folder / "data"
        if not (data / "PG_VERSION").exists():
            self._make_data(data)
        options = [part for name, value in self._all_settings().items() for part in ("-c", f"{name}={value}")]
        argv = [str(self._programs / "postgres"), "-D", str(data), *options]
        self._processes.start(Command(self._name, argv, self.log, self._user))
        self._wait_until_ready()
        if not self._primary:
            self._make_database()

    def stop(self, *, immediate: bool = False) -> None:
        """Stop the server.

        Args:
            immediate: At once, as in a crash, instead of after closing connections and a checkpoint.
        """
        self._processes.signal(self._name, signal.SIGQUIT if immediate else signal.SIGINT)
        if self._processes.wait(self._name, _STOP_SECONDS) is None:
            self.kill()

    def kill(self) -> None:
        """Kill the server (SIGKILL) and wait until it and its helpers are gone."""
        self._processes.signal(self._name, signal.SIGKILL)
        self._processes.wait(self._name, _STOP_SECONDS)

    def restart(self, *, immediate: bool = False) -> None:
        """Stop the server and start it again on the same port and data."""
        self.stop(immediate=immediate)
        self.start()

    def check(self) -> None:
        self._processes.require(self._name, [self.port], self.log)

    def wait_for(self, standby: Postgres) -> None:
        """Wait until a standby is in step, so that commits that wait for one wait for nothing else."""
        deadline = time.monotonic() + READY_SECONDS
        with psycopg.connect(self.url, autocommit=True) as connection:
            while not connection.execute(_IN_STEP).fetchone():
                if time.monotonic() > deadline:
                    raise StartError(f"the standby is not in step after {READY_SECONDS:.0f} s{log_tail(standby.log)}")
                time.sleep(_POLL_SECONDS)

    def promote(self) -> None:
        """Make this standby a primary, with everything that it has received. Its former primary must not run."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            row = connection.execute("SELECT pg_promote(true, %s)", (int(READY_SECONDS),)).fetchone()
        if row != (True,):
            raise StartError(f"{self._name} was not promoted within {READY_SECONDS:.0f} s{log_tail(self.log)}")
        self._primary = None

    def follow(self, primary: Postgres) -> None:
        """Begin again as a standby: the data here is replaced by a copy of the primary's, then this server starts."""
        self._primary = primary
        shutil.rmtree(self._folder / "data", ignore_errors=True)
        self.start()

    def _all_settings(self) -> dict[str, str]:
        folder = str(self._folder)
        # A path that is too long for a socket would keep the server from starting; TCP is what the URL uses anyway.
        socket = {"unix_socket_directories": folder if len(folder) < _LONGEST_SOCKET_FOLDER else ""}
        # Given again at each start: the primary may have come back on another port.
        source = {"primary_conninfo": self._source(self._primary)} if self._primary else {}
        return {**socket, **source, **self._tls_settings(), **self._settings}

    def _tls_settings(self) -> dict[str, str]:
        """Copy the certificate to where the server may read it, and return the settings that name it."""
        if not self._tls:
            return {}
        certificate = self._copied(self._tls.certificate, "certificate.pem")
        return {"ssl": "on", "ssl_cert_file": certificate, "ssl_key_file": self._copied(self._tls.key, "key.pem")}

    def _copied(self, source: Path, name: str) -> str:
        file = self._folder / name
        file.touch(mode=0o600)
        file.write_bytes(source.read_bytes())
        self._give(file)
        return str(file)

    def _verified(self) -> dict[str, str]:
        """Return the connection parameters by which a client checks the server's certificate."""
        return {"sslmode": "verify-full", "sslrootcert": str(self._tls.authority)} if self._tls else {}

    def _source(self, primary: Postgres) -> str:
        """How a standby connects to its primary; the password is in a file, not in the list of processes."""
        file = self._folder / "pgpass"
        file.touch(mode=0o600)
        file.write_text(f"{HOST}:*:*:{ROLE}:{primary.password}\n")
        self._give(file)
        place = {"host": HOST, "user": ROLE, "passfile": str(file), "application_name": STANDBY_NAME}
        # Without it libpq looks for a certificate in the home of the process, where this account may not look.
        none = {"sslcert": str(self._folder / "no-certificate")} if self._tls else {}
        return make_conninfo(port=primary.port, **place, **none, **primary._verified())

    def _give(self, path: Path) -> None:
        """Make the account that the server runs under the owner of a file."""
        if self._user:
            os.chown(path, self._user.uid, self._user.gid)

    def _own_password(self) -> str:
        file = self._folder / "password"
        if not file.exists():
            file.touch(mode=0o600)
            file.write_text(secrets.token_hex(16))
        return file.read_text()

    def _make_data(self, data: Path) -> None:
        shutil.rmtree(data, ignore_errors=True)  # what an interrupted start may have left
        if self._primary:
            self._copy_primary(data, self._primary)
        else:
            self._initialise(data)

    def _initialise(self, data: Path) -> None:
        password = self._folder / "password"
        self._give(password)
        options = ["--no-sync", "--no-locale", "--encoding=UTF8", "--auth=scram-sha-256", f"--pwfile={password}"]
        argv = [str(self._programs / "initdb"), "-D", str(data), "-U", ROLE, *options]
        self._processes.run(Command("initdb", argv, self._folder / "initdb.log", self._user))
        if self._tls:
            self._refuse_unencrypted(data / "pg_hba.conf")

    @staticmethod
    def _refuse_unencrypted(rules: Path) -> None:
        """Refuse connections over TCP without TLS."""
        rules.write_text(re.sub(r"^host\b", "hostssl", rules.read_text(), flags=re.MULTILINE))

    def _copy_primary(self, data: Path, primary: Postgres) -> None:
        options = ["--write-recovery-conf", "--wal-method=stream", "--checkpoint=fast", "--no-sync"]
        argv = [str(self._programs / "pg_basebackup"), "-D", str(data), "-d", self._source(primary), *options]
        self._processes.run(Command("pg_basebackup", argv, self._folder / "pg_basebackup.log", self._user))

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + READY_SECONDS
        while not self._answers():
            self.check()
            if time.monotonic() > deadline:
                raise StartError(f"{self._name} did not answer within {READY_SECONDS:.0f} s{log_tail(self.log)}")
            time.sleep(_POLL_SECONDS)

    def _answers(self) -> bool:
        try:
            with psycopg.connect(make_conninfo(self.url, dbname="postgres"), connect_timeout=2) as connection:
                return connection.execute("SELECT 1").fetchone() is not None
        except psycopg.OperationalError:
            return False

    def _make_database(self) -> None:
        # Not waiting for a standby, which comes later.
        local = make_conninfo(self.url, dbname="postgres", options="-c synchronous_commit=local")
        with psycopg.connect(local, autocommit=True) as connection:
            if not connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [DATABASE]).fetchone():
                connection.execute(f"CREATE DATABASE {DATABASE}")


@contextmanager
def postgres_alone(settings: Mapping[str, str] | None = None) -> Iterator[Postgres]:
    """Start a Postgres on a port of its own, and remove it after the block."""
    user = server_user()
    folder = Path(tempfile.mkdtemp(prefix="outbox-postgres-")).resolve()
    if user:
        let_in(user, folder)
    with closing(Processes(folder, remove=folder)) as processes, closing(Ports()) as ports:
        programs = postgres_binaries(user, folder)
        server = Postgres(processes, programs, folder / "postgres", port=ports.claim(), user=user, settings=settings)
        server.start()
        yield server
