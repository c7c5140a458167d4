"""The window of an audit, its spans, its settings, and how its summary ends: what needs no Spark."""

import contextlib
import json
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from outbox._service.exit_codes import Exit
from outbox.errors import ConfigurationError
from outbox.protocol.checkpoint import HalfCheckpoint
from spark_jobs.auditing import cli as audit_cli
from spark_jobs.auditing.report import report
from spark_jobs.auditing.settings import AuditSettings
from spark_jobs.auditing.summary import LATENCIES, ServiceSummary, Summary
from spark_jobs.auditing.window import Inputs, TableProgress, Window, last_window, parse_time, text_of
from spark_jobs.records.audit_verdicts import Verdict
from spark_jobs.runtime.kafka_offsets import source_properties
from spark_jobs.runtime.spans import Checkpoint
from tests.support.proving import TOPIC_ID

HOUR = 3_600_000
DOCUMENT = Path(__file__).parents[3] / "docs/spark/audit.md"


def settings(**given: Any) -> AuditSettings:
    return AuditSettings(**{"bootstrap_servers": "kafka:9092", "output": "audits", **given})


def inputs(**given: Any) -> Inputs:
    return Inputs("outbox", TOPIC_ID, Window(HOUR, 2 * HOUR, 1), **{"halves": {0: (10, 20), 1: (5, 5)}, **given})


@pytest.mark.parametrize(
    "text", ["2026-11-22T05:00:00Z", "2026-11-22T06:00:00+01:00", "2026-11-22 05:00", "1795323600000"]
)
def test_a_time_is_iso_8601_or_milliseconds(text: str) -> None:
    assert text_of(parse_time(text)) == "2026-11-22T05:00:00.000Z"


@pytest.mark.parametrize("text", ["", "yesterday", "-1", "2026-13-01"])
def test_what_is_no_time_is_named(text: str) -> None:
    with pytest.raises(ConfigurationError, match="is no time"):
        parse_time(text)


def test_the_last_window_is_whole_and_closed() -> None:
    now, grace = parse_time("2026-11-22T07:05:00Z"), 600_000
    window = last_window("hour", now, grace)
    assert window.name == "20261122T050000Z-20261122T060000Z"  # that from 6 to 7 has five minutes of grace left
    window.check_closed(now)
    assert last_window("day", now, grace).name == "20261121T000000Z-20261122T000000Z"


@pytest.mark.parametrize(("end", "said"), [(HOUR, "is empty"), (3 * HOUR, "is not closed"), (2 * HOUR, "")])
def test_only_a_closed_window_is_audited(end: int, said: str) -> None:
    window = Window(HOUR, end, 600_000)
    if not said:
        window.check_closed(3 * HOUR)
        return
    with pytest.raises(ConfigurationError, match=said):
        window.check_closed(3 * HOUR)


def test_the_command_ends_with_4_for_a_window_that_is_not_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The window is looked at before Kafka is, and here needs no Spark."""
    monkeypatch.setenv("OUTBOX_POSTGRES_URL", "postgresql://nowhere")
    monkeypatch.setattr(audit_cli, "spark_session", lambda *_: contextlib.nullcontext())
    options = ["--output", "audits", "--bootstrap-servers", "nowhere:1", "--from", "2026-01-01", "--to", "2100-01-01"]
    result = CliRunner().invoke(audit_cli.app, options)
    assert (result.exit_code, "The window is not closed" in result.output) == (Exit.CONFIGURATION, True)


def test_the_report_names_the_source_of_a_message_table() -> None:
    made = inputs(tables={"default": TableProgress("shop", TOPIC_ID, 7)})
    assert "<td>default</td><td>shop</td>" in report(Summary(made, [], []), {})


def test_what_the_checkpoint_does_not_settle_is_unsettled() -> None:
    text = HalfCheckpoint(8, 15, (range(8, 9), range(12, 14))).encode(TOPIC_ID, 0)
    assert inputs(checkpoints={0: Checkpoint(8, text)}).unsettled()[0] == (range(12, 14), range(15, 20))
    beyond = Checkpoint(25, HalfCheckpoint(25, 25).encode(TOPIC_ID, 0))
    assert inputs(checkpoints={0: beyond}).unsettled()[0] == ()


def test_without_a_checkpoint_that_can_be_trusted_nothing_behind_it_is_settled() -> None:
    assert inputs().unsettled() == {0: (range(10, 20),), 1: ()}
    damaged = Checkpoint(12, HalfCheckpoint(13, 13).encode(TOPIC_ID, 0))
    assert inputs(checkpoints={0: damaged}).unsettled()[0] == (range(12, 20),)


def test_a_batch_reads_its_spans_and_nothing_else() -> None:
    options = source_properties({"subscribe": "x", "failOnDataLoss": "true"}, {"orders": {1: (5, 9), 0: (0, 3)}})
    assert {name: json.loads(text) for name, text in options.items()} == {
        "failOnDataLoss": True,
        "assign": {"orders": [0, 1]},
        "startingOffsets": {"orders": {"1": 5, "0": 0}},
        "endingOffsets": {"orders": {"1": 9, "0": 3}},
    }


def test_a_window_has_both_ends_or_none() -> None:
    with pytest.raises(ConfigurationError, match="both --from and --to"):
        settings(window_start="2026-11-22")


def test_databases_are_those_of_the_checkers_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "dsn").write_text("postgresql://b\n")
    config = tmp_path / "outbox.toml"
    config.write_text(
        '[databases.one]\ndsn = "postgresql://a"\nservices = ["shop.*"]\nschema = "our"\nsynchronous_standby = true\n'
        f'[databases.two]\ndsn_file = "{tmp_path}/dsn"\n'
    )
    monkeypatch.setenv("OUTBOX_CONFIG", str(config))
    found = settings().all_databases()
    urls = {name: one.connection_string() for name, one in found.items()}
    assert urls == {"one": "postgresql://a", "two": "postgresql://b"}
    assert found["one"].schema == "our"
    assert "postgresql://a" not in repr(settings())


def test_without_a_database_there_is_no_audit() -> None:
    with pytest.raises(ConfigurationError, match="No database is configured"):
        settings().all_databases()


def summary(verdicts: dict[str, int], **given: Any) -> Summary:
    latencies = {name: [1, 2, 3, 4] if name == LATENCIES[0] else None for name in LATENCIES}
    return Summary(inputs(**given), [], [ServiceSummary("shop", "<orders>", verdicts, latencies)])


@pytest.mark.parametrize(
    ("verdicts", "incomplete", "code"),
    [
        ({"DELIVERED_ONCE": 5, "ROLLED_BACK": 1, "LATE": 1}, {}, Exit.OK),
        ({}, {}, Exit.OK),
        ({"DELIVERED_ONCE": 5, "UNPROVABLE": 1}, {}, Exit.UNPROVABLE),
        ({"DELIVERED_ONCE": 5}, {"orders": "gone"}, Exit.UNPROVABLE),
        ({"DELIVERED_ONCE": 5, "FOREIGN": 1}, {}, Exit.OK),
        ({"LOST": 1, "UNPROVABLE": 1}, {"orders": "gone"}, Exit.FINDINGS),
    ],
)
def test_what_is_certainly_wrong_outweighs_what_cannot_be_known(
    verdicts: dict[str, int], incomplete: dict[str, str], code: Exit
) -> None:
    assert summary(verdicts, incomplete=incomplete).exit_code() is code


def test_the_report_needs_nothing_else_and_is_the_same_each_time() -> None:
    made = summary({"DELIVERED_ONCE": 1_000_000, "LOST": 1}, incomplete={"a&b": "gone"})
    page = report(made, {})
    assert page == report(made, {})
    assert page.count("<svg") == 2
    assert "&lt;orders&gt;" in page
    assert "a&amp;b" in page
    assert "<orders>" not in page
    assert "<script" not in page
    assert "src=" not in page


def test_control_characters_are_shown_and_not_written_into_the_report() -> None:
    page = report(summary({}, checkpoints={0: Checkpoint(1, "a\0\x1b\x9f\tb")}), {})
    assert "a\\x00\\x1b\\x9f\tb" in page
    assert [letter for letter in page if unicodedata.category(letter) == "Cc" and letter not in "\t\n\r\f"] == []


def test_the_document_has_each_verdict_with_its_meaning() -> None:
    text = DOCUMENT.read_text()
    for verdict in Verdict:
        assert f"| `{verdict}` | {verdict.weight} | {verdict.meaning} |" in text
