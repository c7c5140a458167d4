"""What commands print of records is text: no markup, no terminal escapes."""

import ast
import json
from pathlib import Path

import pytest

from outbox._service.output import print_entries, print_json
from outbox.operator import words
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


def test_entries_of_hostile_content_are_printed_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    id_ = "01890a5d-ac96-774b-bcce-b302099a8057"
    found = (HOSTILE, None, Positions.parse("0"), ((0, 0),), 0)
    manifest = Manifest(id_, HOSTILE, Truth.ROW, id_, 0, DiscardReason.TOPIC_MISSING, *found)
    print_entries(words.dead_letters([DiscardedTransaction.of(manifest, 1)], "title"))
    assert_plain(capsys.readouterr().out)


def test_json_with_control_characters_is_ascii(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"service": HOSTILE})
    written = capsys.readouterr().out
    assert written.isascii()
    assert json.loads(written) == {"service": HOSTILE}


def test_commands_print_no_tables_of_rich() -> None:
    """Only the count of records that were read uses its console."""
    own = {"outbox/_service/output.py"}
    used = set()
    for room in ("outbox", "relay", "checker", "spark_jobs"):
        for file in (ROOT / room).rglob("*.py"):
            calls = [node.func for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call)]
            if any(isinstance(call, ast.Name) and call.id == "Console" for call in calls):
                used.add(str(file.relative_to(ROOT)))
    assert used == own
