"""`outbox stack`: a Kafka and a Postgres to work with, and the jars that they need."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # public, not in its __all__
from rich.console import Console
from rich.table import Table

from outbox._jars.fetch import fetch as fetch_jars
from outbox._jars.fetch import jar_cache
from outbox._service.exit_codes import guarded
from outbox._service.process import stop_on_signals
from stack.errors import StartError
from stack.ports import HOST
from stack.postgres import DATABASE, ROLE
from stack.servers import Stack, all_locks

_CHECK_SECONDS = 1.0

app = typer.Typer(help="Run a Kafka and a Postgres on this machine, without Docker.", no_args_is_help=True)


@app.command()
def up(
    *,
    brokers: Annotated[int, typer.Option(min=1, help="Kafka nodes: 1, or 3 for replication.")] = 1,
    kafka_port: Annotated[int | None, typer.Option(help="Kafka's first port; by default any.")] = None,
    postgres_port: Annotated[int | None, typer.Option(help="Port of Postgres; by default any.")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Folder to keep the data in; by default none is kept.")] = None,
    topic: Annotated[list[str] | None, typer.Option(help="Create this topic if it is missing; repeatable.")] = None,
) -> None:
    """Start Kafka and Postgres, print how to connect, and stop them on Ctrl-C or SIGTERM."""

    def run() -> None:
        console = Console(stderr=True)
        stack = Stack(
            brokers=brokers,
            kafka_port=kafka_port,
            postgres_port=postgres_port,
            data_dir=data_dir,
            report=_report,
        )
        stack.start()
        try:
            _create(topic or [], stack.bootstrap_servers)
            _serve(stack, console)
        finally:
            stack.stop()

    guarded(run)


@app.command()
def fetch() -> None:
    """Fetch the jars of Kafka and Spark into the user's cache. What is there already is only checked."""

    def run() -> None:
        for lock in all_locks():
            jars = fetch_jars(lock, report=_report)
            megabytes = sum(jar.stat().st_size for jar in jars) / 1e6
            typer.echo(f"{lock.stem}'s jars: {len(jars)} files, {megabytes:.0f} MB, in {jar_cache()}", err=True)

    guarded(run)


def _report(jar: str) -> None:
    typer.echo(f"fetched {jar}", err=True)


def _create(topics: Iterable[str], bootstrap_servers: str) -> None:
    """Create those of the topics that are missing, with the broker's numbers of partitions and replicas."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    for name in topics:
        try:
            admin.create_topics([NewTopic(name)])[name].result()
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise StartError(
                    f"Kafka did not create topic {name}: {error.args[0].str()}. Correct --topic."
                ) from None


def _serve(stack: Stack, console: Console) -> None:
    stop = stop_on_signals()
    console.print(_table(stack))
    # Alone on standard output, so that `eval "$(…)"` or a copy of the lines sets them.
    for name, value in _variables(stack).items():
        typer.echo(f"export {name}='{value}'")
    console.print("Ctrl-C stops both.")
    while not stop.wait(_CHECK_SECONDS):
        stack.check()


def _variables(stack: Stack) -> dict[str, str]:
    return {
        "OUTBOX_BOOTSTRAP_SERVERS": stack.bootstrap_servers,
        "OUTBOX_POSTGRES_URL": stack.postgres_url,
        "OUTBOX_PROFILE": "development",
    }


def _table(stack: Stack) -> Table:
    table = Table("", "listens on", "role and database")
    table.add_column("log", overflow="fold")
    table.add_row("Kafka", stack.bootstrap_servers.replace(",", "\n"), "", str(stack.kafka.log()))
    postgres = stack.postgres
    table.add_row("Postgres", f"{HOST}:{postgres.port}", f"{ROLE}, {DATABASE}", str(postgres.log))
    return table
