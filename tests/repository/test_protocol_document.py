"""The specification in `docs/protocol.md` says what the code does."""

import re
from collections.abc import Mapping
from dataclasses import fields

import pytest

from checker.fencing import callback_rows, fence
from checker.rules import breaker
from checker.rules.verdicts import CONSEQUENCES, NEEDS_SOMEBODY
from outbox.protocol import checkpoint, names, op
from outbox.protocol.discard import DiscardReason
from outbox.protocol.half import HalfOptions
from outbox.protocol.names import Channel
from outbox.protocol.op import OpKind, OpSource
from outbox.protocol.positions import MAX_POSITION
from relay.delivery.rules.preflight import PASSING
from relay.delivery.rules.topic_gate import GatePolicy
from relay.half.ledger.op_decisions import EARLY_OPS
from relay.half.state.check_schedule import CheckPolicy
from relay.half.state.message_transaction import TRANSITIONS
from relay.half.state.parking import DEFAULT, RELIEF
from tests.support.protocol_documents import CHECKS, ENVELOPES, MANIFESTS, ROW, SPECIFICATION

TEXT = SPECIFICATION.read_text(encoding="utf-8")


def tables(heading: str) -> list[list[list[str]]]:
    """The tables under a heading, as rows of cells, without their first two lines."""
    (section,) = re.findall(rf"^##+ {re.escape(heading)}\n(.*?)(?=^##|\Z)", TEXT, re.DOTALL | re.MULTILINE)
    blocks = re.findall(r"(?:^\|.*\n)+", section, re.MULTILINE)
    return [[[cell.strip() for cell in line.split("|")[1:-1]] for line in block.splitlines()[2:]] for block in blocks]


def literals(cells: list[str]) -> list[str]:
    return [found for cell in cells for found in re.findall(r"`([^`]+)`", cell)]


def column(table: list[list[str]], number: int) -> list[str]:
    return [row[number] for row in table]


def test_the_table_of_transitions_is_that_of_the_relay() -> None:
    (table,) = tables("What happens to a transaction")
    assert [tuple(row[:3]) for row in table] == [
        (str(state), str(event), str(new)) for (state, event), new in TRANSITIONS.items()
    ]


def test_the_table_of_verdicts_is_that_of_the_checker() -> None:
    table, _ = tables("Verdicts of the checker")
    assert [tuple(row[:3]) for row in table] == [
        (str(verdict), str(kind) if kind else "none", "yes" if verdict in NEEDS_SOMEBODY else "no")
        for verdict, kind in CONSEQUENCES.items()
    ]


def test_the_table_of_the_circuit_breaker_is_that_of_the_checker() -> None:
    _, table = tables("Verdicts of the checker")
    assert [tuple(row) for row in table] == [
        (str(state), str(event), str(new)) for (state, event), new in breaker.TRANSITIONS.items()
    ]


def test_the_table_of_topics_names_all_topics_and_their_clean_up() -> None:
    topics, derived = tables("Topics")
    channel = Channel("x")
    assert {row[0].replace("*channel*", "x").replace("`", "") for row in topics} == set(channel.topics)
    example = {"*channel*": "x", "*service*": "orders", "*n*": "7", "`": ""}
    assert [_replaced(row[0], example) for row in derived] == [
        channel.relay_group,
        channel.checker_group,
        channel.listener_group("orders"),
        channel.transactional_id(7),
    ]


def _replaced(text: str, pairs: Mapping[str, str]) -> str:
    for old, new in pairs.items():
        text = text.replace(old, new)
    return text


def test_the_table_of_headers_names_all_headers() -> None:
    (table,) = tables("Headers")
    known = {value for name, value in vars(names).items() if name.endswith("_HEADER")}
    assert set(literals(column(table, 0))) == known
    assert all(name.startswith(names.HEADER_PREFIX) for name in known)


def test_the_table_of_options_names_all_options() -> None:
    (table,) = tables("Half message")
    assert {*literals(column(table, 0))} == {*(field.name for field in fields(HalfOptions)), "unordered"}


def test_kinds_and_sources_of_ops_are_named() -> None:
    (table,) = tables("Op record")
    assert literals([table[0][1]]) == [str(kind) for kind in OpKind]
    source = next(row for row in tables("Headers")[0] if row[0] == "`outbox-op`")
    assert literals([source[2]])[1:] == [str(source) for source in OpSource]


def test_the_table_of_reasons_names_all_reasons() -> None:
    _, reasons = tables("Discarded transaction")
    assert column(reasons, 0) == [str(reason) for reason in DiscardReason]


def test_the_table_of_reasons_says_which_may_pass() -> None:
    _, reasons = tables("Discarded transaction")
    assert {row[0] for row in reasons if row[2] == "yes"} == {str(reason) for reason in PASSING}
    assert {row[2] for row in reasons} == {"yes", "final", "goes on being looked up"}


def test_the_waiting_is_told_as_it_is() -> None:
    (section,) = re.findall(r"^## Waiting for a real topic\n(.*?)^## ", TEXT, re.DOTALL | re.MULTILINE)
    policy = GatePolicy()
    first, longest = policy.pause, policy.pause_max // 1_000
    told = f"again after {first} ms, {2 * first} ms, and so on, twice as long each time up to {longest} s"
    assert told in section
    assert f"for {policy.max_age // 1_000} s (`topic_missing_max_age_ms`)" in section


@pytest.mark.parametrize(
    ("heading", "written"),
    [
        ("Check request", CHECKS["row"].encode()),
        ("Envelope", ENVELOPES["message"].encode()),
        ("Discarded transaction", MANIFESTS["incomplete"].encode()),
    ],
)
def test_the_fields_of_a_json_record_are_those_that_are_written(heading: str, written: bytes) -> None:
    told = literals(column(tables(heading)[0], 0))
    assert told == re.findall(r'(?<=[{,])"(\w+)":', re.sub(r"\[.*\]", "", written.decode()))


def test_the_columns_of_the_callback_row_are_those_that_are_inserted() -> None:
    (table,) = tables("Callback row")
    assert set(literals(column(table, 0))) == {*(field.name for field in fields(ROW)), "state", "created_at"}


@pytest.mark.parametrize(
    "figure",
    [
        f"0 to {MAX_POSITION:,}",
        f"at most {checkpoint.MAX_LENGTH:,} characters",
        f"at most {checkpoint.MAX_SPAN:,} offsets",
        f"within {checkpoint.WINDOW:,} offsets",
        f"within {checkpoint.FAR:,} offsets while at most {checkpoint.FEW} runs",
        f"at most {op.MAX_REASON:,} characters",
        f"At most {EARLY_OPS:,} are kept",
        f"{DEFAULT.check_max} of its checks were answered UNKNOWN",
        f"within {DEFAULT.undecided_max_age_ms // 3_600_000} hours",
        f"at {RELIEF:.0%} of the limit".replace("%", " %"),
        f"after {CheckPolicy().check_interval_ms // 1000} s, {2 * CheckPolicy().check_interval_ms // 1000} s",
        f"twice as long each time up to {CheckPolicy().check_interval_max_ms // 60_000} minutes",
        f"At most `breaker_limit` ({breaker.Policy().limit}) transactions",
        f"After {breaker.Policy().pause:.0f} s a probe of {breaker.PROBE} transactions",
        f"a wait of {callback_rows.WAIT_MS} ms",
        f"split in two and repeated for {fence.PATIENCE_SECONDS:.0f} s",
    ],
)
def test_figures_are_those_of_the_code(figure: str) -> None:
    assert figure in " ".join(TEXT.split())
