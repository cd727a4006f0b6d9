"""uniform-slowdown: everybody is slower than the job was before (power cap, heat, software).

The slowdown S compares workers with each other and stays near 1; only the job's own earlier steps
tell. A fault of some workers leaves the others as they were, so it is none of these.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from typing_extensions import override

from app.diagnosis.case import Case
from app.diagnosis.course import Course, median_over_workers
from app.diagnosis.detector import Costed, Detector, Suspicion
from app.diagnosis.everybody import EVERYBODY, Rise, rise
from app.diagnosis.faster import Faster, Types
from app.diagnosis.finding import Persistence, RuledOut
from app.diagnosis.onset import Change, latest_onset
from app.diagnosis.per_work import per_work
from app.diagnosis.persistence import MOST_STEPS, persistence
from app.diagnosis.scores import confidence, score
from app.diagnosis.splits import MIN_DEVIATIONS
from app.diagnosis.wording import sentence, times
from app.trace.ops import Direction, Kind, OpSpec
from app.trace.window import Floats

# Less is not told from chance; so much more than before leaves no doubt.
_LEAST = 1.04
_CERTAIN = 1.2


class _Part(NamedTuple):
    """What everybody may do more slowly, in words and as operation types."""

    words: str
    types: Types


def _computes(spec: OpSpec) -> bool:
    return spec.kind is Kind.COMPUTE and spec.direction is not Direction.NONE


def _computes_once(spec: OpSpec) -> bool:
    is_once = spec.kind is Kind.COMPUTE and spec.direction is Direction.NONE
    return is_once and spec.name != "gc"


def _transfers(spec: OpSpec) -> bool:
    return spec.kind in (Kind.P2P, Kind.COLLECTIVE)


_COMPUTE = _Part("forward and backward computations take", _computes)
_ONCE = _Part("optimizer step takes", _computes_once)
_NETWORK = _Part("transfers take", _transfers)

Risen = list[tuple[_Part, Rise]]


class UniformSlowdown(Detector):
    """Computations, the optimizer or all transfers rose on every worker by about the same ratio."""

    cause = "uniform-slowdown"

    @override
    def detect(self, case: Case) -> Suspicion | RuledOut:
        course = case.course
        if course.num_steps < EVERYBODY.before + EVERYBODY.after:
            return self._cannot_tell(
                f"only {course.num_steps} steps of the job are known, and it takes "
                f"{EVERYBODY.before} before a change and {EVERYBODY.after} after it to see one"
            )
        if case.parallelism.dp_size * case.parallelism.pp_size == 1:
            return self._cannot_tell("with one worker, one and all of them look the same")
        risen = _risen(course)
        return _suspicion(case, risen) if risen else self._none(course)

    def _cannot_tell(self, reason: str) -> RuledOut:
        return RuledOut(self.cause, reason, insufficient=True)

    def _none(self, course: Course) -> RuledOut:
        change = latest_onset(course.step_s)
        if change is None:
            return RuledOut(
                self.cause,
                f"steps take no longer than before, as far as the {course.num_steps} steps show "
                "that are known of the job",
            )
        return RuledOut(
            self.cause,
            f"steps take {times(change.ratio)} as long since step "
            f"{course.steps[change.position]}, but not because everybody got slower alike",
            figures={"step_time_ratio": change.ratio},
        )


def _risen(course: Course) -> Risen:
    """What rose on every worker, the computations first."""
    of_parts = {
        _COMPUTE: [per_work(course)],
        _ONCE: [course.signals.get("once_s")],
        _NETWORK: [course.signals.get(name) for name in ("transfer_s", "collective_s")],
    }
    found = {part: _rise(signals) for part, signals in of_parts.items()}
    known = next((up.change for up in found.values() if up is not None), None)
    if known is None:
        return []
    again = {part: found[part] or _rise(of_parts[part], known) for part in found}
    return [(part, up) for part, up in again.items() if up is not None]


def _rise(signals: Sequence[Floats | None], known: Change | None = None) -> Rise | None:
    """The least rise of the signals; None where not all rose.

    So much for transfers: one kind of them alone is a link's matter, or a group's.
    """
    ups = [None if signal is None else rise(signal, known) for signal in signals]
    rises = [up for up in ups if up is not None]
    return min(rises, key=lambda up: up.ratio) if len(rises) == len(ups) else None


def _suspicion(case: Case, risen: Risen) -> Suspicion:
    part, up = risen[0]
    num_before = case.course.num_before
    fact = f"every worker's {part.words} {times(up.ratio)} as long as before"

    def wording(costed: Costed) -> str:
        return sentence(fact, costed)

    return Suspicion(
        UniformSlowdown.cause,
        score(up.ratio, _LEAST, _CERTAIN),
        confidence(up.deviations, MIN_DEVIATIONS),
        (),
        wording,
        repair=Faster(case, [(each.types, of.factors(num_before)) for each, of in risen]),
        course=up.badness,
        onset_step=int(case.course.steps[up.change.position]),
        persistence=_persistence(up, num_before),
        evidence=_evidence(case, risen, up),
    )


def _persistence(up: Rise, num_before: int) -> Persistence:
    """A little more is as chronic as much more; the steps after the onset are the bad ones."""
    if persistence(up.badness, num_before) == "progressive":
        return "progressive"
    num_slow = up.badness.size - max(up.change.position, num_before)
    return "chronic" if num_slow >= MOST_STEPS * (up.badness.size - num_before) else "transient"


def _evidence(case: Case, risen: Risen, up: Rise) -> dict[str, Any]:
    course, change = case.course, up.change
    before_s, after_s = course.step_s[: change.position], course.step_s[change.until :]
    slow = course.steps[max(change.position, course.num_before) :]
    types = case.replay.window.job.op_types
    present = {code for group in case.replay.groups for code in group.template.present}
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
        "standard_errors": up.deviations,
        "slowdown": case.report.slowdown,
        **_by_part(risen),
        **_seconds(course, change.position, change.until),
    }


def _by_part(risen: Risen) -> dict[str, Any]:
    names = {_COMPUTE: "compute_ratio", _ONCE: "optimizer_ratio", _NETWORK: "transfer_ratio"}
    return {names[part]: up.ratio for part, up in risen}


def _seconds(course: Course, position: int, until: int) -> dict[str, float]:
    """A typical computation before and after."""
    compute_s: Floats | None = course.signals.get("compute_s")
    if compute_s is None:
        return {}
    typical_s = median_over_workers(compute_s)
    return {
        "compute_before_s": float(np.nanmedian(typical_s[:position])),
        "compute_after_s": float(np.nanmedian(typical_s[until:])),
    }
