"""What operators read is what the code does: exit codes, settings, metrics, alerts, runbooks."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml
from prometheus_client import CollectorRegistry

import checker.metrics
import outbox.prometheus
import relay.metrics
import relay.table.row_telemetry
import spark_jobs.landing.metrics
from checker.rules.verdicts import Verdict
from checker.settings import CheckerSettings
from outbox._cli.setting_options import describe_settings
from outbox._settings.layers import LayeredSettings
from outbox._settings.of_jobs import LandSettings, MaintainSettings
from outbox.protocol.discard import DiscardReason
from relay.settings import RelaySettings
from spark_jobs.auditing.settings import AuditSettings
from tests.documents import exposed, filled, metrics_of, read, setting_names

DOCS = Path(__file__).parents[2] / "docs"
TYPES: tuple[type[LayeredSettings], ...] = (
    *(RelaySettings, CheckerSettings, LandSettings, MaintainSettings, AuditSettings),
)

ALERTS = DOCS / "alerts.yml"
RUNBOOKS = DOCS / "operations/alerts.md"
MODULES = (relay.metrics, checker.metrics, spark_jobs.landing.metrics)
LIBRARY = {exposed(metric): metric for metric in outbox.prometheus._metrics(CollectorRegistry())}
METRICS = LIBRARY | {exposed(metric): metric for module in MODULES for metric in metrics_of(module)}


def _rules() -> list[Mapping[str, Any]]:
    groups = yaml.safe_load(ALERTS.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


RULES = _rules()
every_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])


def test_the_tables_for_operators_are_those_of_the_code() -> None:
    pages = read()
    assert filled(pages) == pages, "run `make tables`"


@pytest.mark.parametrize("settings", TYPES)
def test_each_setting_has_a_meaning_and_each_number_a_unit(settings: type[LayeredSettings]) -> None:
    rows = list(describe_settings(settings))
    assert [row.name for row in rows if not row.text] == []
    assert [row.name for row in rows if row.default.isdigit() and not row.unit] == []


@pytest.mark.parametrize("settings", TYPES)
def test_setting_is_in_a_document(settings: type[LayeredSettings]) -> None:
    pages = "".join(read().values())
    for row in describe_settings(settings):
        assert f"| {setting_names(row)} | " in pages


def test_each_metric_has_a_help_text_and_no_label_of_many_values() -> None:
    assert [name for name, metric in METRICS.items() if not metric._documentation] == []
    labels = {label for metric in METRICS.values() for label in metric._labelnames}
    assert labels == {
        *("partition", "kind", "outcome", "reason", "source", "cause", "topic", "rule", "verdict"),
        *("channel", "database", "state", "program"),
        *("service", "truth", "work", "output"),
    }


def test_a_partition_that_is_given_up_leaves_no_figure_behind() -> None:
    number, waiting = "4711", [metric for metric in metrics_of(relay.metrics) if "partition" in metric._labelnames]
    assert waiting
    for metric in waiting:
        labels = [number if label == "partition" else "any" for label in metric._labelnames[1:]]
        metric.labels(*labels).set(1)  # type: ignore[attr-defined]  # they are gauges
    relay.metrics.forget(int(number))
    samples = [sample for metric in relay.metrics.TABLE.registry.collect() for sample in metric.samples]
    assert [sample.name for sample in samples if sample.labels.get("partition") == number] == []


def test_a_table_that_is_not_looked_at_leaves_no_figure_behind() -> None:
    relay.table.row_telemetry.table_figures("given-up", (1.0, 2.0, 3, 4, 5, 6))
    assert [metric for metric in _samples_of("given-up") if metric == "outbox_relay_table_rows"]
    relay.table.row_telemetry.forget_table("given-up")
    assert _samples_of("given-up") == []


def _samples_of(source: str) -> list[str]:
    samples = [sample for metric in relay.metrics.TABLE.registry.collect() for sample in metric.samples]
    return [sample.name for sample in samples if sample.labels.get("source") == source]


def _selectors(rule: Mapping[str, Any]) -> Iterator[tuple[str, set[str]]]:
    """The metrics of an alert's expression, with the labels by which they are selected."""
    promql_parser.parse(rule["expr"])
    for name, selector in re.findall(r"\b(outbox_\w+)(?:\{([^}]*)\})?", rule["expr"]):
        yield name, set(re.findall(r"(\w+)=", selector))


@every_rule
def test_an_alert_is_about_metrics_and_labels_that_exist(rule: Mapping[str, Any]) -> None:
    found = list(_selectors(rule))
    assert found
    for name, labels in found:
        metric = METRICS.get(name) or METRICS[re.sub(r"_(bucket|sum|count)$", "", name)]
        assert labels <= set(metric._labelnames)


@every_rule
def test_an_alert_is_about_one_channel(rule: Mapping[str, Any]) -> None:
    """Each aggregation of figures of relay and checker keeps the label."""
    if not any(name in rule["expr"] for name in {*LIBRARY, "outbox_land_"}):
        aggregations = re.findall(r"\b(?:sum|max|min)\b ?(.{0,12})", rule["expr"])
        assert [found for found in aggregations if not found.startswith("by (channel")] == []
        assert "vector(" not in rule["expr"]


@every_rule
def test_an_alert_says_what_is_the_matter_and_where_its_runbook_is(rule: Mapping[str, Any]) -> None:
    assert rule["labels"]["severity"] in {"critical", "warning"}
    assert rule["annotations"]["summary"]
    assert rule["annotations"]["runbook"] == f"docs/operations/alerts.md#{rule['alert'].lower()}"
    (section,) = re.findall(rf"^## {rule['alert']}\n(.*?)(?=^##|\Z)", RUNBOOKS.read_text(), re.MULTILINE | re.DOTALL)
    assert re.findall(r"^- \*\*(.+?):\*\* \S", section, re.MULTILINE) == ["Means", "Look at", "Do"]


def test_each_runbook_is_of_an_alert() -> None:
    sections = re.findall(r"^## (Outbox\w+)$", RUNBOOKS.read_text(), re.MULTILINE)
    assert sections == [rule["alert"] for rule in RULES]
    assert len(set(sections)) == len(sections)


@pytest.mark.parametrize("name", [*DiscardReason, *Verdict])
def test_each_discard_reason_and_each_verdict_says_what_to_do(name: str) -> None:
    assert re.search(rf"^\| {name} \| .*\w", "".join(read().values()), re.MULTILINE)


def test_a_wrong_expression_or_metric_is_found() -> None:
    with pytest.raises(ValueError, match="paren"):
        list(_selectors({"expr": "sum(outbox_relay_lag"}))
    with pytest.raises(KeyError):
        test_an_alert_is_about_metrics_and_labels_that_exist({"expr": "outbox_relay_no_such_metric > 0"})
