"""The tables of the documents that the code gives: settings, metrics, rights, licences. `make tables` writes them."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType

from prometheus_client.metrics import MetricWrapperBase

import checker.metrics
import relay.metrics
import spark_jobs.landing.metrics
from checker.settings import CheckerSettings
from outbox._cli.setting_options import DescribedSetting, describe_settings
from outbox._kafka.topic_contract import STOPS, WARNS, Rule
from outbox._postgres.callback_table import CallbackTable
from outbox._postgres.ddl import Grant
from outbox._postgres.inbox_table import InboxTable
from outbox._postgres.message_table import MessageTable
from outbox._postgres.sink_tables import SinkTables
from outbox._postgres.table_contract import CONTRACT, Table
from outbox._rules.role_rights import NEEDS, Need, Role
from outbox._service.exit_codes import Exit
from outbox._settings.declared import CheckerDatabase, ServiceFields, TableSettings
from outbox._settings.layers import LayeredSettings
from outbox._settings.of_jobs import LandSettings
from outbox.operator.commands.init import KUBERNETES, Migration, files
from outbox.settings import TableNames
from relay.settings import RelaySettings
from spark_jobs.auditing.settings import AuditSettings
from tests.attacks.attack import Attack
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
    return {path: path.read_text() for path in PAGES}


def _start(name: str) -> str:
    return f"<!-- table: {name} -->\n"


def filled_place(text: str, name: str, content: str) -> str:
    start = _start(name)
    before, found, rest = text.partition(start)
    _, end, after = rest.partition(END)
    if not found or not end or start in after:
        raise ValueError(f"the document must have one place for the table {name!r}")
    return before + start + content + END + after


def _tables() -> dict[str, str]:
    common = {setting.name for setting in describe_settings(ServiceFields)}
    of_table = {setting.name for setting in describe_settings(TableSettings)}
    jobs = _common(LandSettings, AuditSettings)
    of_checker = {setting.name for setting in describe_settings(CheckerSettings)}
    services = {one._name for one in metrics_of(relay.metrics)} & {one._name for one in metrics_of(checker.metrics)}
    return {
        "exit codes": _table(("code", "name", "means"), ((str(int(code)), code.name, code.meaning) for code in Exit)),
        "contract": _table(("rule", "a running service"), _rules()),
        "contract of the tables": _table(("a table must be or have", "which", "else"), _conditions()),
        "rights in Kafka": "\n".join(f"### {role}\n\n{_rights(role)}" for role in Role),
        "rights in Postgres": _grants(),
        "settings of both": _settings(describe_settings(ServiceFields)),
        "settings of the relay": _settings(row for row in describe_settings(RelaySettings) if row.name not in common),
        "settings of a table source": _settings_of_a_table(describe_settings(TableSettings)),
        "settings of a database": _settings_of_a_table(
            row for row in describe_settings(CheckerDatabase) if row.name not in of_checker | of_table
        ),
        "settings of the checker": _settings(
            row for row in describe_settings(CheckerSettings) if row.name not in common | of_table
        ),
        "settings of the jobs": _settings(row for row in describe_settings(LandSettings) if row.name in jobs - common),
        "settings of land": _settings(row for row in describe_settings(LandSettings) if row.name not in jobs),
        "settings of the audit": _settings(
            row for row in describe_settings(AuditSettings) if row.name not in jobs | of_checker
        ),
        "metrics of both services": _metrics(one for one in metrics_of(relay.metrics) if one._name in services),
        "metrics of the relay": _metrics(one for one in metrics_of(relay.metrics) if one._name not in services),
        "metrics of the checker": _metrics(one for one in metrics_of(checker.metrics) if one._name not in services),
        "metrics of land": _metrics(metrics_of(spark_jobs.landing.metrics)),
        "attacks": _attacks(),
        "bytes of Debezium": _table(("part", "converter", "column", "Debezium", "relay"), documented()),
        "relay in Kubernetes": f"```yaml\n{files('shop', ['orders'], 'kafka:9092', Migration.SQL)[KUBERNETES]}```\n",
        "licences": _table(("package", "version", "licence"), licences()),
    }


def _common(*types: type[LayeredSettings]) -> set[str]:
    return set.intersection(*({row.name for row in describe_settings(each)} for each in types))


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _rules() -> Iterator[tuple[str, str]]:
    others = [rule for rule in Rule if rule not in {*STOPS, *WARNS}]
    for rules, effect in ((STOPS, "stops (`UNSAFE`)"), (others, "goes on, not ready"), (WARNS, WARNED)):
        yield ", ".join(f"`{rule}`" for rule in Rule if rule in rules), effect


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
    needs = NEEDS[role]
    if base := {Role.OPERATOR: Role.VIEWER, Role.RELAY: Role.TABLE_RELAY}.get(role):
        meaning += f"Besides the rights of `{base}`{', without `<channel>.progress`' * (role is Role.RELAY)}:\n\n"
        needs = tuple(need for need in needs if need not in NEEDS[base])
    names: defaultdict[tuple[str, str, str], list[str]] = defaultdict(list)
    for need in needs:
        names[str(need.kind), ", ".join(need.operations), need.otherwise].append(_resource(need))
    rows = ((kind, ", ".join(found), operations, otherwise) for (kind, operations, otherwise), found in names.items())
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
        "viewer": (callbacks.viewer_grant("r"), messages.viewer_grant("r")),
        "checker": (callbacks.checker_grant("r"), messages.checker_grant("r")),
        "executor": (SinkTables(names).executor_grant("r"),),
        "driver": (SinkTables(names).driver_grant("r"),),
        "consumer": (inbox.consumer_grant("r"),),
    }
    tables: dict[tuple[str, str], list[str]] = defaultdict(list)
    for option, grants in options.items():
        for table, privileges in ((table, right) for grant in grants for table, right in grant.rights.items()):
            tables[f"`--{option}-role`", ", ".join(privileges)].append(f"`{table}`")
    rows = ((option, ", ".join(tables), privileges) for (option, privileges), tables in tables.items())
    return _table(("option", "table", "privileges"), rows)


def _attacks() -> str:
    """How many attacks of each kind there are and what stops them, and those that have an effect all the same."""
    counts = ((kind, _stopped(attacks)) for kind, attacks in ATTACKS.items())
    table = _table(("attacks", "stopped by"), counts)
    effects = (line for attacks in ATTACKS.values() for line in lines(attacks))
    return f"{table}\n{_table(('attack', 'stopped by', 'what it does all the same'), effects)}"


def _stopped(attacks: Sequence[Attack]) -> str:
    return ", ".join(f"{by}: {number}" for by, number in Counter(str(one.by) for one in attacks).items())


def _settings(settings: Iterable[DescribedSetting]) -> str:
    rows = ((setting_names(row), row.default, row.unit, row.text.replace("|", "\\|")) for row in settings)
    return _table(("setting", "default", "unit or words", "meaning"), rows)


def setting_names(row: DescribedSetting) -> str:
    """The name in the file, with the names as an option and in the environment that do not follow from it."""
    option, variable = f"--{row.name.replace('_', '-')}", f"OUTBOX_{row.name.upper()}"
    others = [name for name, usual in ((row.option, option), (row.variable, variable)) if name not in {"", usual}]
    return ", ".join(f"`{name}`" for name in (row.name, *others))


def _settings_of_a_table(settings: Iterable[DescribedSetting]) -> str:
    rows = ((f"`{row.name}`", row.default, row.unit, row.text) for row in settings)
    return _table(("in the file", "default", "unit or words", "meaning"), rows)


def metrics_of(module: ModuleType) -> list[MetricWrapperBase]:
    if "TABLE" in vars(module):
        return list(module.TABLE.metrics())
    return [found for found in vars(module).values() if isinstance(found, MetricWrapperBase)]


def exposed(metric: MetricWrapperBase) -> str:
    """The name by which a metric is queried; a histogram has `_bucket`, `_sum` and `_count` behind it."""
    return f"{metric._name}_total" if metric._type == "counter" else metric._name


def _metrics(metrics: Iterable[MetricWrapperBase]) -> str:
    rows = (
        (
            f"`{exposed(metric)}`",
            ", ".join([str(metric._type), *(name for name in metric._labelnames if name != "channel")]),
            re.sub(r"\bR\d+\b", r"[\g<0>](../reliability.md#the-rules)", metric._documentation),
        )
        for metric in metrics
    )
    return _table(("metric", "type, labels", "is"), rows)


if __name__ == "__main__":
    for page, content in filled(read()).items():
        page.write_text(content)
