"""What has become slower between two whole runs. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ALLOWED = 0.2
"""A ratio may be so much worse than the kept one: machines are noisy."""


def regressions(kept: Mapping[str, Any], new: Mapping[str, Any], allowed: float = ALLOWED) -> list[str]:
    """Return the figures that became worse, one sentence each.

    Of figures with a baseline the ratios are compared, because machines differ. Of what is counted per second a ratio
    is good when it is high; of times, bytes and everything else when it is low. And a target that was met is met still:
    that of ours alone as it stands ("none lost" is no matter of the machine), that of a difference within the same
    share.

    Args:
        allowed: The share by which a ratio may be worse.
    """
    later = {figure["name"]: figure for figure in new["figures"]}
    found = (_regression(figure, later.get(figure["name"]), allowed) for figure in kept["figures"])
    return [said for said in found if said]


def _regression(kept: Mapping[str, Any], now: Mapping[str, Any] | None, allowed: float) -> str | None:
    if kept["ratio"] is None and kept["met"] is None:
        return None  # nothing was measured that could be worse
    if now is None or now["ours"] is None or (kept["ratio"] is not None and now["baseline_value"] is None):
        reason = now["not_measured"] if now else "the run does not tell of it"
        return f"{kept['name']} was {_was(kept)}, and is not measured any more: {reason}"
    return _worse(kept, now, allowed) or _missed(kept, now, allowed)


def _worse(kept: Mapping[str, Any], now: Mapping[str, Any], allowed: float) -> str | None:
    """Return what has become of a ratio; one to a baseline of nothing is none, and the target tells."""
    before, after = kept["ratio"], now["ratio"]
    if before is None or after is None:
        return None
    left = _left(before, after) if is_rate(kept["unit"]) else _left(after, before)
    if left >= 1 - allowed:
        return None
    return f"{kept['name']} was {_was(kept)}, and is {after:g} times: worse by {1 - left:.0%}"


def _left(before: float, after: float) -> float:
    """How much of a former speed is left; nothing is as fast as nothing."""
    return after / before if before else 1.0


def _missed(kept: Mapping[str, Any], now: Mapping[str, Any], allowed: float) -> str | None:
    """Whether a target that was met is missed now, and by more than noise; of a ratio its own comparison tells."""
    target = now["target"]
    if not kept["met"] or now["met"] is not False or target["measure"] == "ratio":
        return None
    value = now[target["measure"]]
    slack = 0.0 if target["measure"] == "ours" else allowed * abs(target["value"])
    beyond = target["value"] - value if target["sense"] == "at least" else value - target["value"]
    if beyond <= slack:
        return None
    promised = f"{target['measure']} {target['sense']} {target['value']:g}"
    return f"{kept['name']} met its target, {promised}, and misses it with {value:g}"


def _was(kept: Mapping[str, Any]) -> str:
    if kept["ratio"] is None:
        return f"{kept['ours']:g} {kept['unit']}"
    return f"{kept['ratio']:g} times {kept['baseline']}"


def is_rate(unit: str) -> bool:
    """Whether more is better."""
    return "/s" in unit or unit == "of no messaging"
