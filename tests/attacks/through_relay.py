"""Attacks by halves and op markers in team-a's own channel: the relay must not do what its application may not do."""

import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from confluent_kafka import Producer

from outbox._service.exit_codes import Exit
from outbox.operator.commands import skip
from outbox.protocol.names import OPTIONS_HEADER, TARGET_HEADER, TRANSACTION_HEADER
from outbox.protocol.op import OpSource
from tests.attacks.attack import DONE, Attack, By, refusal
from tests.attacks.forging import deliver, discard_at, half, is_visible, send, send_half, send_op
from tests.attacks.teams import CARELESS, Teams
from tests.support.commands import call_command
from tests.support.harness import wait_until
from tests.support.probes import metric

FLOOD = 20_000
MEGABYTE = 1 << 20


def _half(what: str, reason: str, topic: str, by: By = By.RELAY, effect: str = "", **how: Any) -> Attack:
    return Attack(what, by, reason, lambda teams: deliver(teams, topic, **how), effect)


def _spoiled(name: str, value: bytes) -> Callable[[Teams], str]:
    def run(teams: Teams) -> str:
        headers = {**dict(half(teams, teams.a.topics[0]).encode()), name: value}
        return _discarded(teams, list(headers.items()))

    return run


def _discarded(teams: Teams, headers: Sequence[tuple[str, bytes]]) -> str:
    offset = send(teams.a.kafka(), teams.a.site.channel.half_topic, b"forged", b"k", headers)
    return discard_at(teams, offset)


def _huge_headers(teams: Teams) -> str:
    topic = teams.a.site.channel.half_topic
    headers = [(f"h{number}", bytes(MEGABYTE // 8)) for number in range(16)]
    return refusal(lambda: send(teams.a.kafka(), topic, headers=headers, message_max_bytes=16 * MEGABYTE))


def _bomb(teams: Teams) -> str:
    """Send 64 MB of zeros, which are some kilobytes on the line."""
    topic, size = teams.a.site.channel.half_topic, 64 * MEGABYTE
    kafka = {**teams.a.kafka(), "compression.type": "zstd"}
    return refusal(lambda: send(kafka, topic, bytes(size), message_max_bytes=2 * size))


def _claims_rank(teams: Teams) -> str:
    """Claim to be the checker in the op topic: the checker itself then fences the transaction."""
    entry = send_half(teams, teams.a.topics[0])
    before = metric(teams.a.port, "outbox_relay_events_total", kind="op_misplaced")
    send_op(teams, entry, OpSource.CHECKER)
    wait_until(lambda: metric(teams.a.port, "outbox_relay_events_total", kind="op_misplaced") > before)
    wait_until(lambda: teams.a.site.rows().get(entry.transaction_id) == "R", explain=teams.a.site.logs)
    return DONE if is_visible(teams, entry.transaction_id) else "op_misplaced"


def _op_of_another_channel(teams: Teams) -> str:
    entry = send_half(teams, teams.a.topics[0])
    before = metric(teams.a.port, "outbox_relay_events_total", kind="op_foreign")
    send_op(teams, replace(entry, topic_id=teams.b.description.half.id))
    wait_until(lambda: metric(teams.a.port, "outbox_relay_events_total", kind="op_foreign") > before)
    return DONE if is_visible(teams, entry.transaction_id) else "op_foreign"


def _forged_id(teams: Teams) -> str:
    """Give a record the message id of another message, and a late mark."""
    forged = (("outbox-id", b"00000000-0000-7000-8000-000000000000/0"), ("outbox-late", b"x"))
    entry = send_half(teams, teams.a.topics[0], headers=forged)
    send_op(teams, entry)
    wait_until(lambda: is_visible(teams, entry.transaction_id), explain=teams.a.site.logs)
    (record,) = (one for one in teams.observer.on(*teams.a.topics) if one.message_id.startswith(entry.transaction_id))
    return DONE if {value for _, value in record.headers} & {value for _, value in forged} else "stripped"


def _foreign_transaction_id(teams: Teams) -> str:
    """Send a half with the id of a transaction of team-b that is open: team-a's checker fences it, in its own table."""

    def meanwhile(transaction_id: str) -> None:
        send_half(teams, teams.a.topics[0], transaction_id=transaction_id)
        wait_until(lambda: teams.a.site.rows().get(transaction_id) == "R", explain=teams.a.site.logs)

    teams.witness.publish("1000000", meanwhile)
    return "FENCED"


def _other_incarnation(teams: Teams) -> str:
    entry = send_half(teams, teams.a.topics[0], incarnation=str(uuid.uuid4()))
    checker = teams.a.site.services[1]
    wait_until(lambda: "MISMATCH" in checker.output(), explain=teams.a.site.logs)
    return DONE if entry.transaction_id in teams.a.site.rows() else "MISMATCH"


def _flood(teams: Teams) -> str:
    """Leave very many halves undecided; the checker fences them, because no local transaction is behind them."""
    before = _rollback_rows(teams)
    producer = Producer({**teams.a.kafka(), "linger.ms": 20})
    for _ in range(FLOOD):
        headers: dict[str, str | bytes | None] = dict(half(teams, teams.a.topics[0]).encode())
        producer.produce(teams.a.site.channel.half_topic, b"flood", None, 0, headers=headers)
        producer.poll(0)
    assert producer.flush(60) == 0
    wait_until(lambda: _rollback_rows(teams) >= before + FLOOD, 120, teams.a.site.logs)
    return "FENCED"


def _newer_format(teams: Teams) -> str:
    """Send a half of a format that this relay does not read; team-a's operator then passes it by."""
    offset = send(teams.a.kafka(), teams.a.site.channel.half_topic, headers=[(TRANSACTION_HEADER, b"2;x")])
    relay = teams.a.site.services[0]
    wait_until(lambda: "halted" in relay.output(), explain=teams.a.site.logs)
    skipped = ("half/0", "--offset", str(offset), "--reason", "an attack")
    code, printed = call_command(skip.app, teams.a.site, *skipped)
    assert code == Exit.OK, printed
    relay.kill()
    teams.a.start_relay()
    wait_until(lambda: teams.observer.reason_at(teams.a.name, offset) is not None, explain=teams.a.site.logs)
    return DONE


def _rollback_rows(teams: Teams) -> int:
    return list(teams.a.site.rows().values()).count("R")


INTERNAL, FORBIDDEN, PLATFORM, REFUSED = "INTERNAL_TOPIC", "FORBIDDEN", "PLATFORM_TOPIC", "NOT_AUTHORIZED"
TRUST = "a message in that name: applications of one channel trust each other"

THROUGH_RELAY = (
    _half("let its relay write to a real topic of team-b", FORBIDDEN, "team_b.orders"),
    _half("the same, in the name of team-b's service", FORBIDDEN, "team_b.orders", service="team_b-shop"),
    _half(
        "the same, in the name of a service to which the allow-list gives `*`",
        REFUSED,
        "team_b.orders",
        service=CARELESS,
    ),
    *(
        _half(f"let its relay write to `{topic}`, in the name of a service with `*`", reason, topic, service=CARELESS)
        for topic, reason in {
            **dict.fromkeys(("_schemas", "connect-configs", "x-changelog"), PLATFORM),
            **dict.fromkeys(("__consumer_offsets", "__transaction_state"), INTERNAL),
            **{f"team_a.{own}": INTERNAL for own in ("half", "op", "verdict", "check", "discard")},
            **dict.fromkeys(("team_b.half", "team_b.verdict"), REFUSED),
        }.items()
    ),
    _half("name a partition that a topic does not have", "PARTITION_OUT_OF_RANGE", "team_a.orders", partition=99),
    Attack(
        "name a partition beyond 32 bits", By.RELAY, "MALFORMED", _spoiled(TARGET_HEADER, b"team_a.orders:99999999999")
    ),
    Attack("send a half without control headers", By.RELAY, "MALFORMED", lambda teams: _discarded(teams, ())),
    Attack(
        "send a half with an option that no version has", By.RELAY, "MALFORMED", _spoiled(OPTIONS_HEADER, b"trust-me")
    ),
    Attack("send a half with 2 MB of headers", By.KAFKA, "MSG_SIZE_TOO_LARGE", _huge_headers),
    Attack("send a compressed half that unpacks to 64 MB", By.KAFKA, "MSG_SIZE_TOO_LARGE", _bomb),
    Attack("claim the checker's rank in the op topic", By.RELAY, "op_misplaced", _claims_rank),
    Attack("send an op marker for team-b's half topic", By.RELAY, "op_foreign", _op_of_another_channel),
    Attack("give a record the message id of another message", By.RELAY, "stripped", _forged_id),
    Attack(
        "send a half with the id of an open transaction of team-b",
        By.CHECKER,
        "FENCED",
        _foreign_transaction_id,
        "the rollback row is in team-a's own table: team-b's transaction commits and is delivered",
    ),
    Attack(
        "send a half that names another database",
        By.CHECKER,
        "MISMATCH",
        _other_incarnation,
        "it stays undecided in team-a's channel",
    ),
    Attack("leave 20,000 halves undecided in its own channel", By.CHECKER, "FENCED", _flood),
    _half(
        "write to a topic of its own team in the name of another application",
        DONE,
        "team_a.orders",
        By.NOBODY,
        TRUST,
        service=CARELESS,
    ),
    Attack(
        "send a half of a newer format",
        By.NOBODY,
        DONE,
        _newer_format,
        "the half partition of its own channel halts until an operator passes the record by (`outbox skip`)",
    ),
)
