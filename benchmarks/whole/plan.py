"""What a whole run consists of, for each of its sizes. Pure."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

MINUTE = 60.0


class Mode(enum.StrEnum):
    """How much is measured."""

    QUICK = "quick"
    ORDINARY = "ordinary"
    FULL = "full"


BUDGET_SECONDS: Mapping[Mode, float] = {
    Mode.QUICK: 5 * MINUTE,
    Mode.ORDINARY: 80 * MINUTE,
    Mode.FULL: 24 * 60 * MINUTE,
}
"""A step that would begin later is left out; one that runs then is ended."""


@dataclass(frozen=True, slots=True)
class Step:
    """One process of a whole run.

    Args:
        section: Of the report that its figures belong to.
        module: That `python -m` runs.
        longest_seconds: It is ended if it takes longer.
    """

    name: str
    section: str
    module: str
    arguments: tuple[str, ...]
    longest_seconds: float

    @property
    def parts(self) -> set[str]:
        """What of its module is measured."""
        return {value for name, value in pairwise(self.arguments) if name == "--part"}

    @property
    def command(self) -> list[str]:
        """For people, and after the interpreter's path for the system."""
        return ["-m", self.module, *self.arguments]


DEMANDED: Mapping[str, str] = {
    "relay_drain_vs_copy_loop": "relay",
    "relay_drain_vs_polling_relay": "peers-drain",
    "relay_drain_vs_debezium": "peers-drain",
    "commit_to_visible_p50_ms_200": "peers-latency",
    "commit_to_visible_p99_ms_200": "peers-latency",
    "app_tps_vs_no_messaging": "library",
    "app_tps_vs_outbox_insert": "library",
    "app_tps_vs_outbox_insert_100kb": "library",
    "table_app_tps_vs_outbox_insert": "library",
    "table_publish_many_vs_copy": "library",
    "table_drain_vs_polling_relay": "relay",
    "table_drain_vs_debezium": "peers-drain",
    "table_commit_to_visible_p50_ms_200": "peers-latency",
    "table_commit_to_visible_p99_ms_200": "peers-latency",
    "table_commit_to_visible_p99_ms_2000_vs_polling_relay": "peers-latency",
    "busy_channels_drain": "trust",
    "secured_drain_password": "trust",
    "secured_publish_password": "trust",
    "checkback_per_second": "peers-check-back",
    "restart_1000_of_1m_seconds": "restart",
    "land_vs_delta": "spark",
    "audit_rows_per_second_per_core": "spark",
}
"""Figures that every run tells of, if only that they were not measured and why; and the steps that measure them."""

MODES = "modes"
"""Section of the report with the figures of table mode, whichever step measured them."""

WHOLE = "--whole"
NOT_AT_ALL = "a run with FULL=1 measures it"
NOT_ALL = "a run with FULL=1 measures more of it: all sizes, rates and threads"
ALONE = "it has a run of its own"

RUN_ALONE: Mapping[str, tuple[str, ...]] = {
    "library": ("memory",),
    "relay": ("bloat", "channels", "flood", "latency", "stages"),
    "spark": ("large",),
}
"""By section, what no whole run measures: it takes very long, explains another figure, or is another section's too."""


def is_of_modes(figure: str) -> bool:
    """Whether the figure of this name belongs to the section of table mode."""
    return figure.startswith("table_")


def steps(mode: Mode) -> list[Step]:
    """Return the steps of a run, those with demanded figures first."""
    return _STEPS[mode]


@dataclass(frozen=True, slots=True)
class LeftOut:
    """What a run does not measure.

    Args:
        why: Why not, or how much of it not; for people.
    """

    section: str
    part: str
    why: str


def left_out(mode: Mode) -> list[LeftOut]:
    """Return what the benchmarks can measure and this run does not, for its results."""
    measured = _parts(mode)
    return [
        *(
            LeftOut(section, part, NOT_ALL if (section, part) in measured else NOT_AT_ALL)
            for (section, part), whole in _parts(Mode.FULL).items()
            if measured.get((section, part)) not in (whole, True)
        ),
        *(LeftOut(section, part, ALONE) for section, parts in RUN_ALONE.items() for part in parts),
    ]


def _parts(mode: Mode) -> dict[tuple[str, str], bool]:
    """Return what is measured, and whether in all sizes."""
    return {(step.section, part): WHOLE in step.arguments for step in steps(mode) for part in sorted(step.parts)}


def _step(name: str, module: str, arguments: str, minutes: float) -> Step:
    return Step(name, module, f"benchmarks.{module}", tuple(arguments.split()), minutes * MINUTE)


# Five minutes have no room for drains of 100,000, as the other sizes have: filling, draining and counting them three
# times takes over two minutes in either step. Fewer than these are over in a few looks, and tell nothing. Nor is there
# room to start Kafka Connect twice, or for an audit.
_QUICK = [
    _step("library", "library", "--part relayed --part bulk-rows --rounds 3 --seconds 1 --warm-up 3", 2),
    _step("relay", "relay", "--part drain --rounds 3 --messages 40000 --warm-up 3", 2),
    _step(
        "peers-drain",
        "peers",
        "--part drain --messages 30000 --warm-up 3 --without debezium_default --without debezium_tuned",
        3,
    ),
    _step(
        "peers-latency",
        "peers",
        "--part latency --seconds 3 --warm-up 3 --without debezium_default --without polling --without rocketmq",
        3,
    ),
    _step("spark", "spark", "--part land --rounds 3 --records 50000", 2),
]

_ORDINARY = [
    _step(
        "library",
        "library",
        "--part relayed --part drivers --part throughput --part added-time --part bulk --part bulk-rows --rounds 5"
        " --count 1000 --seconds 1.5",
        9,
    ),
    _step("relay", "relay", "--part drain --part tables --rounds 5", 12),
    _step("peers-drain", "peers", "--part drain --rounds 5", 12),
    _step("peers-latency", "peers", "--part latency --seconds 5 --rounds 5", 15),
    _step(
        "trust", "relay", "--part busy-channels --part secured --rounds 3 --messages 40000 --seconds 2 --warm-up 3", 8
    ),
    _step("peers-check-back", "peers", "--part check-back", 10),
    _step(
        "spark",
        "spark",
        "--part land --part small --part current --part sink --part audit --rounds 3 --records 500000"
        " --transactions 200000",
        20,
    ),
    _step("restart", "relay", "--part restore --rounds 3 --warm-up 3", 6),
    _step("peers-death", "peers", "--part death --messages 60000 --rounds 5", 15),
    _step("peers-share", "peers", "--part share --count 300 --rounds 5", 10),
    _step("peers-cost", "peers", "--part cost", 6),
    _step(
        "checker",
        "checker",
        "--part fence --part open-transaction --part purge --part purge-latency --rounds 3 --rows 100000 --warm-up 5",
        6,
    ),
]

_FULL = [
    _step(
        "library",
        "library",
        "--part relayed --part drivers --part throughput --part added-time --part bulk --part bulk-rows",
        60,
    ),
    _step("relay", "relay", "--part drain --part tables --part pending --part dead-service --part memory", 60),
    _step("peers-drain", "peers", "--part drain --whole", 180),
    _step("peers-latency", "peers", "--part latency --whole --seconds 15", 180),
    _step("trust", "relay", "--part busy-channels --part secured", 60),
    _step("peers-check-back", "peers", "--part check-back --whole", 60),
    _step("spark", "spark", "--part land --part small --part current --part sink --part audit --part cold", 150),
    _step("restart", "relay", "--part restore", 20),
    _step("peers-death", "peers", "--part death", 60),
    _step("peers-share", "peers", "--part share --whole", 180),
    _step("peers-cost", "peers", "--part cost", 20),
    _step("growth", "relay", "--part growth --part restore-many --rounds 3", 180),
    _step(
        "checker",
        "checker",
        "--part fence --part open-transaction --part purge --part purge-latency --part purge-size --part audit",
        60,
    ),
]

# Ordinary runs have an hour, so steps run a little shorter than in a full run.
_STEPS = {Mode.QUICK: _QUICK, Mode.ORDINARY: _ORDINARY, Mode.FULL: _FULL}
