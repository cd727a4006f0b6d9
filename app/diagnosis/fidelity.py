"""Which causes hold although the replay is far from the record?

A replay leaves out launch delays. Where it differs from the record by more than 5 %, even with the
delays put back that a suspicion blames, something delays launches that no cause explains. A cause
is then named only if it does not depend on that: it costs enough in the steps without such delays,
or it is itself a launch delay that the record has. What does not rest on the replay at all is named
without it (`without_replay`). Every other cause is withheld for a reason of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from msgspec import structs

from app.diagnosis.case import Case
from app.diagnosis.detector import Suspicion
from app.diagnosis.evidence.idle_time import idle_in_steps_s
from app.diagnosis.evidence.late_workers import HOST_DELAYS, late_workers
from app.diagnosis.evidence.late_workers import LIMITS as LATENESS
from app.diagnosis.evidence.usual_steps import usual_steps
from app.diagnosis.features import Features
from app.diagnosis.suspicions import SuspicionCosts, deny
from app.engine.metrics import discrepancy
from app.engine.steady_state import overlap_s
from app.formatting import percent, plural
from app.result.causes import SILENT_WORKER, SLOW_WORKER, STAGE_IMBALANCE
from app.result.figures import MAX_DISCREPANCY
from app.result.finding import Finding, RuledOut
from app.result.words import sentence_of
from app.trace.window import Floats, Ints

# Cheaper causes are not named.
MIN_COST = 0.02
# Fewer steps near the record confirm no cause.
MIN_STEPS = 3
# A late launch is in the record if it brings the replay nearer by this share of itself.
MIN_SHARE_RECORDED = 0.5
# Other delays were not explained, so that no finding is surer than this.
MAX_CONFIDENCE = 0.9


@dataclass(frozen=True, slots=True)
class Fidelity:
    """How far a replay, with the delays of all suspicions, is from the record.

    `away` is the discrepancy over the usual steps; `near` are the positions of usual steps that
    differ by at most MAX_DISCREPANCY, `num_usual` of how many. `unexplained_s` [steps] is what the
    record has more.
    """

    away: float
    near: Ints
    num_usual: int
    unexplained_s: Floats

    @property
    def is_low(self) -> bool:
        """Whether the replay is too far from the record for causes that depend on it."""
        return self.away > MAX_DISCREPANCY

    def may_withhold(self, cause: str) -> bool:
        """Whether a cause is named only if it does not depend on what the replay leaves out."""
        return self.is_low and cause != SILENT_WORKER


def fidelity_of(case: Case, blamed_s: Floats) -> Fidelity:
    """The fidelity of step times [steps] with the delays of all suspicions."""
    usual = usual_steps(case)
    recorded_s = case.report.recorded_s - case.joined(_overlap_s)
    # Gaps between steps are launch delay, which a suspicion may have added already.
    between_s = np.maximum(case.report.between_s, idle_in_steps_s(case))
    at_most_s = np.maximum(blamed_s, np.minimum(blamed_s + between_s, recorded_s))
    either = (blamed_s, at_most_s)
    away = min(discrepancy(step_s[usual], recorded_s[usual]) for step_s in either)
    step_away = np.min([np.abs(step_s - recorded_s) / recorded_s for step_s in either], axis=0)
    near = usual[step_away[usual] <= MAX_DISCREPANCY]
    away += case.report.lone_share  # as the report's verdict counts it
    return Fidelity(away, near, usual.size, np.maximum(0.0, recorded_s - at_most_s))


def _overlap_s(group: Features) -> Floats:
    return overlap_s(group.replayer.grid)


def withheld_by_fidelity(
    case: Case, suspicions: Sequence[Suspicion], cost: SuspicionCosts, seen: Fidelity
) -> list[RuledOut | None]:
    """The reasons against suspicions that depend on what the replay leaves out, if it is much."""
    return [
        _doubted(case, suspicion, cost.blamed_s, repaired_s, seen)
        for suspicion, repaired_s in zip(suspicions, cost.repaired_s, strict=True)
    ]


def _doubted(
    case: Case, suspicion: Suspicion, blamed_s: Floats, repaired_s: Floats | None, seen: Fidelity
) -> RuledOut | None:
    is_late = repaired_s is None or suspicion.delays is not None
    if not seen.may_withhold(suspicion.cause) or ("arrivals" in suspicion.evidence and is_late):
        return None
    if suspicion.is_cost_recorded or (repaired_s is None and suspicion.cost is not None):
        return None  # read from the record itself
    if repaired_s is None:
        return _withheld(suspicion, seen, "and a replay has no cost of this cause")
    if suspicion.repair is None:
        if is_recorded(case, blamed_s, repaired_s):
            return None
        return _withheld(suspicion, seen, "and the record does not have the delays of this cause")
    if seen.near.size < MIN_STEPS:
        return _withheld(suspicion, seen, "too few to confirm a cause")
    share = 1.0 - float(repaired_s[seen.near].mean() / blamed_s[seen.near].mean())
    if share >= max(MIN_COST, suspicion.min_cost):
        return None
    return _withheld(suspicion, seen, f"and there this cause costs only {percent(max(share, 0.0))}")


# In the evidence: what a cause rests on without the replay.
WITHOUT_REPLAY = "without_replay"
# The same in words, and what its cost is then.
_APART = {
    "arrivals": "who comes late to collectives, and its cost on what the others wait there",
    "recorded": "what was recorded of it, and its cost is not known better than that",
    "computing": "recorded computing times, and its cost is as far off as the replay at most",
}


def without_replay(
    case: Case, suspicion: Suspicion, replayed: float | None, seen: Fidelity
) -> Suspicion | None:
    """A withheld suspicion as it stands without the replay, None where it rests on that.

    Ranks that others were seen to wait for need none; nor do rows that show the cause, or a stage
    that computes longer than the others, if it costs enough in any case. `evidence` says which.
    """
    cost = None
    if _are_waited_for(case, suspicion):
        rests_on = "arrivals"
    elif replayed is None or replayed < max(MIN_COST, suspicion.min_cost):
        return None
    elif suspicion.basis == "recorded":
        rests_on = "recorded"
    elif suspicion.cause == STAGE_IMBALANCE and replayed - seen.away >= MIN_COST:
        rests_on, cost = "computing", replayed
    else:
        return None
    return replace(
        suspicion,
        repair=None,
        delays=None,
        cost=cost,
        evidence={**suspicion.evidence, WITHOUT_REPLAY: rests_on},
    )


def _are_waited_for(case: Case, suspicion: Suspicion) -> bool:
    """Whether the others wait long for each of the workers, whose host is not the reason."""
    least_s = LATENESS.min_share * float(case.report.recorded_s.mean())
    waited_for = {
        late.worker
        for late in late_workers(case)
        if late.kind not in HOST_DELAYS and late.late.waited_for_s >= least_s
    }
    is_slow = suspicion.cause == SLOW_WORKER and bool(suspicion.workers)
    return is_slow and waited_for.issuperset(suspicion.workers)


def is_recorded(case: Case, blamed_s: Floats, repaired_s: Floats) -> bool:
    """Whether the record has delays that are in `blamed_s` [steps] only, by their sum."""
    usual = usual_steps(case)
    recorded_s, without_s, with_s = (
        step_s[usual] for step_s in (case.report.recorded_s, repaired_s, blamed_s)
    )
    nearer_s = np.abs(recorded_s - without_s).sum() - np.abs(recorded_s - with_s).sum()
    return bool(nearer_s >= MIN_SHARE_RECORDED * (with_s - without_s).sum())


def _withheld(suspicion: Suspicion, seen: Fidelity, why: str) -> RuledOut:
    steps = plural(seen.num_usual, "step")
    reason = (
        f"suspected, but not certain: the replay matches the record (within "
        f"{percent(MAX_DISCREPANCY)}) in {seen.near.size:,} of {steps} only, {why}"
    )
    figures = {"discrepancy": seen.away, "steps_near": float(seen.near.size)}
    return deny(suspicion, reason, insufficient=True, **figures)


def with_unexplained(cost: SuspicionCosts, seen: Fidelity) -> SuspicionCosts:
    """The costs; of a replay far from the record with the time that it leaves out."""
    if not seen.is_low:
        return cost
    more_s = seen.unexplained_s
    return replace(
        cost,
        blamed_s=cost.blamed_s + more_s,
        repaired_s=tuple(None if own_s is None else own_s + more_s for own_s in cost.repaired_s),
    )


def with_note(case: Case, finding: Finding, seen: Fidelity) -> Finding:
    """The finding; of a replay far from the record with a note on that, and limited confidence."""
    if not seen.may_withhold(finding.cause):
        return finding
    share = float(seen.unexplained_s.sum() / case.report.recorded_s.sum())
    rests_on = finding.evidence.get(WITHOUT_REPLAY)
    matches = (
        f"The replay matches the record in {seen.near.size:,} of "
        f"{plural(seen.num_usual, 'step')} only"
    )
    if rests_on is not None:
        note = f"{matches}: this rests on {_APART[rests_on]}"
    elif share > MAX_DISCREPANCY:
        note = (
            f"Late launches that no cause explains take another {percent(share)} of the step time"
        )
    else:
        note = matches
    parts = finding.parts
    if parts is not None:
        parts = structs.replace(parts, note=f"{parts.note}. {note}" if parts.note else note)
    noted = structs.replace(
        finding,
        confidence=min(finding.confidence, MAX_CONFIDENCE),
        parts=parts,
        evidence={**finding.evidence, "steps_near_record": int(seen.near.size)},
    )
    if rests_on == "computing" and finding.cost is not None:
        off = (max(0.0, finding.cost - seen.away), min(1.0, finding.cost + seen.away))
        noted = structs.replace(noted, cost_range=off)
    return structs.replace(noted, sentence=sentence_of(noted))
