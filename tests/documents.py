"""The tables of the documents that the code gives: settings, metrics, rights, licences. `make tables` writes them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType

from prometheus_client.metrics import MetricWrapperBase

import checker.metrics
import relay.metrics
import spark_jobs.landing.metrics
from checker.settings import CheckerSettings
from outbox._kafka.topic_contract import STOPS, WARNS, Rule
from outbox._postgres.callback_table import CallbackTable
from outbox._postgres.ddl import Grant
from outbox._postgres.inbox_table import InboxTable
from outbox._postgres.message_table import MessageTable
from outbox._postgres.table_contract import CONTRACT, Table
from outbox._rules.role_rights import NEEDS, Need, Role
from outbox._service.exit_codes import Exit
from outbox._service.settings import ServiceSettings, TableSettings
from outbox._service.settings_help import DescribedSetting, describe_field, describe_settings
from outbox.settings import TableNames
from relay.settings import RelaySettings
from spark_jobs.auditing.settings import AuditSettings
from spark_jobs.replaying.settings import ReplaySettings
from spark_jobs.runtime.settings import CompactSettings, LandSettings
from tests.attacks.catalogue import ATTACKS, lines
from tests.licences import licences
from tests.support.debezium_cases import documented

END = "<!-- end of table -->"
WARNED = "goes on; `doctor` and `--check` warn"
DOCS = Path(__file__).parents[1] / "docs"
PAGES = sorted(
    path for folder in ("migrate", "operations", "reference", "spark") for path in (DOCS / folder).glob("*.md")
)


def filled(pages: Mapping[Path, str]) -> dict[Path, str]:
    """Pages with their tables as they must be; each table is on one page."""
    made = dict(pages)
    for name, table in _tables().items():
        found = [path for path, text in made.items() if _start(name) in text]
        if len(found) != 1:
            raise ValueError(f"{len(found)} pages have a place for the table {name!r}")
        made[found[0]] = filled_place(made[found[0]], name, table)
    return made


def read() -> dict[Path, str]:
    """The pages as they are."""
    return {path: path.read_text() for path in PAGES}


def _start(name: str) -> str:
    return f"<!-- table: {name} -->\n"


def filled_place(text: str, name: str, content: str) -> str:
    """A document with the one place of this name filled."""
    start = _start(name)
    before, found, rest = text.partition(start)
    _, end, after = rest.partition(END)
    if not found or not end or start in after:
        raise ValueError(f"the document must have one place for the table {name!r}")
    return before + start + content + END + after


def _tables() -> dict[str, str]:
    common = {setting.name for setting in describe_settings(ServiceSettings)}
    landed = {setting.name for setting in describe_settings(LandSettings)}
    return {
        "exit codes": _table(("code", "name", "means"), ((str(int(code)), code.name, code.meaning) for code in Exit)),
        "contract": _table(("rule", "a running service"), _rules()),
        "contract of the tables": _table(("a table must be or have", "which", "else"), _conditions()),
        "rights in Kafka": "\n".join(f"### {role}\n\n{_rights(role)}" for role in Role),
        "rights in Postgres": _grants(),
        "settings of both": _settings(describe_settings(ServiceSettings)),
        "settings of the relay": _settings(row for row in describe_settings(RelaySettings) if row.name not in common),
        "settings of a table source": _table(
            ("in the file", "default", "unit or words", "meaning"), _settings_of_a_table_source()
        ),
        "settings of the checker": _settings(
            row for row in describe_settings(CheckerSettings) if row.name not in common
        ),
        "settings of land": _settings(describe_settings(LandSettings)),
        "settings of compact": _settings(row for row in describe_settings(CompactSettings) if row.name not in landed),
        "settings of the audit": _settings(describe_settings(AuditSettings)),
        "settings of the replay": _settings(describe_settings(ReplaySettings)),
        "metrics of the relay": _metrics(relay.metrics),
        "metrics of the checker": _metrics(checker.metrics),
        "metrics of land": _metrics(spark_jobs.landing.metrics),
        "attacks": _attacks(),
        "bytes of Debezium": _table(("part", "converter", "column", "Debezium", "relay"), documented()),
        "licences": _table(("package", "version", "licence"), licences()),
    }


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _rules() -> Iterator[tuple[str, str]]:
    for rule in Rule:
        yield f"`{rule}`", "stops (`UNSAFE`)" if rule in STOPS else WARNED if rule in WARNS else "goes on, not ready"


def _conditions() -> Iterator[tuple[str, str, str]]:
    for condition in CONTRACT:
        named = [str(table) for table in Table if table in condition.tables]
        others = [str(table) for table in Table if table not in condition.tables]
        which = (
            "all" if not others else f"all but: {', '.join(others)}" if len(others) < len(named) else ", ".join(named)
        )
        yield condition.name, which, condition.harm


def _rights(role: Role) -> str:
    meaning = f"{role.meaning[0].upper()}{role.meaning[1:]}.\n\n"
    if not NEEDS[role]:
        return f"{meaning}It needs no rights in Kafka.\n"
    rows = ((str(need.kind), _resource(need), ", ".join(need.operations), need.otherwise) for need in NEEDS[role])
    return meaning + _table(("on", "name", "operations", "without it"), rows)


def _resource(need: Need) -> str:
    """The name of a resource, with `<…>` for what is filled in."""
    name = need.name.replace("{", "<").replace("}", ">").replace("<sibling>", "<topic's sibling>")
    return f"begins with `{name}`" if need.prefixed else f"`{name}`"


def _grants() -> str:
    names = TableNames("public", "outbox")
    callbacks, messages, inbox = CallbackTable(names), MessageTable(names), InboxTable(names)
    options: Mapping[str, tuple[Grant, ...]] = {
        "application": (callbacks.application_grant("r"), messages.application_grant("r")),
        "relay": (messages.relay_grant("r"),),
        "checker": (callbacks.checker_grant("r"), messages.checker_grant("r")),
        "operator": (messages.operator_grant("r"),),
        "consumer": (inbox.consumer_grant("r"),),
        "purger": (inbox.purger_grant("r"),),
    }
    rows = (
        (f"`--{option}-role`", f"`{table}`", ", ".join(privileges))
        for option, grants in options.items()
        for grant in grants
        for table, privileges in grant.rights.items()
    )
    return _table(("option", "table", "privileges"), rows)


def _attacks() -> str:
    head = ("attack", "refused by", "with", "what it does")
    return "\n".join(f"### {kind}\n\n{_table(head, lines(attacks))}" for kind, attacks in ATTACKS.items())


def _settings(settings: Iterable[DescribedSetting]) -> str:
    rows = (
        (
            f"`{row.name}`",
            f"`{row.option}`" if row.option else "none",
            f"`{row.variable}`",
            row.default,
            row.unit,
            row.meaning.replace("|", "\\|"),
        )
        for row in settings
    )
    return _table(("in the file", "option", "in the environment", "default", "unit or words", "meaning"), rows)


def _settings_of_a_table_source() -> Iterator[tuple[str, str, str, str]]:
    for name, field in TableSettings.model_fields.items():
        row = describe_field(name, field)
        yield f"`{field.alias or name}`", row.default, row.unit, row.meaning.replace("|", "\\|")


def metrics_of(module: ModuleType) -> list[MetricWrapperBase]:
    """The metrics of a service or a job."""
    if "TABLE" in vars(module):
        return list(module.TABLE.metrics())
    return [found for found in vars(module).values() if isinstance(found, MetricWrapperBase)]


def exposed(metric: MetricWrapperBase) -> str:
    """The name by which a metric is queried; a histogram has `_bucket`, `_sum` and `_count` behind it."""
    return f"{metric._name}_total" if metric._type == "counter" else metric._name


def _metrics(module: ModuleType) -> str:
    rows = (
        (f"`{exposed(metric)}`", str(metric._type), ", ".join(metric._labelnames), _linked(metric._documentation))
        for metric in metrics_of(module)
    )
    return _table(("metric", "type", "labels", "is"), rows)


def _linked(text: str) -> str:
    """Link each rule number to the document of the rules."""
    return re.sub(r"\bR\d+\b", r"[\g<0>](../reliability.md#the-rules)", text)


if __name__ == "__main__":
    for page, content in filled(read()).items():
        page.write_text(content)
