"""The examples in the docstrings of the library run as they stand, on real servers."""

import ast
import asyncio
import doctest
import importlib
import inspect
import pkgutil
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from confluent_kafka.schema_registry.avro import AvroSerializer
from sqlalchemy import insert, select
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

import outbox
from outbox.prometheus import PrometheusRecorder
from outbox.testing import InMemoryHalfOutbox, InMemoryOutbox, assert_published, read_committed
from tests.support.harness import Site, wait_until
from tests.support.schemas import new_registry
from tests.support.servers import Servers

ADDRESS = "localhost:9092"
"""As the examples have it; the real one takes its place."""

MODULES = [
    importlib.import_module(f"outbox.{name}")
    for name in ("errors", "half_outbox", "inbox", "listener", "outbox", "serialization", "transactional_producer")
]
"""Their names are those that the examples import."""


class Base(DeclarativeBase):
    """Of the example's tables."""


class Order(Base):
    __tablename__ = "orders_of_docstrings"
    id: Mapped[int] = mapped_column(primary_key=True)
    transaction_id: Mapped[str | None]


class Stock(Base):
    __tablename__ = "stock"
    id: Mapped[int] = mapped_column(primary_key=True)
    left_over: Mapped[int]


def _examples() -> dict[str, str]:
    """Name of the thing and code of its example, for all docstrings of the library."""
    found = {}
    for module in pkgutil.walk_packages(outbox.__path__, "outbox."):
        if module.name.endswith("__main__") or module.name.startswith("outbox.django"):
            continue  # the latter needs settings of Django: the example shop has its examples
        tree = ast.parse(inspect.getsource(importlib.import_module(module.name)))
        for name, node in _documented(tree, module.name):
            head, _, example = (ast.get_docstring(node) or "").partition("\nExample:\n")
            if example and head:
                found[name] = textwrap.dedent(example) + "\n"
    return found


def _documented(tree: ast.AST, name: str) -> Iterator[tuple[str, Any]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{name}.{node.name}", node
            yield from _documented(node, f"{name}.{node.name}")


EXAMPLES = _examples()


@pytest.fixture(scope="module")
def newcomer(servers: Servers) -> Iterator[Site]:
    """The default channel and tables, as the examples have them; a relay and a checker run."""
    with Site(servers.bootstrap_servers, servers.postgres_url, name="outbox") as site:
        site.create()
        site.create_named_topics("orders", "stock")
        Base.metadata.drop_all(site.engine())
        Base.metadata.create_all(site.engine())
        with Session(site.engine()) as session, session.begin():
            session.add(Stock(id=7, left_over=100))
        site.relay()
        site.checker()
        _wait_for_relay(site)
        yield site


def _wait_for_relay(site: Site) -> None:
    """Wait until a message comes through: the examples' own time limits are for a relay that runs."""
    kafka = {"bootstrap.servers": site.bootstrap_servers}
    with outbox.HalfOutbox("orders", kafka) as made, Session(site.engine()) as session:
        receipt = made.publish(session, outbox.Message("orders", "first"))
        session.commit()
    wait_until(lambda: receipt.message_id in {one.message_id for one in read_committed(kafka, ["orders"])})


@contextmanager
def _names(site: Site) -> Iterator[dict[str, Any]]:
    orders = Order.__table__
    order = Order(transaction_id=None)
    kafka = {"bootstrap.servers": site.bootstrap_servers}
    registry = new_registry()
    schema = '{"type": "record", "name": "order", "fields": [{"name": "id", "type": "int"}]}'
    with outbox.HalfOutbox("orders", kafka) as made, site.engine().connect() as core, Session(core) as session:
        session.begin()
        yield {
            **{name: value for module in MODULES for name, value in vars(module).items() if name[0].isupper()},
            **{one.__name__: one for one in (AsyncSession, AvroSerializer, Decimal, Session)},
            **{one.__name__: one for one in (InMemoryOutbox, PrometheusRecorder, assert_published)},
            "ddl": outbox.ddl,
            "insert": insert,
            "select": select,
            "kafka": kafka,
            "registry": registry,
            "SCHEMA": schema,
            "engine": site.engine(),
            "session": session,
            "order": order,
            "orders": orders,
            "outbox": made,
            "serve_http": lambda: None,
        }
        session.rollback()


def _run(site: Site, code: str, names: dict[str, Any]) -> None:
    if "class Orders" not in code and "Orders()" in code:
        exec(EXAMPLES["outbox.listener.TransactionListener"], names)  # noqa: S102 - that is what is tested
    with psycopg.connect(site.postgres_url) as connection:
        exec(code, {**names, "connection": connection})  # noqa: S102 - as above


async def _run_async(site: Site, code: str, names: dict[str, Any]) -> None:
    url = site.postgres_url.replace("postgresql://", "postgresql+psycopg://", 1)
    engine = create_async_engine(url)
    wrapped = f"async def example():\n{textwrap.indent(code, '    ')}"
    async with await psycopg.AsyncConnection.connect(site.postgres_url) as connection:
        more = {"engine": engine, "connection": connection, "outbox": outbox.AsyncHalfOutbox.over(names["outbox"])}
        scope = {**names, **more}
        exec(wrapped, scope)  # noqa: S102 - as above
        await scope["example"]()
    await engine.dispose()


def _one_in_memory(site: Site) -> InMemoryHalfOutbox:
    made = InMemoryHalfOutbox()
    with Session(site.engine()) as session, session.begin():
        made.publish(session, outbox.Message("orders", '{"id": 42}', "42", {"type": "created"}))
    return made


def test_examples_were_found() -> None:
    names = {name.rpartition(".")[2] for name in EXAMPLES}
    assert {"publish", "transaction", "TransactionListener", "TransactionalProducer"} <= names


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_the_example_runs(newcomer: Site, name: str) -> None:
    code = EXAMPLES[name].replace(ADDRESS, newcomer.bootstrap_servers)
    with _names(newcomer) as names:
        if ">>>" in code:
            test = doctest.DocTestParser().get_doctest(code, names, name, None, None)
            assert doctest.DocTestRunner().run(test).failed == 0
        elif "assert_published" in code:
            exec(code, {**names, "outbox": _one_in_memory(newcomer)})  # noqa: S102 - that is what is tested
        elif any(isinstance(node, ast.Await | ast.AsyncWith) for node in ast.walk(ast.parse(code))):
            asyncio.run(_run_async(newcomer, code, names))
        else:
            _run(newcomer, code, names)
