"""What commands print of records is text: no markup, no terminal escapes."""

import ast
import json
from pathlib import Path

import pytest
from rich.table import Table

from outbox._service.output import PlainConsole, print_json
from outbox.operator.checks.finding import Finding, show_findings
from outbox.operator.commands import discarded
from outbox.operator.state.discarded import DiscardedTransaction
from outbox.protocol.discard import DiscardReason, Manifest
from outbox.protocol.half import Truth
from outbox.protocol.positions import Positions

HOSTILE = "[/red] [orders] \x1b]0;title\x07\x1b[2J \x9b2J \u202ereversed :smile: a[bold]b"
ROOT = Path(__file__).parents[3]


def assert_plain(written: str) -> None:
    assert not any(character in written for character in "\x1b\x07\x9b\u202e")
    for part in ("[/red]", "[orders]", "\\x1b", ":smile:", "a[bold]b"):
        assert part in written


def test_no_remedy_is_cut_at_the_width_of_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    fix = "set it: kafka-configs.sh --alter --topic outbox.half --add-config compression.type=uncompressed"
    with pytest.raises(SystemExit):
        show_findings([Finding("contract: compression", "topic outbox.half stores what producers compress", fix)])
    assert "…" not in capsys.readouterr().out


@pytest.mark.parametrize("place", ["cell", "title", "line"])
def test_console_prints_data_unchanged(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    console = PlainConsole()
    if place == "line":
        console.print(HOSTILE)
    else:
        table = Table("head", title=HOSTILE if place == "title" else None)
        table.add_row(HOSTILE if place == "cell" else "x")
        console.print(table)
    assert_plain(capsys.readouterr().out)


def test_discarded_table_prints_hostile_detail(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    id_ = "01890a5d-ac96-774b-bcce-b302099a8057"
    found = (HOSTILE, None, Positions.parse("0"), ((0, 0),), 0)
    manifest = Manifest(id_, HOSTILE, Truth.ROW, id_, 0, DiscardReason.TOPIC_MISSING, *found)
    discarded._show([DiscardedTransaction.of(manifest)], "title")
    assert_plain(capsys.readouterr().out)


def test_json_with_control_characters_is_ascii(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"service": HOSTILE})
    written = capsys.readouterr().out
    assert written.isascii()
    assert json.loads(written) == {"service": HOSTILE}


def test_commands_print_through_plain_console() -> None:
    """Only the console itself, and the count of records that were read, use rich's own."""
    own = {"outbox/_service/output.py"}
    used = set()
    for room in ("outbox", "relay", "checker", "spark_jobs"):
        for file in (ROOT / room).rglob("*.py"):
            calls = [node.func for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call)]
            if any(isinstance(call, ast.Name) and call.id == "Console" for call in calls):
                used.add(str(file.relative_to(ROOT)))
    assert used == own
