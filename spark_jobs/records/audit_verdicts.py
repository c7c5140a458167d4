"""The verdicts of an audit, one for each message of the window. Pure."""

import enum
from typing import Self


class Proof(enum.StrEnum):
    """What a verdict means for the proof."""

    PROVEN = "proven"
    FINDING = "finding"
    UNPROVABLE = "unprovable"
    PASSED_OVER = "passed over"


class Verdict(enum.StrEnum):
    """What became of a message; docs/spark/audit.md has the same table."""

    DELIVERED_ONCE = (
        "DELIVERED_ONCE",
        Proof.PROVEN,
        "committed, and visible once: on its topic, unchanged, in order",
    )
    ROLLED_BACK = "ROLLED_BACK", Proof.PROVEN, "not committed, or struck with its savepoint; nowhere visible"
    LATE = "LATE", Proof.PROVEN, "delivered once, but decided after the grace, or by way of the discard topic"
    LOST = "LOST", Proof.FINDING, "committed and settled by the relay, and nothing of its transaction is visible"
    TORN = "TORN", Proof.FINDING, "committed and settled, not visible, while others of its transaction are"
    PHANTOM = "PHANTOM", Proof.FINDING, "visible, although it was never committed"
    DUPLICATE = "DUPLICATE", Proof.FINDING, "committed, and visible more than once"
    WRONG_TARGET = "WRONG_TARGET", Proof.FINDING, "visible on another topic or partition than its half names"
    WRONG_CONTENT = (
        "WRONG_CONTENT",
        Proof.FINDING,
        "visible with another key, value, user header, timestamp, service or origin than its half has",
    )
    REORDERED = "REORDERED", Proof.FINDING, "visible behind a later one of its service and ordering key"
    DANGLING = "DANGLING", Proof.FINDING, "after the grace still undecided, or committed and not delivered yet"
    DISCARDED = (
        "DISCARDED",
        Proof.FINDING,
        "not delivered: it is in the discard topic, was dropped from there, or is in `outbox_discarded`",
    )
    CONTRADICTORY_OPS = (
        "CONTRADICTORY_OPS",
        Proof.FINDING,
        "op markers contradict each other, or the row; what is visible is right",
    )
    OP_WITHOUT_HALF = "OP_WITHOUT_HALF", Proof.FINDING, "an op marker names offsets that hold no half of it"
    ROW_WITHOUT_HALF = "ROW_WITHOUT_HALF", Proof.FINDING, "a committed row lists it, and there is no half of it"
    UNPROVABLE = (
        "UNPROVABLE",
        Proof.UNPROVABLE,
        "what would prove it is not there any more, or was not to be read",
    )
    FOREIGN = (
        "FOREIGN",
        Proof.PASSED_OVER,
        "visible, of a service that has neither a database nor a half in the window: another channel's",
    )

    weight: Proof
    meaning: str

    def __new__(cls, name: str, weight: Proof, meaning: str) -> Self:
        made = str.__new__(cls, name)
        made._value_ = name
        made.weight = weight
        made.meaning = meaning
        return made


REPORTED = tuple(
    verdict for verdict in Verdict if verdict not in {Verdict.DELIVERED_ONCE, Verdict.ROLLED_BACK, Verdict.FOREIGN}
)
"""Verdicts whose messages are in the table of findings, each with its places."""
