"""Drops culprits that cost next to nothing themselves beside those that do.

    cost of a culprit = 1 - T_all_repaired / T_all_others_repaired

Repairing it alone would win nothing where another culprit is as slow: everybody still waits for
that one. So a culprit's cost is what is lost while it alone is left unrepaired. A culprit with a
cost below `MIN_CULPRIT_COST` rode along: noise, a neighbour, or slow where nobody waits for it.
"""

from collections.abc import Sequence

from app.diagnosis.case import Case
from app.diagnosis.detector import CulpritParts, Suspicion
from app.diagnosis.repair import Repair
from app.diagnosis.suspicions import step_times_with

# Share of the step time.
MIN_CULPRIT_COST = 0.01
# More culprits are one group by any measure; each takes a simulation.
MAX_CULPRITS = 32


def drop_cheap_culprits(case: Case, suspicion: Suspicion) -> Suspicion:
    """The suspicion without culprits that win back less than `MIN_CULPRIT_COST`.

    Unchanged where all of them do, where there are more than `MAX_CULPRITS`, and where those to be
    dropped matter together although none does alone.
    """
    parts = suspicion.parts
    if parts is None or suspicion.repair is None or not 1 < parts.number <= MAX_CULPRITS:
        return suspicion
    [all_repaired_s] = _mean_step_s(case, [suspicion.repair])
    costs = [1.0 - all_repaired_s / left_s for left_s in _one_left_s(case, parts)]
    kept = [at for at, cost in enumerate(costs) if cost >= MIN_CULPRIT_COST]
    if not kept or len(kept) == parts.number:
        return suspicion
    [kept_repaired_s] = _mean_step_s(case, [parts.repair(kept)])
    if 1.0 - all_repaired_s / kept_repaired_s >= MIN_CULPRIT_COST:
        return suspicion
    return parts.suspicion(kept)


def _one_left_s(case: Case, parts: CulpritParts) -> list[float]:
    """[culprits], mean seconds of a step with all culprits repaired but one."""
    of_all = range(parts.number)
    repairs = [parts.repair([each for each in of_all if each != at]) for at in of_all]
    return _mean_step_s(case, repairs)


def _mean_step_s(case: Case, repairs: Sequence[Repair]) -> list[float]:
    """Mean seconds of a step with each of these repairs alone."""
    return [float(each.mean()) for each in step_times_with(case, repairs)]
