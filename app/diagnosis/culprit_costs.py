"""Drops culprits that cost next to nothing themselves beside those that do.

    cost of a culprit = 1 - T_all_repaired / T_all_others_repaired

Repairing it alone would win nothing where another culprit is as slow: everybody still waits for
that one. So a culprit's cost is what is lost while it alone is left unrepaired. A culprit with a
cost below `MIN_CULPRIT_COST` rode along: noise, a neighbour, or slow where nobody waits for it.
"""

from collections.abc import Callable, Sequence

from app.diagnosis.case import Case
from app.diagnosis.detector import Suspicion
from app.diagnosis.repair import Repair
from app.diagnosis.suspicions import step_times_with

# Share of the step time.
MIN_CULPRIT_COST = 0.01
# More culprits are one group by any measure; each takes a simulation.
MAX_CULPRITS = 32


def drop_cheap_culprits(case: Case, suspicion: Suspicion) -> Suspicion:
    """The suspicion without culprits that win back less than `MIN_CULPRIT_COST`."""
    parts = suspicion.parts
    if parts is None or suspicion.repair is None:
        return suspicion
    kept = culprits_that_cost(case, parts.number, parts.repair)
    return suspicion if len(kept) == parts.number else parts.suspicion(kept)


def culprits_that_cost(
    case: Case, number: int, repair: Callable[[Sequence[int]], Repair]
) -> Sequence[int]:
    """Positions of the culprits whose own repair wins back `MIN_CULPRIT_COST` or more.

    All of them where none does, where there are more than `MAX_CULPRITS`, and where those to be
    dropped matter together although none does alone.

    Args:
        case: the window.
        number: how many culprits may be dropped separately.
        repair: of those at some positions, at least one.
    """
    of_all = range(number)
    if not 1 < number <= MAX_CULPRITS:
        return of_all
    others = [repair([each for each in of_all if each != at]) for at in of_all]
    all_repaired_s, *one_left_s = _mean_step_s(case, [repair(of_all), *others])
    costs = [1.0 - all_repaired_s / left_s for left_s in one_left_s]
    kept = [at for at, cost in enumerate(costs) if cost >= MIN_CULPRIT_COST]
    if not kept or len(kept) == number:
        return of_all
    [kept_repaired_s] = _mean_step_s(case, [repair(kept)])
    if 1.0 - all_repaired_s / kept_repaired_s >= MIN_CULPRIT_COST:
        return of_all
    return kept


def _mean_step_s(case: Case, repairs: Sequence[Repair]) -> list[float]:
    """Mean seconds of a step with each of these repairs alone."""
    return [float(each.mean()) for each in step_times_with(case, repairs)]
