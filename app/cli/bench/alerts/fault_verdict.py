"""What tried faults prove, by what is asked of the diagnosis: pure, so that it can be tested."""

from collections.abc import Collection, Sequence
from dataclasses import asdict
from typing import Any

from app.cli.bench.alerts.outcome import Outcome

# The shares asked of the diagnosis itself: a message is to be no worse.
LEAST_CAUSE_RIGHT = 0.97
LEAST_CULPRIT_RIGHT = 0.99


def verdict_on(tried: Collection[Outcome]) -> dict[str, Any]:
    """Counts, and under "wrong" all that is not as it should be."""
    found = [each for each in tried if each.counts]
    placed = [each for each in found if each.has_place]
    return {
        "jobs": len(tried),
        "counted": len(found),
        "alerted": sum(each.is_alerted for each in found),
        "cause_right": sum(each.is_cause_right for each in found),
        "placed": len(placed),
        "culprit_right": sum(each.is_culprit_right for each in placed),
        "resolved": sum(each.is_resolved for each in found),
        "told": sum(each.miss is None for each in found),
        "told_at_first": sum(each.missed_at_first is None and each.miss is None for each in found),
        "missed_at_first": [asdict(each) for each in found if each.missed_at_first],
        "early": sum(bool(each.early) for each in found),
        "wrong": [*(asdict(each) for each in found if each.is_wrong), *_below(found, placed)],
        "unsure": [asdict(each) for each in found if each.is_unsure and not each.is_wrong],
    }


def _below(found: Sequence[Outcome], placed: Sequence[Outcome]) -> list[str]:
    """What is too seldom right, and why nothing would be proven though nothing is wrong."""
    if not found:
        return ["vacuous: no fault costs enough to be told"]
    named = (
        ("cause", [each.is_cause_right for each in found], LEAST_CAUSE_RIGHT),
        ("culprit", [each.is_culprit_right for each in placed], LEAST_CULPRIT_RIGHT),
    )
    return [
        f"{what}: right in {sum(right)} of {len(right)} messages, less than {least:.0%}"
        for what, right, least in named
        if sum(right) < least * len(right)
    ]
