"""`Stack`: a Kafka and a Postgres that are up inside a `with` block and gone after it."""

from __future__ import annotations

import importlib.util
import shutil
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from outbox._jars.fetch import Report, fetch
from outbox._jars.java import find_java
from stack.errors import PortInUseError, StartError
from stack.kafka import Kafka, KafkaProgram, Listeners
from stack.ports import Ports
from stack.postgres import STANDBY_NAME, Postgres, ServerTls
from stack.postgres_binaries import let_in, postgres_binaries, server_user, system_binaries
from stack.processes import Processes, User

_ATTEMPTS = 3

KAFKA_LOCK = Path(__file__).with_name("kafka.lock")


def all_locks() -> list[Path]:
    """Kafka's lock, and those of the Spark jobs if they are installed."""
    # Looked up, not imported: the stack and the Spark jobs know nothing of each other.
    spec = importlib.util.find_spec("spark_jobs")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    return [KAFKA_LOCK, *(lock for folder in folders for lock in sorted(Path(folder).glob("runtime/*.lock")))]


class Security(Protocol):
    """What a secured stack has besides."""

    def kafka_settings(self) -> dict[str, str]:
        """Return settings of `server.properties`."""

    def postgres_tls(self) -> ServerTls:
        """Return the files of Postgres."""

    def jvm_options(self) -> list[str]:
        """Return options of a node's JVM."""


class Stack:
    """A real Kafka and a real Postgres on this machine, for as long as the `with` block lasts.

        with Stack() as stack:
            producer = Producer({"bootstrap.servers": stack.bootstrap_servers})
            connection = psycopg.connect(stack.postgres_url)

    Both listen on 127.0.0.1 only. They end with the block and with this process, even if it is killed. Several stacks
    may run side by side.

    Args:
        brokers: Kafka nodes: 1, or 3 for replication.
        standby: Add a Postgres standby that every commit waits for. With `postgres_settings` of
            `{"synchronous_standby_names": ""}` none waits, and a failover loses what the standby had not received.
        proxied: Give each Kafka node a second listener, whose clients connect to a proxy; the proxies are
            the caller's, see `kafka.proxy_ports`.
        security: Makes certificates and token keys in a folder. All connections to Postgres are encrypted, and each
            Kafka node has listeners with TLS: for clients with a password or a token (`kafka.secured_servers`), and
            for those with a certificate (`kafka.certificate_servers`). These clients have the rights that ACLs give
            them, and no others. It needs a Postgres of the system: that of the wheel has no TLS.
        kafka_port: Clients' port of the first node, those of the others follow; None: any.
        postgres_port: Port of Postgres; None: any.
        kafka_settings: Settings of Kafka's `server.properties` over the stack's own.
        postgres_settings: Settings of Postgres over the stack's own.
        data_dir: Folder for all data and logs, kept and used again; None: a temporary one, removed at the end.
        report: Is called with the name of each jar that is fetched.
        kafka_lock: Lock file of the jars of another Kafka.
        postgres_programs: Folder of the programs of another Postgres, which its account may enter; None: those of
            the wheel, or with `security` of the system.

    Attributes, while it runs:
        kafka: The Kafka cluster, to kill, stop and start.
        postgres: The Postgres, likewise.
        standby: The standby, if one was asked for.
        security: What `security` has made.
        data_dir: The folder with all data and logs.
    """

    kafka: Kafka
    postgres: Postgres
    standby: Postgres | None
    security: Any
    data_dir: Path

    def __init__(
        self,
        *,
        brokers: int = 1,
        standby: bool = False,
        proxied: bool = False,
        security: Callable[[Path], Security] | None = None,
        kafka_port: int | None = None,
        postgres_port: int | None = None,
        kafka_settings: Mapping[str, str] | None = None,
        postgres_settings: Mapping[str, str] | None = None,
        data_dir: Path | None = None,
        report: Report | None = None,
        kafka_lock: Path = KAFKA_LOCK,
        postgres_programs: Path | None = None,
    ) -> None:
        self._brokers = brokers
        self._with_standby = standby
        self._listeners = Listeners(proxied=proxied, secured=security is not None)
        self._kafka_port = kafka_port
        self._postgres_port = postgres_port
        self._kafka_settings = kafka_settings
        self._postgres_settings = postgres_settings
        self._kept_folder = data_dir
        self._report = report or (lambda _: None)
        self._kafka_lock = kafka_lock
        self._postgres_programs = postgres_programs
        self._ports = Ports()
        self._processes: Processes | None = None
        self._temporary_folder: Path | None = None
        self._make_security = security
        self._security_folder: Path | None = None
        self._is_up = False

    @property
    def bootstrap_servers(self) -> str:
        """What Kafka's clients connect to."""
        return self.kafka.bootstrap_servers

    @property
    def postgres_url(self) -> str:
        """How to connect to Postgres as a superuser, with the password: `postgresql://…`."""
        return self.postgres.url

    def start(self) -> None:
        """Start everything and wait until it answers; jars that are missing are fetched first."""
        program = KafkaProgram(find_java(), fetch(self._kafka_lock, report=self._report))
        for attempt in range(_ATTEMPTS):
            try:
                self._start(program)
            except BaseException as error:
                self.stop()
                # Between the choice of a port and its use another process may have taken it.
                if not isinstance(error, PortInUseError) or attempt == _ATTEMPTS - 1:
                    raise
            else:
                return

    def stop(self) -> None:
        """Stop everything; a temporary folder is removed, a given one is left in good order."""
        try:
            if self._kept_folder and self._is_up:
                self._stop_in_order()
        finally:
            self._is_up = False
            if self._processes:
                self._processes.close()
            self._processes = None
            self._ports.close()
            for folder in filter(None, (self._temporary_folder, self._security_folder)):
                shutil.rmtree(folder, ignore_errors=True)

    def fail_over(self) -> None:
        """Kill the Postgres primary (SIGKILL) and promote the standby: `postgres` and `postgres_url` are its own now.

        The former primary stays down until `rebuild_standby()`; until then every COMMIT waits for a standby.

        Raises:
            StartError: There is no standby, it is not promoted, or the data folder is kept: its next stack could not
                distinguish the two servers.
        """
        if not self.standby or self._kept_folder:
            raise StartError("there is nothing to fail over to: make the stack with standby=True and without data_dir")
        self.postgres.kill()
        self.standby.promote()
        self.postgres, self.standby = self.standby, self.postgres

    def rebuild_standby(self) -> None:
        """Make the standby again from a copy of the primary, and wait until it is in step."""
        if not self.standby:
            raise StartError("there is no standby to rebuild: make the stack with standby=True")
        self.standby.follow(self.postgres)
        self.postgres.wait_for(self.standby)

    def check(self) -> None:
        """Look whether everything that was started still runs."""
        for server in (self.kafka, self.postgres, self.standby):
            if server:
                server.check()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _start(self, program: KafkaProgram) -> None:
        user = server_user()
        self.data_dir = self._folder()
        if user:
            let_in(user, self.data_dir)
        self._processes = Processes(self.data_dir, remove=self._temporary_folder)
        settings = dict(self._kafka_settings or {})
        if self._make_security is not None:
            self._security_folder = self.data_dir / "security"
            self.security = self._make_security(self._security_folder)
            program = replace(program, options=self.security.jvm_options())
            settings = {**self.security.kafka_settings(), **settings}
        self.kafka = Kafka(
            self._processes,
            program,
            self.data_dir / "kafka",
            self._ports,
            brokers=self._brokers,
            port=self._kafka_port,
            settings=settings,
            listeners=self._listeners,
        )
        programs = self._postgres_programs or (
            system_binaries() if self._listeners.secured else postgres_binaries(user, self.data_dir)
        )
        self._make_postgres(self._processes, programs, user)
        self._in_parallel(self._processes, self.kafka.start_all, self._start_postgres)
        self._is_up = True

    def _folder(self) -> Path:
        if self._kept_folder:
            self._kept_folder.mkdir(parents=True, exist_ok=True)
            return self._kept_folder.resolve()
        self._temporary_folder = Path(tempfile.mkdtemp(prefix="outbox-stack-")).resolve()
        return self._temporary_folder

    def _make_postgres(self, processes: Processes, programs: Path, user: User | None) -> None:
        # Both have it: after a failover, too, no COMMIT is acknowledged that only one server has.
        synchronous = {"synchronous_standby_names": STANDBY_NAME} if self._with_standby else {}

        def server(name: str, port: int | None, primary: Postgres | None) -> Postgres:
            return Postgres(
                processes,
                programs,
                self.data_dir / name,
                port=self._ports.claim(port),
                user=user,
                settings={**synchronous, **(self._postgres_settings or {})},
                primary=primary,
                tls=self.security.postgres_tls() if self._listeners.secured else None,
            )

        self.postgres = server("postgres", self._postgres_port, None)
        self.standby = server("standby", None, self.postgres) if self._with_standby else None

    def _start_postgres(self) -> None:
        self.postgres.start()
        if self.standby:
            self.standby.start()
            self.postgres.wait_for(self.standby)

    @staticmethod
    def _in_parallel(processes: Processes, *steps: Callable[[], None]) -> None:
        with ThreadPoolExecutor(len(steps)) as pool:
            try:
                for done in as_completed([pool.submit(step) for step in steps]):
                    done.result()
            except BaseException:
                processes.close()  # so that the other steps fail now instead of going on
                raise

    def _stop_in_order(self) -> None:
        self.kafka.stop_all()
        for server in (self.postgres, self.standby):
            if server:
                server.stop()
