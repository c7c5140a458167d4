"""What has become slower between two whole runs. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ALLOWED = 0.2
"""A ratio may be so much worse than the kept one: machines are noisy."""


def regressions(kept: Mapping[str, Any], new: Mapping[str, Any], allowed: float = ALLOWED) -> list[str]:
    """The figures that became worse, one sentence each.

    Only ratios are compared, because machines differ. Of what is counted per second a ratio is good when it is high;
    of times, bytes and everything else when it is low.

    Args:
        kept: The results of an earlier whole run.
        new: Those of a later one.
        allowed: The share by which a ratio may be worse.
    """
    later = {figure["name"]: figure for figure in new["figures"]}
    compared = [(figure, later.get(figure["name"])) for figure in kept["figures"] if figure["ratio"]]
    return [said for figure, now in compared if (said := _regression(figure, now, allowed))]


def _regression(kept: Mapping[str, Any], now: Mapping[str, Any] | None, allowed: float) -> str | None:
    name, before = kept["name"], kept["ratio"]
    if now is None or now["ratio"] is None:
        reason = now["not_measured"] if now else "the run does not tell of it"
        return f"{name} was {before:g} times {kept['baseline']}, and is not measured any more: {reason}"
    after = now["ratio"]
    # How much of the former speed is left, whichever way the ratio counts.
    left = after / before if is_rate(kept["unit"]) else (before / after if after else 1.0)
    if left >= 1 - allowed:
        return None
    return f"{name} was {before:g} times {kept['baseline']}, and is {after:g} times: worse by {1 - left:.0%}"


def is_rate(unit: str) -> bool:
    """Whether more is better."""
    return "/s" in unit or unit == "of no messaging"
