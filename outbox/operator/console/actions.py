"""What an operator may decide in the console: a plan that is shown first, and is then carried out with a reason."""

import enum
import shlex
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from outbox._service.output import Entry
from outbox.errors import UsageError
from outbox.operator import words
from outbox.operator.deciding.discarded_places import Choice, Discards
from outbox.operator.deciding.resolution import Resolution
from outbox.operator.settings import DecisionSettings
from outbox.operator.views import OperatorContext
from outbox.protocol.discard import DiscardReason
from outbox.protocol.op import OpKind

WAIT_SECONDS = 5.0  # time for a relay to carry a decision out before the page shows what is still there


class Verb(enum.StrEnum):
    """What is decided: the first two on dead letters, the others on an undecided transaction."""

    DELIVER = "deliver"
    DROP = "drop"
    COMMIT = "commit"
    ROLLBACK = "rollback"


@dataclass(frozen=True)
class Plan:
    """What would happen, and what makes it happen."""

    verb: Verb
    fields: Mapping[str, str]  # on what is decided, for the log
    command: str  # what decides the same on a terminal
    count: int  # transactions that would be decided
    entries: Sequence[Entry]
    make: Callable[[str], Sequence[Entry]]  # carries it out with a reason; returns what has happened


def plan(settings: DecisionSettings, user: str, given: Mapping[str, str]) -> Plan:
    """Look at what a decision would do, on the `id` of a transaction, or `service` and `reason` of dead letters."""
    if given.get("verb") not in {*Verb}:
        raise UsageError(f"Choose one of {', '.join(Verb)}.")
    verb = Verb(given["verb"])
    is_of_dead_letters = verb in {Verb.DELIVER, Verb.DROP}
    target = {name: given[name] for name in ("id", "service", "reason") if given.get(name)}
    if set(target) == {"service", "reason"} and is_of_dead_letters and target["reason"] in DiscardReason.__members__:
        chosen = ["--all", "--service", target["service"], "--reason", target["reason"]]
    elif set(target) == {"id"}:
        chosen = [target["id"]]
    else:
        raise UsageError("Name one transaction, or the service and the reason of dead letters.")
    if is_of_dead_letters:
        count, entries, make = _of_dead_letters(settings, user, verb, target)
        words_ = ["discarded", verb, *chosen, "--comment", "…"]
    else:
        count, entries, make = _of_undecided(settings, user, verb, target["id"])
        words_ = ["resolve", *chosen, f"--{verb}", "--reason", "…"]
    command = shlex.join(["outbox", *words_, "--channel", settings.channel])
    return Plan(verb, target, command, count, list(entries), make)


_Parts = tuple[int, Iterable[Entry], Callable[[str], Sequence[Entry]]]


def _of_dead_letters(settings: DecisionSettings, user: str, verb: Verb, target: Mapping[str, str]) -> _Parts:
    kind = OpKind.DELIVER if verb is Verb.DELIVER else OpKind.ROLLBACK
    places, every = Discards(settings, user), "id" not in target
    reason = DiscardReason(target["reason"]) if every else None
    ids = [] if every else [target["id"]]
    decision = places.decision(Choice(ids, every, target.get("service"), reason), kind)

    def make(comment: str) -> Sequence[Entry]:
        decision.make(comment)
        names = list(decision.new_names())
        decision.wait(WAIT_SECONDS)
        return [*decision.report(), *names]

    unread = [Entry(f"not read: {place}") for place in places.unread()]
    return len(decision.able), [*words.dead_letters(decision.chosen, decision.intention(), kind), *unread], make


def _of_undecided(settings: DecisionSettings, user: str, verb: Verb, id_: str) -> _Parts:
    kind = OpKind.COMMIT if verb is Verb.COMMIT else OpKind.ROLLBACK
    until = time.time_ns() // 1_000_000 - settings.transaction_timeout_ms
    case = Resolution(OperatorContext(settings, user), kind, None, until, id_)
    decisions = list(words.decisions(case.look()))
    able = [Entry(one.consequence(kind)) for one in (case.case,) if one and not one.is_refused]
    return len(able), [*able, *decisions], lambda reason: list(words.decisions(case.look(reason)))
