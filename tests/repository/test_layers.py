"""Who may import whom; that the pure core is pure; that a bare `import outbox` needs no extra."""

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = {"outbox", "relay", "checker", "spark_jobs", "stack"}

PURE_CONTRACT = "The pure folders do no I/O"


def _pure_folders() -> list[str]:
    configuration = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = configuration["tool"]["importlinter"]["contracts"]
    (found,) = (contract for contract in contracts if contract["name"] == PURE_CONTRACT)
    return [module.replace(".", "/") for module in found["source_modules"]]


PURE = sorted(path.relative_to(ROOT) for folder in _pure_folders() for path in (ROOT / folder).glob("*.py"))
ALLOWED = {
    *("__future__", "base64", "bisect", "collections", "collections.abc", "dataclasses", "enum"),
    *("functools", "hashlib", "heapq", "itertools", "json", "re"),
    *("shlex", "sys", "typing", "urllib.parse", "uuid", "zlib"),
}
"""What the pure core may import: without the names below it does no I/O, reads no clock and draws no number."""

IMPURE_NAMES = {
    *("open", "print", "input", "exec", "eval", "__import__", "breakpoint"),
    *("uuid1", "uuid4"),
    *("stdin", "stdout", "stderr", "argv", "exit", "modules"),
}

EXTRAS = [
    *("aiokafka", "asyncpg", "confluent_kafka", "django", "greenlet", "opentelemetry", "prometheus_client", "psycopg"),
    *("psycopg_pool", "psycopg2", "pydantic", "pyspark", "pytest", "rich", "structlog", "typer"),
]


def imports(path: Path) -> Iterator[str]:
    """The modules that a module imports when it is run, wherever the statement stands."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    for_types = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if node in for_types:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute here"
            module = node.module or ""
            submodules = [f"{module}.{alias.name}" for alias in node.names]
            found = [name for name in submodules if module_path(name).exists()]
            yield from found or [module]


def module_path(name: str) -> Path:
    return ROOT / Path(*name.split(".")).with_suffix(".py")


@pytest.mark.parametrize("path", PURE, ids=str)
def test_the_pure_core_imports_only_what_is_pure(path: Path) -> None:
    """What it imports of the project is pure in its turn, so this holds for everything behind it."""
    for name in imports(path):
        if name.split(".")[0] in PACKAGES:
            assert module_path(name).relative_to(ROOT) in PURE, f"{path} imports {name}, which is not pure"
        else:
            assert name in ALLOWED, f"{path} imports {name}"


@pytest.mark.parametrize("path", PURE, ids=str)
def test_the_pure_core_calls_nothing_impure(path: Path) -> None:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    attributes = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert not IMPURE_NAMES & (names | attributes)


def test_the_test_of_purity_sees_impurity() -> None:
    assert {"time", "confluent_kafka"} <= set(imports(Path("relay", "half", "serving", "commits.py")))
    assert "confluent_kafka" in set(imports(Path("outbox", "_kafka", "channel.py")))


def test_the_contracts_of_the_layers_are_kept() -> None:
    command = Path(sys.executable).with_name("lint-imports")
    found = subprocess.run([command, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
    assert "0 broken" in found.stdout


BARE = f"""
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {EXTRAS!r}:
            raise ModuleNotFoundError(f"{{name}} is blocked")

sys.meta_path.insert(0, Blocked())
import sqlalchemy.orm

before = {{*sys.modules}}
import outbox

outbox.Outbox
print(*{{*sys.modules}} - before)
import inspect
from unittest.mock import MagicMock

connection = MagicMock(spec=["cursor", "commit"])
connection.cursor().fetchall.return_value = [("7", "700", "1700000000000000")]
message = outbox.TypedTopic("orders").message({{"order": 42}}, key="42")
assert outbox.Outbox("shop").publish(connection, message).position == 7
assert outbox.Inbox("billing").once(connection, "an id")
assert "CREATE TABLE" in outbox.ddl()

def refused(call, extra):
    try:
        call()
    except ImportError as error:
        assert f"kafka-transactional-outbox[{{extra}}]" in str(error)
    else:
        raise AssertionError(f"{{extra}} is not missed")

exec("from outbox import *")
assert {{*outbox.__all__}} == {{name for name, _ in inspect.getmembers(outbox)}}
for name, extra in ("HalfOutbox", "half"), ("AsyncOutbox", "asyncio"), ("AsyncHalfOutbox", "asyncio,half"):
    refused(lambda: getattr(outbox, name), extra)
for module, extra in ("testing", "testing"), ("django", "django"), ("transactional_producer", "half"):
    refused(lambda: __import__(f"outbox.{{module}}"), extra)
refused(lambda: outbox.Inbox("billing").once_async(None, "1").send(None), "asyncio")
refused(lambda: outbox.Inbox("billing").run(None, None, {{}}, "orders"), "confluent-kafka")
refused(lambda: outbox.Inbox("billing").run_async(None, None, {{}}, "orders").send(None), "aiokafka")
assert not {{*{EXTRAS!r}}} & {{*sys.modules}}
"""


@pytest.mark.parametrize(
    ("module", "spared"),
    [
        ("relay.service", {"psycopg", "sqlalchemy"}),
        ("checker.service", {"sqlalchemy"}),
        ("spark_jobs.landing.job", {"psycopg"}),
    ],
)
def test_a_service_starts_without_what_only_applications_need(module: str, spared: set[str]) -> None:
    program = f"import sys, {module}; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert not spared & set(found.stdout.split())


def test_table_mode_needs_no_extra_and_loads_little() -> None:
    found = subprocess.run([sys.executable, "-c", BARE], cwd=ROOT, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    loaded = found.stdout.split()  # besides SQLAlchemy
    assert {name.partition(".")[0] for name in loaded} <= {"outbox", "pkgutil", "unicodedata"}
    assert len(loaded) < 48


def test_half_mode_needs_no_greenlet() -> None:
    program = "import sys, outbox; sys.modules['greenlet'] = None; outbox.HalfOutbox('o', {'bootstrap.servers': 'x'})"
    subprocess.run([sys.executable, "-c", program], check=True)
