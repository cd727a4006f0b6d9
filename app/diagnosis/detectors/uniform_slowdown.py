"""uniform-slowdown: all workers are slower than before (power cap, heat, software).

The slowdown S compares workers with each other and stays near 1, so only earlier steps of the job
show it. A fault of some workers leaves the others unchanged and is another cause.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from typing_extensions import override

from app.diagnosis.case import Case
from app.diagnosis.detector import Detector, Suspicion, as_ratio
from app.diagnosis.evidence.job_changes import LIMITS as RISE_LIMITS
from app.diagnosis.evidence.job_changes import CommonRise, compute_per_work, least_common_rises
from app.diagnosis.finding import confidence, score
from app.diagnosis.job_history import ExtendedHistory, median_over_workers
from app.diagnosis.repair import ShortenedTypes
from app.diagnosis.statistics.change_points import LIMITS as CHANGE_LIMITS
from app.diagnosis.statistics.change_points import LevelChange, latest_onset
from app.diagnosis.statistics.persistence import LIMITS as PERSISTENCE_LIMITS
from app.diagnosis.statistics.persistence import Onset, persistence
from app.result.finding import Persistence, RuledOut
from app.result.words import TAKE, TAKES
from app.trace.ops import Direction, OpKind, OpSpec
from app.trace.window import Floats


@dataclass(frozen=True, slots=True)
class UniformLimits:
    """Thresholds of uniform-slowdown, chosen; of a rise: evidence/job_changes.py."""

    # Ratios to the time before of score 0.5 and 1.
    min_ratio: float = 1.04
    certain_ratio: float = 1.2
    # Share of the step time's rise (in logarithms) from which a rise of the typical worker is no
    # chance: most of the rise is its own.
    min_share_of_rise: float = 0.5


LIMITS = UniformLimits()


class _WorkPart(NamedTuple):
    """A kind of work, in words and as operation types, and the name of its ratio."""

    words: str
    types: Callable[[OpSpec], bool]
    figure: str


_COMPUTE = _WorkPart(
    f"forward and backward computations {TAKE}",
    lambda spec: spec.kind is OpKind.COMPUTE and spec.direction is not Direction.NONE,
    "compute_ratio",
)
_ONCE = _WorkPart(
    f"optimizer step {TAKES}",
    lambda spec: (
        spec.kind is OpKind.COMPUTE and spec.direction is Direction.NONE and spec.name != "gc"
    ),
    "optimizer_ratio",
)
_NETWORK = _WorkPart(
    f"transfers {TAKE}",
    lambda spec: spec.kind in (OpKind.P2P, OpKind.COLLECTIVE),
    "transfer_ratio",
)

RisenParts = list[tuple[_WorkPart, CommonRise]]


class UniformSlowdown(Detector):
    """Computations, the optimizer or all transfers rose on every worker by about the same ratio."""

    cause = "uniform-slowdown"

    @override
    def detect(self, case: Case) -> Suspicion | RuledOut:
        history = case.extended_history
        before, after = RISE_LIMITS.rise_before, RISE_LIMITS.rise_after
        if history.num_steps < before + after:
            return self.cannot_tell(
                f"only {history.num_steps} steps of the job are recorded, and it takes "
                f"{before} before a change and {after} after it to see one"
            )
        if case.parallelism.dp_size * case.parallelism.pp_size == 1:
            return self.cannot_tell("with one worker, one and all of them look the same")
        risen = _risen(history)
        return _suspicion(case, risen) if risen else self._none(history)

    def _none(self, history: ExtendedHistory) -> RuledOut:
        change = latest_onset(history.step_s)
        if change is None:
            return self.denied(
                f"steps take no longer than before, as far as the {history.num_steps} recorded "
                "steps of the job show"
            )
        step = history.steps[change.position]
        since = f"steps take {as_ratio(change.ratio)} as long since step {step}"
        typical = _typical_ratio(history, change)
        least = LIMITS.min_share_of_rise * np.log(change.ratio)
        if typical is not None and np.log(typical) >= least:
            return self.cannot_tell(
                f"{since}, and the typical worker's computations {as_ratio(typical)}, but workers "
                "differ too much to say that all got slower alike",
                step_time_ratio=change.ratio,
                compute_ratio=typical,
            )
        reason = f"{since}, but not because all workers got slower alike"
        return self.denied(reason, step_time_ratio=change.ratio)


def _typical_ratio(history: ExtendedHistory, change: LevelChange) -> float | None:
    """The typical worker's computations after the change, divided by those before it."""
    compute_s = compute_per_work(history)
    if compute_s is None:
        return None
    typical_s = median_over_workers(compute_s)
    parts = typical_s[: change.position], typical_s[change.until :]
    before, after = (part_s[np.isfinite(part_s)] for part_s in parts)
    if not before.size or not after.size:
        return None
    return float(np.median(after) / np.median(before))


def _risen(history: ExtendedHistory) -> RisenParts:
    """Parts that rose on every worker, computations first.

    Transfers count only where both kinds rose: one kind alone is the matter of a link or a group.
    """
    of_parts = {
        _COMPUTE: [compute_per_work(history)],
        _ONCE: [history.signals.get("once_s")],
        _NETWORK: [history.signals.get(name) for name in ("transfer_s", "collective_s")],
    }
    signals = list(of_parts.values())
    rises = least_common_rises(signals)
    known = next((rise.change for rise in rises if rise is not None), None)
    if known is None:
        return []
    together = zip(of_parts, rises, least_common_rises(signals, known), strict=True)
    risen = [(part, rise or with_known) for part, rise, with_known in together]
    return [(part, rise) for part, rise in risen if rise is not None]


def _suspicion(case: Case, risen: RisenParts) -> Suspicion:
    (part, up), history = risen[0], case.extended_history
    start, lasts = up.change.position, _persistence(up, history.num_before)
    by_now = "longer and longer, by now " if lasts == "progressive" else ""
    than = "before" if start else "in the first steps"
    return Suspicion(
        UniformSlowdown.cause,
        score(up.ratio, LIMITS.min_ratio, LIMITS.certain_ratio),
        confidence(up.standard_errors, CHANGE_LIMITS.min_deviations),
        (),
        f"every worker's {part.words} {by_now}{as_ratio(up.ratio)} as long as {than}",
        repair=_repair(case, risen),
        badness=up.badness,
        onset=Onset(int(history.steps[start]) if start else None, lasts),
        evidence=_evidence(case, risen, up),
    )


def _repair(case: Case, risen: RisenParts) -> ShortenedTypes:
    """The operations that rose as they were before; no type is of two parts."""
    sizes, factors = case.parallelism, dict[str, Floats]()
    for part, up in risen:
        factor = up.factors(case.extended_history.num_before)[:, None, None]
        of_workers = np.broadcast_to(factor, (factor.size, sizes.dp_size, sizes.pp_size))
        specs = case.replay.window.job.op_types.by_code.values()
        factors |= {spec.name: of_workers for spec in specs if part.types(spec)}
    return ShortenedTypes(case, factors)


def _persistence(up: CommonRise, num_before: int) -> Persistence:
    """Steps after the onset count as bad, however small the rise."""
    num_rising = up.change.until - up.change.position + 1
    is_ramp = num_rising >= max(
        CHANGE_LIMITS.min_ramp_steps, (up.badness.size - up.change.position) / 2
    )
    if is_ramp or persistence(up.badness, num_before) == "progressive":
        return "progressive"
    num_slow = up.badness.size - max(up.change.position, num_before)
    is_most = num_slow >= PERSISTENCE_LIMITS.min_chronic_share * (up.badness.size - num_before)
    is_lasting = up.badness.size - up.change.position >= PERSISTENCE_LIMITS.min_chronic_steps
    return "chronic" if is_most or is_lasting else "transient"


def _evidence(case: Case, risen: RisenParts, up: CommonRise) -> dict[str, Any]:
    history, change = case.extended_history, up.change
    before_s, after_s = history.step_s[: change.position or 1], history.step_s[change.until :]
    slow = history.steps[max(change.position, history.num_before) :]
    types = case.replay.window.job.op_types
    present = {code for group in case.replay.groups for code in group.template.present}
    figures = {part.figure: rise.ratio for part, rise in risen}
    if (compute_s := history.signals.get("compute_s")) is not None:
        typical_s = median_over_workers(compute_s)
        figures |= {
            "compute_before_s": float(np.nanmedian(typical_s[: change.position or 1])),
            "compute_after_s": float(np.nanmedian(typical_s[change.until :])),
        }
    return {
        "optypes": sorted(
            types.name(code)
            for code in present
            if any(part.types(types.by_code[code]) for part, _ in risen)
        ),
        "ratio": up.ratio,
        "steps": slow.tolist(),
        "num_steps_before": int(change.position),
        "step_time_before_s": float(np.median(before_s)),
        "step_time_after_s": float(np.median(after_s)),
        "standard_errors": up.standard_errors,
        "slowdown": case.report.slowdown,
        **figures,
    }
