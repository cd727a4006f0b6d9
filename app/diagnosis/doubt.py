"""Are the hosts' clocks known well enough to blame a transfer for what it took too long?

A transfer begins on one host and ends on another, so it is known no better than their clocks are.
A computation has one clock.
"""

from app.diagnosis.case import Case
from app.diagnosis.detector import Suspicion
from app.diagnosis.finding import RuledOut
from app.diagnosis.repair import Repair

# Causes that are seen in transfers.
_OF_TRANSFERS = frozenset({"slow-link", "flapping-link"})


def doubted(case: Case, suspicion: Suspicion) -> RuledOut | None:
    """Why nothing is said, where clocks are known less well than what is to be explained."""
    residual_s = case.replay.clocks.residual_s
    if suspicion.cause not in _OF_TRANSFERS or residual_s is None or suspicion.repair is None:
        return None
    effect_s = _effect_s(case, suspicion.repair)
    if effect_s is None or effect_s >= residual_s:
        return None
    return RuledOut(
        suspicion.cause,
        f"its transfers take {1e3 * effect_s:.3g} ms too long, and the hosts' clocks are known to "
        f"{1e3 * residual_s:.3g} ms only",
        insufficient=True,
        score=suspicion.score,
        figures={"effect_s": effect_s, "clock_residual_s": residual_s},
    )


def _effect_s(case: Case, repair: Repair) -> float | None:
    """Mean seconds that transfers are too long, of those that are; None where none is repaired."""
    total_s, count = 0.0, 0
    for group in case.groups:
        repaired = repair(group.replayer)
        recorded_s = group.replayer.durations.recorded_s[repaired.rows]
        more_s = recorded_s - repaired.duration_s
        total_s += float(more_s[more_s > 0].sum())
        count += int((more_s > 0).sum())
    return total_s / count if count else None
