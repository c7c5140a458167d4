"""The pytest plugin as a user has it: a project in a folder of its own, its tests run by pytest itself."""

import subprocess
import sys

import pytest

from outbox.errors import UsageError
from outbox.testing import read_committed
from tests.repository.test_layers import EXTRAS
from tests.support.servers import Servers

pytest_plugins = ["pytester"]


@pytest.fixture(autouse=True)
def _turned_on(pytester: pytest.Pytester) -> None:
    """Let the project name the plugin: it is opt-in."""
    pytester.makeconftest('pytest_plugins = ["outbox.testing.plugin"]')


def test_the_plugin_is_there_and_imports_nothing_but_the_library(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest_subprocess("--fixtures", timeout=60)
    result.stdout.fnmatch_lines(["*in_memory_outbox*", "*outbox_stack [[]session scope[]]*"])
    own = {"pytest", "confluent_kafka", "psycopg"}  # what its extra brings
    blocked = [*(set(EXTRAS) - own), "stack", "relay", "checker", "spark_jobs", "aiosqlite"]
    code = f"import sys, outbox.testing.plugin; print([name for name in {blocked!r} if name in sys.modules])"
    seen = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert seen.stdout.strip() == "[]"


def test_unit_tests_with_an_outbox_in_memory(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import asyncio

        from sqlalchemy import create_engine
        from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
        from sqlalchemy.orm import Session

        from outbox import Message
        from outbox.testing import assert_published


        def test_a_session(in_memory_outbox):
            with Session(create_engine("sqlite://")) as session, session.begin():
                in_memory_outbox.publish(session, Message("orders", b"{}", b"42"))
            assert_published(in_memory_outbox, "orders", key="42", value={}, count=1)


        def test_that_nothing_is_left_of_another_test(in_memory_outbox):
            assert in_memory_outbox.published == []


        def test_asyncio(in_memory_async_outbox, in_memory_outbox):
            async def body():
                engine = create_async_engine("sqlite+aiosqlite://")
                async with AsyncSession(engine) as session, session.begin():
                    await in_memory_async_outbox.publish(session, Message("orders", "async"))
                await engine.dispose()

            asyncio.run(body())
            assert_published(in_memory_async_outbox, "orders", value="async")
            assert in_memory_async_outbox.published == in_memory_outbox.published != []


        def test_that_fails(in_memory_outbox):
            with Session(create_engine("sqlite://")) as session, session.begin():
                in_memory_outbox.publish(session, Message("orders", "created", "41", {"type": "order"}))
            assert_published(in_memory_outbox, "orders", value="created", key="42", headers={"type": "order"})
        """
    )
    result = pytester.runpytest_subprocess(timeout=60)
    result.assert_outcomes(passed=3, failed=1)
    result.stdout.fnmatch_lines(
        [
            "E*at least one message on topic 'orders' with value 'created', key b'42', header 'type': b'order' exp*",
            "E*messages published in total: 1",
            "E*'orders' value b'created' key b'41' headers {'type': b'order'}: different key",
        ]
    )


@pytest.mark.long
def test_the_stack_is_started_for_a_session(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import psycopg

        from outbox.testing import read_committed


        def test_servers(outbox_stack):
            with psycopg.connect(outbox_stack.postgres_url) as connection:
                assert connection.execute("SELECT 1").fetchone() == (1,)
            assert read_committed({"bootstrap.servers": outbox_stack.bootstrap_servers}, []) == []
        """
    )
    pytester.runpytest_subprocess(timeout=240).assert_outcomes(passed=1)


def test_a_topic_that_does_not_exist_is_no_empty_one(servers: Servers) -> None:
    with pytest.raises(UsageError, match="Topic 'nowhere' does not exist"):
        read_committed({"bootstrap.servers": servers.bootstrap_servers}, ["nowhere"])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere", "*UsageError: Stack 'nowhere' does not exist. Choose one of environment, stack, or pip install*"),
        ("environment", "*UsageError: OUTBOX_BOOTSTRAP_SERVERS is not set. Run `outbox stack up`*"),
    ],
)
@pytest.mark.long
def test_absent_servers(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, name: str, message: str) -> None:
    monkeypatch.delenv("OUTBOX_BOOTSTRAP_SERVERS", raising=False)
    pytester.makepyfile("def test_servers(outbox_stack): pass")
    result = pytester.runpytest_subprocess(f"--outbox-stack={name}", timeout=60)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([f"E*{message}"])
