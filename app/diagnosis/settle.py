"""One fault may look like two causes: which name does it get?

Two causes that may be one are held against each other operation by operation. Where most of the
time that one of them is about is time that the other is about as well, the other explains it. Two
faults of one worker are about different time, and keep both names.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from app.diagnosis.case import Case
from app.diagnosis.detector import Suspicion
from app.diagnosis.finding import RuledOut
from app.diagnosis.noted import noted_s
from app.diagnosis.repair import Repair
from app.engine.what_if import Replayer
from app.trace.window import Floats

# Others cannot be taken for each other, or are rightly about the same operations: a slow worker of
# a slow stage, a slow link that flaps beside.
_MAY_BE_ONE = frozenset(
    frozenset(pair)
    for pair in (
        ("slow-worker", "allocator-stall"),
        ("slow-worker", "gc-pause"),
        ("gc-pause", "allocator-stall"),
        ("data-loading", "allocator-stall"),
        ("late-host", "allocator-stall"),
    )
)
# Of the time of the smaller one.
_MOST = 0.7


def settle(case: Case, suspicions: Sequence[Suspicion]) -> tuple[list[Suspicion], list[RuledOut]]:
    """The suspicions that stand beside each other, and those that another one explains."""
    explained: dict[str, RuledOut] = _late_hosts(case, suspicions)
    suspicions = [each for each in suspicions if each.cause not in explained]
    for one, other in combinations(suspicions, 2):
        if frozenset((one.cause, other.cause)) not in _MAY_BE_ONE:
            continue
        shared = _shared(case, one, other)
        small, large = (one, other) if shared.first_s <= shared.second_s else (other, one)
        if shared.of_smaller >= _MOST:
            explained[small.cause] = RuledOut(
                small.cause,
                f"what it is about is explained by {large.cause}",
                score=small.score,
                figures={"share_explained": shared.of_smaller},
            )
    left = [each for each in suspicions if each.cause not in explained]
    return left, list(explained.values())


def _late_hosts(case: Case, suspicions: Sequence[Suspicion]) -> dict[str, RuledOut]:
    """A late host whose reason has a name of its own is named once.

    Waits for data are data-loading. Pauses for garbage are its own where most of them are, and
    else gc-pause.
    """
    by_cause = {each.cause: each for each in suspicions}
    late = by_cause.get("late-host")
    if late is None:
        return {}
    because, workers = late.evidence["late_because"], late.evidence["workers"]
    loading = by_cause.get("data-loading")
    # A loader that no client speaks of is a late launch of the first computation, too.
    if loading is not None and (not loading.culprits or _names_all(loading, workers)):
        return _explained(late, "data-loading")
    if because == "gc" and (pauses := by_cause.get("gc-pause")):
        pauses_s = noted_s(case, "gc-pause")
        mine_s = sum(float(pauses_s[:, dp_rank, stage].sum()) for dp_rank, stage in workers)
        is_its_own = mine_s >= _MOST * float(pauses_s.sum())
        return _explained(pauses, "late-host") if is_its_own else _explained(late, "gc-pause")
    return {}


def _names_all(suspicion: Suspicion, workers: Sequence[Sequence[int]]) -> bool:
    return all(worker in suspicion.evidence["workers"] for worker in workers)


def _explained(suspicion: Suspicion, by: str) -> dict[str, RuledOut]:
    reason = f"what it is about is explained by {by}"
    return {suspicion.cause: RuledOut(suspicion.cause, reason, score=suspicion.score)}


@dataclass(frozen=True, slots=True)
class _Shared:
    """Seconds of all operations that each of two suspicions is about, and that both are."""

    first_s: float
    second_s: float
    both_s: float

    @property
    def of_smaller(self) -> float:
        """Share of the smaller one's time."""
        smaller_s = min(self.first_s, self.second_s)
        return self.both_s / smaller_s if smaller_s > 0 else 0.0


def _shared(case: Case, one: Suspicion, other: Suspicion) -> _Shared:
    totals_s = np.zeros(3)
    for group in case.groups:
        first_s, second_s = (_excess(group.replayer, each) for each in (one, other))
        both_s = sum(
            float(np.minimum(mine_s, second_s[row]).sum())
            for row, mine_s in first_s.items()
            if row in second_s
        )
        totals_s += [_total(first_s), _total(second_s), both_s]
    return _Shared(*totals_s.tolist())


def _total(excess_s: dict[int, Floats]) -> float:
    return sum(float(each.sum()) for each in excess_s.values())


def _excess(group: Replayer, suspicion: Suspicion) -> dict[int, Floats]:
    """Seconds too long or too late [lanes], of each row that the suspicion is about."""
    found: dict[int, Floats] = {}
    if suspicion.repair is not None:
        repaired = suspicion.repair(group)
        too_long_s = group.durations.recorded_s[repaired.rows] - repaired.duration_s
        found = dict(zip(repaired.rows.tolist(), np.maximum(too_long_s, 0.0), strict=True))
    for row, late_s in _late(group, suspicion.delays):
        found[row] = found[row] + late_s if row in found else late_s
    return found


def _late(group: Replayer, delays: Repair | None) -> list[tuple[int, Floats]]:
    if delays is None:
        return []
    late = delays(group)
    return list(zip(late.rows.tolist(), np.maximum(late.duration_s, 0.0), strict=True))
