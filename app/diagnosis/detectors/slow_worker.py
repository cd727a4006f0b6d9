"""slow-worker: computations of a worker are slower than its peers' on all micro-batches.

Forward and backward alike: a failing or throttled GPU, a busy host, or GPUs of an older generation.
One of them alone, or the optimizer: another kernel or library, work of the host within it. Where
computations hide waits, or inside a worker, only waiting for late ranks shows it
(other_slow_workers.py). The evidence includes clock, temperature and power of the GPU and of its
peers'.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from app.diagnosis.absent_workers import absent_from_most
from app.diagnosis.case import Case, evidence
from app.diagnosis.detector import (
    ENOUGH_STEPS,
    MAX_CONFIDENCE,
    MAX_LISTED,
    MIN_CLEAR_RATIO,
    CulpritParts,
    Detector,
    Suspicion,
    as_ratio,
    finding_sentence,
    is_plural,
    is_supported,
    names_of,
    too_few_steps_reason,
    workers_evidence,
)
from app.diagnosis.detectors.other_slow_workers import IN_TURN, rotating_suspicion, slow_optimizer
from app.diagnosis.evidence.interruptions import annotated_s
from app.diagnosis.evidence.late_workers import (
    LateWorker,
    arrivals_evidence,
    gpu_culprit,
    late_workers,
)
from app.diagnosis.evidence.slow_operations import (
    BACKWARD,
    FORWARD,
    SlowOperation,
    slow_operations,
)
from app.diagnosis.evidence.slow_steps import slow_in_turn, workers_in_turn
from app.diagnosis.evidence.slowness import (
    MIN_DEVIATIONS,
    NO_COMPUTATIONS,
    SHARE_OF_EACH,
    Slowness,
    against_own_history,
    ratios_to_peers,
    slowness,
)
from app.diagnosis.finding import (
    MIN_SCORE,
    Worker,
    confidence,
    culprit_of_each,
    scores,
    worker_culprit,
)
from app.diagnosis.repair import (
    Repair,
    ShortenedComputations,
    ShortenedTypes,
    joint_repair,
    stretch_slice,
)
from app.diagnosis.statistics.persistence import rotation
from app.result.finding import Culprit, RuledOut
from app.result.sentence import ARE, IS, TAKE, TAKES
from app.trace.window import Floats, Ints, Trace

_DEVICE_FIGURES = ("sm_clock_mhz", "temperature_c", "power_w")


def device_figures(case: Case, worker: Worker, steps: Ints) -> dict[str, float]:
    """Median clock, temperature and power of the worker and of its peers, where these are sent.

    `xid` is the number of the last error that its driver logged.
    """
    trace, found = case.replay.window.trace, dict[str, float]()
    dp_rank, stage = worker
    columns = {name: getattr(trace, name) for name in _DEVICE_FIGURES}
    sent = {name: column for name, column in columns.items() if column is not None}
    if not sent and trace.xid is None:
        return found
    rows = np.flatnonzero((trace.stage == stage) & np.isin(trace.step, steps))
    is_mine = trace.dp_rank[rows] == dp_rank
    for name, column in sent.items():
        is_sent = column[rows] >= 0
        for suffix, chosen in (("", is_mine & is_sent), ("_of_peers", ~is_mine & is_sent)):
            if chosen.any():
                found[name + suffix] = float(np.median(column[rows][chosen]))
    return found | _last_error(trace, rows[is_mine])


def _last_error(trace: Trace, rows: Ints) -> dict[str, float]:
    """The error of the latest step among the rows; empty where none was logged."""
    if trace.xid is None or not (rows := rows[trace.xid[rows] > 0]).size:
        return {}
    return {"xid": float(trace.xid[rows[trace.step[rows].argmax()]])}


# Score 1 from this ratio.
_CERTAIN_RATIO = 1.25
# Ratios within this factor are given as one.
_MAX_ALIKE_RATIO = 1.05
# Workers that lost less than this share of the worst one's loss may be left out.
_MIN_SHARE_OF_WORST = 0.1
# An excess below this share of the worst one's, and not clear of the threshold, is left out.
_MIN_SHARE_OF_MOST = 0.25
_CLEAR_OF_THRESHOLD = 1.5
# Where none is clear of it, cheaper ones are not named.
_MIN_COST_OF_DOUBT = 0.035
# The score of what may be chance.
_CHANCE_SCORE = 0.49
# Garbage collection explains a slow worker if it is this share of its excess.
_MIN_GC_OF_EXCESS = 0.5


@dataclass(frozen=True, slots=True)
class _Hit:
    """A slow worker: its position dp x pp, figures of its stretch, and in what it is slow.

    `operations` are the types in which it is slow alone; without any it is slow in forward and
    backward, and `once` are the types outside micro-batches in which it is slow as well.
    """

    at: int
    slowness: Slowness
    score: float
    is_supported: bool
    operations: tuple[SlowOperation, ...] = ()
    once: tuple[SlowOperation, ...] = ()

    @property
    def worker(self) -> Worker:
        """Its dp rank and stage."""
        dp_rank, stage = divmod(self.at, self.slowness.ratio.shape[2])
        return dp_rank, stage

    @property
    def optypes(self) -> list[str]:
        """The op types in which it is slow."""
        own = [operation.optype for operation in self.operations] or [FORWARD, BACKWARD]
        return own + [operation.optype for operation in self.once]

    @property
    def ratio(self) -> float:
        """Mean slowdown in its stretch."""
        return float(self.slowness.stretches.mean[self.at])


class SlowWorker(Detector):
    """Compares a worker with its stage's other dp ranks; without any, with its own history."""

    cause = "slow-worker"

    @override
    def detect(self, case: Case) -> Suspicion | RuledOut:
        found = slowness(case)
        if found is None:
            return self.cannot_tell(NO_COMPUTATIONS)
        is_paused = _is_paused(case, found)
        # An absent worker's durations are its peers' (app.trace.imputation).
        is_absent = absent_from_most(case).ravel()
        of_workers = np.where(is_paused | is_absent, 0.0, _scores(found))
        has_support = _is_supported(case, found)
        is_clear = found.stretches.mean >= MIN_CLEAR_RATIO
        likely = np.where(is_clear | has_support, of_workers, np.minimum(of_workers, _CHANCE_SCORE))
        hits = _slow_in_both(case, found, likely, has_support)
        hits += _slow_in_some(case, is_paused | is_absent | (of_workers >= MIN_SCORE))
        turns = workers_in_turn(case)
        if turns is not None and len(turns.workers) > len(hits):
            return rotating_suspicion(case, found, turns, _earlier(case, found))
        if hits:
            return self._suspicion(case, found, _without_minor(hits))
        if of_workers.max() >= MIN_SCORE:
            return self._too_few(found, of_workers)
        if found.has_no_peers:
            return slow_optimizer(case) or self.cannot_tell(
                "with one dp rank a worker has no peers: one that is slow from the beginning looks "
                "like a stage with more work, and none has become slower than it was"
            )
        return self._none(found, of_workers)

    def _none(self, found: Slowness, of_workers: Floats) -> RuledOut:
        at = int(np.argmax(found.stretches.mean * (of_workers >= of_workers.max())))
        dp_rank, stage = divmod(at, found.ratio.shape[2])
        return self.denied(
            f"no worker is slower than its peers on all micro-batches: the slowest, "
            f"dp {dp_rank}, stage {stage}, takes {_direction_figures(found, at)}"
            f"{_why_not(found, at)}",
            float(of_workers.max()),
            slowdown_against_peers=found.usual_mean(found.ratio, at),
            needed=found.threshold,
        )

    def _too_few(self, found: Slowness, of_workers: Floats) -> RuledOut:
        at = int(np.argmax(of_workers * found.stretches.mean))
        dp_rank, stage = divmod(at, found.ratio.shape[2])
        ratio = float(found.stretches.mean[at])
        why = too_few_steps_reason(
            found.usual.size, f"dp {dp_rank}, stage {stage}", as_ratio(ratio)
        )
        figures = {"slowdown_against_peers": ratio, "needed": MIN_CLEAR_RATIO}
        return self.cannot_tell(why, _CHANCE_SCORE, **figures)

    def _suspicion(self, case: Case, found: Slowness, hits: list[_Hit]) -> Suspicion:
        standard_errors = hits[0].slowness.stretches.standard_errors[hits[0].at]
        workers = [hit.worker for hit in hits]
        late = late_workers(case)
        lasts = rotation(slow_in_turn(case, found, [hit.at for hit in hits]))
        in_turn = lasts is not None
        culprits = _culprits(case, workers, late, one_by_one=in_turn)
        fact = f"{IN_TURN * in_turn}{_fact(case, found, hits, late, in_turn=in_turn)}"
        return Suspicion(
            self.cause,
            max(hit.score for hit in hits),
            confidence(float(standard_errors), MIN_DEVIATIONS),
            culprits,
            partial(finding_sentence, fact),
            repair=_repair(case, found, hits),
            badness=_badness(case, found, hits),
            persistence=lasts,
            min_cost=0.0 if any(_is_clear(hit) for hit in hits) else _MIN_COST_OF_DOUBT,
            evidence={**_evidence(case, found, hits, workers), **_arrivals(case, workers)},
            max_confidence=1.0 if hits[0].is_supported else MAX_CONFIDENCE,
            is_at_step_end=not any({FORWARD, BACKWARD} & {*hit.optypes} for hit in hits),
            parts=self._parts(case, found, hits),
        )

    def _parts(self, case: Case, found: Slowness, hits: list[_Hit]) -> CulpritParts:
        """By culprit: the workers of a host, a dp rank or a stage stand or fall together."""
        workers, hosts = [hit.worker for hit in hits], case.replay.window.hosts
        named = culprit_of_each(workers, hosts, case.parallelism)
        culprits = list(dict.fromkeys(named.values()))

        def of(chosen: Sequence[int]) -> list[_Hit]:
            kept = [culprits[at] for at in chosen]
            return [hit for hit in hits if named[hit.worker] in kept]

        return CulpritParts(
            len(culprits),
            lambda chosen: _repair(case, found, of(chosen)),
            lambda chosen: self._suspicion(case, found, of(chosen)),
        )


def _slow_in_both(
    case: Case, found: Slowness, likely: Floats, has_support: NDArray[np.bool_]
) -> list[_Hit]:
    """Workers that are slow in forward and backward, the worst first."""
    order = np.argsort(-likely * found.stretches.mean, kind="stable")
    hit = [int(at) for at in order if likely[at] >= MIN_SCORE]
    if not hit:
        return []
    once = [slow for slow in slow_operations(case) if slow.optype not in (FORWARD, BACKWARD)]
    return [
        _Hit(
            at,
            found,
            float(likely[at]),
            bool(has_support[at]),
            once=tuple(slow for slow in once if slow.is_slow[at]),
        )
        for at in _worth_naming(found, hit)
    ]


def _without_minor(hits: list[_Hit]) -> list[_Hit]:
    """Leaves out workers barely slower than healthy ones beside one that is far slower.

    The most extreme of many healthy workers is near the threshold, and beside a slow one its cost
    does not show.
    """
    most = max(hit.ratio - 1 for hit in hits)
    return [hit for hit in hits if hit.ratio - 1 >= _MIN_SHARE_OF_MOST * most or _is_clear(hit)]


def _is_clear(hit: _Hit) -> bool:
    """Whether its excess is clear of what healthy workers show."""
    return hit.ratio - 1 >= _CLEAR_OF_THRESHOLD * (hit.slowness.threshold - 1)


def _slow_in_some(case: Case, is_left_out: NDArray[np.bool_]) -> list[_Hit]:
    """Workers that are slow in one type of operation or two alone, the worst first."""
    found = []
    operations = slow_operations(case)
    slow = [np.flatnonzero(operation.is_slow & ~is_left_out) for operation in operations]
    values = {
        slow_type.optype: _scores(slow_type.slowness)
        for slow_type in operations
        if slow_type.is_slow.any()
    }
    for at in np.unique(np.concatenate(slow)).astype(np.int64).tolist() if slow else []:
        mine = [operation for operation in operations if operation.is_slow[at]]
        mine.sort(key=lambda operation: -operation.slowness.stretches.mean[at])
        value = float(values[mine[0].optype][at])
        found.append(_Hit(at, mine[0].slowness, value, is_supported=True, operations=tuple(mine)))
    return sorted(found, key=lambda hit: -hit.score * hit.ratio)


def _is_paused(case: Case, found: Slowness) -> NDArray[np.bool_]:
    """[workers], whether annotated garbage collection explains their excess."""
    pauses_s = annotated_s(case, "gc-pause")
    if not pauses_s.any() or found.has_no_peers:
        return np.zeros(found.stretches.mean.size, np.bool_)
    pauses_s, computed_s = (
        (each - np.median(each, axis=1, keepdims=True)).mean(axis=0).ravel()
        for each in (pauses_s, case.work_s)
    )
    return np.asarray((pauses_s > _MIN_GC_OF_EXCESS * computed_s) & (computed_s > 0))


def _with_gpu(culprit: Culprit, late: list[LateWorker]) -> Culprit:
    """The culprit as the GPU that the worker's own ranks wait for, if there is one."""
    if culprit.dp_rank is None or culprit.stage is None:
        return culprit
    worker = (culprit.dp_rank, culprit.stage)
    for late_worker in late:
        if late_worker.is_inside and late_worker.worker == worker:
            return gpu_culprit(late_worker)
    return culprit


def _culprits(
    case: Case, workers: list[Worker], late: list[LateWorker], *, one_by_one: bool
) -> tuple[Culprit, ...]:
    """Workers, hosts or dp ranks; of a stage all workers, as the stage itself is not to blame.

    With `one_by_one` workers only: of a host where most were slow in turn, some never were.
    """
    hosts = case.replay.window.hosts
    of_each = {worker: case.with_rank(worker_culprit(worker, hosts)) for worker in workers}
    found: list[Culprit] = []
    for each in of_each.values() if one_by_one else case.culprits(workers):
        is_stage = each.stage is not None and each.dp_rank is None
        mine = [worker for worker in workers if is_stage and worker[1] == each.stage]
        found += [of_each[worker] for worker in mine] or [each]
    return tuple(dict.fromkeys(_with_gpu(each, late) for each in found))


def _arrivals(case: Case, workers: list[Worker]) -> dict[str, Any]:
    """Arrivals' figures of the first of these workers that others wait for."""
    step_s = float(case.report.recorded_s.mean())
    for late in late_workers(case):
        if late.worker in workers:
            return arrivals_evidence(late, late.late.waited_for_s / step_s)
    return {}


def _direction_figures(found: Slowness, at: int) -> str:
    """The ratio of a worker in words, by direction where these differ."""
    forward, backward = (found.usual_mean(side, at) for side in (found.forward, found.backward))
    if not max(forward, backward) > _MAX_ALIKE_RATIO * min(forward, backward):
        return f"{as_ratio(found.usual_mean(found.ratio, at))} as long"
    return _sides(forward, backward)


def _sides(forward: float, backward: float) -> str:
    return f"{as_ratio(forward)} as long in the forward and {as_ratio(backward)} in the backward"


def _why_not(found: Slowness, at: int) -> str:
    """What is missing in a worker that takes longer than its peers, in words."""
    mean, least = (found.usual_mean(side, at) for side in (found.ratio, found.least))
    if mean < found.threshold:
        return f"; healthy workers differ by up to {as_ratio(found.threshold)}"
    if not found.lengths_vary and least - 1 < SHARE_OF_EACH * (mean - 1):
        return f", and its shortest computations {as_ratio(least)}: it is slow in some of them only"
    if found.stretches.standard_errors[at] < MIN_DEVIATIONS:
        return ", which is within its changes from step to step"
    return ""


def _scores(found: Slowness) -> Floats:
    """[workers], 0..1; below 0.5 where the evidence is not sufficient."""
    certain = max(_CERTAIN_RATIO, 1.1 * found.threshold)
    by_ratio = scores(found.stretches.mean, found.threshold, certain)
    return np.where(
        found.significance >= 1, by_ratio, np.minimum(by_ratio, _CHANCE_SCORE * found.significance)
    )


def _is_supported(case: Case, found: Slowness) -> NDArray[np.bool_]:
    """[workers], whether enough steps, in the window and before, support the slowdown."""
    if found.has_no_peers or found.usual.size >= ENOUGH_STEPS:
        # A change in the worker's own history has been seen in enough steps.
        return np.ones(found.stretches.mean.size, np.bool_)
    return is_supported(found.usual.size, _earlier(case, found), found.threshold).ravel()


def _worth_naming(found: Slowness, hit: list[int]) -> list[int]:
    """Leaves out workers with few slow steps and little loss: healthy ones with long operations."""
    size = (found.stretches.end - found.stretches.first)[hit]
    excess = (found.stretches.mean[hit] - 1) * size
    is_brief = (excess < _MIN_SHARE_OF_WORST * excess.max()) & (2 * size < found.usual.size)
    return [at for at, brief in zip(hit, is_brief, strict=True) if not brief]


_WORDS = {FORWARD: "forward", BACKWARD: "backward"}


def _fact(
    case: Case, found: Slowness, hits: list[_Hit], late: list[LateWorker], *, in_turn: bool
) -> str:
    """What is slow in which workers, one clause for each set of operations."""
    clauses: dict[tuple[str, ...], list[_Hit]] = {}
    for hit in hits:
        clauses.setdefault(tuple(each.optype for each in hit.operations), []).append(hit)
    return "; ".join(
        _clause(case, found, alike, late, in_turn=in_turn) for alike in clauses.values()
    )


def _clause(
    case: Case, found: Slowness, hits: list[_Hit], late: list[LateWorker], *, in_turn: bool
) -> str:
    culprits = _culprits(case, [hit.worker for hit in hits], late, one_by_one=in_turn)
    is_, its, takes = (ARE, "their", TAKE) if is_plural(culprits) else (IS, "its", TAKES)
    operations = hits[0].operations
    if not operations:
        if found.has_no_peers and len(hits) == 1:
            sides = _stretch_means(found, hits[0].at)
            if min(sides) - 1 < _ONE_SIDED * (max(sides) - 1):
                return f"{names_of(culprits)} {takes} {_sides(*sides)} as before"
        than = "before" if found.has_no_peers else f"{its} peers"
        return (
            f"{names_of(culprits)} {is_} {_range(hits)} slower than {than} in forward and backward"
        )
    words = [_WORDS.get(each.optype, each.optype) for each in operations]
    fact = f"{names_of(culprits)} {takes} {_range(hits)} as long as {its} peers in the {words[0]}"
    for each, word in zip(operations[1:], words[1:], strict=True):
        of_hits = [float(each.slowness.stretches.mean[hit.at]) for hit in hits]
        fact += f" and {_range_of(of_hits)} in the {word}"
    other = {"forward": found.backward, "backward": found.forward}.get(words[0])
    if other is None or len(hits) > 1 or len(words) > 1:
        return fact
    theirs = found.usual_mean(other, hits[0].at)
    [beside] = {"forward", "backward"} - set(words)
    if theirs < _AS_LONG:
        return f"{fact}, and {is_} as fast as they are in the {beside}"
    return f"{fact} and {as_ratio(theirs)} in the {beside}"


# Below this ratio a direction takes as long as its peers'.
_AS_LONG = 1.02


# Of two directions, one shows less than this share of the other's excess.
_ONE_SIDED = 0.35


def _stretch_means(found: Slowness, at: int) -> tuple[float, float]:
    """Mean ratios of forward and backward in the worker's stretch."""
    chosen = found.usual[found.stretches.first[at] : found.stretches.end[at]]
    forward, backward = (
        float(found.of_worker(side, at)[chosen].mean()) for side in (found.forward, found.backward)
    )
    return forward, backward


def _range(hits: list[_Hit]) -> str:
    """Their ratio in words, a range where they differ."""
    return _range_of([hit.ratio for hit in hits])


def _range_of(mean: list[float]) -> str:
    least, most = min(mean), max(mean)
    ends = as_ratio(least), as_ratio(most)
    if most <= _MAX_ALIKE_RATIO * least or ends[0] == ends[1]:
        return as_ratio(mean[0])
    return " to ".join(ends)


def _badness(case: Case, found: Slowness, hits: list[_Hit]) -> Floats:
    """[steps of the extended history], the highest ratio of these workers."""
    earlier, of_hits = _earlier(case, found), []
    for hit in hits:
        before, now = (found.of_worker(side, hit.at) for side in (earlier, hit.slowness.ratio))
        if hit.operations:
            before = _earlier_of_one(case, found, hit, before)
        of_hits.append(np.concatenate([before, now]))
    return np.asarray(np.max(of_hits, axis=0))


# Of a smaller excess of all computations, that of one type is not known.
_MIN_EXCESS = 0.01


def _earlier_of_one(case: Case, found: Slowness, hit: _Hit, before: Floats) -> Floats:
    """[earlier steps], its ratio in one type, by the earlier ratio of all its computations.

    The history has the mean of forward and backward alone, in which their shares are fixed.
    """
    if hit.operations[0].optype not in (FORWARD, BACKWARD):
        signal = case.extended_history.signals.get("once_s")
        earlier_s = None if signal is None else signal[: before.size]
        if earlier_s is None or not np.isfinite(earlier_s).all():
            return np.full(before.shape, np.nan)
        return found.of_worker(ratios_to_peers(earlier_s, hit.slowness.measure), hit.at)
    slow = found.of_worker(hit.slowness.slow_steps, hit.at)
    ratio = found.of_worker(found.ratio, hit.at)
    excess = float((ratio[slow] - 1).mean()) if slow.any() else 0.0
    if excess < _MIN_EXCESS:
        return np.full(before.shape, np.nan)
    return np.asarray(1 + (before - 1) * (hit.ratio - 1) / excess)


@evidence
def _earlier(case: Case, found: Slowness) -> Floats:
    """[earlier steps, dp, pp], ratios before the window; NaN where unknown."""
    history = case.extended_history
    if found.has_no_peers:
        return against_own_history(history)[: history.num_before]
    before_s = history.signals["compute_s"][: history.num_before]
    is_known = np.isfinite(before_s).all(axis=(1, 2))
    earlier = np.full(before_s.shape, np.nan)
    earlier[is_known] = ratios_to_peers(before_s[is_known], found.measure)
    return earlier


def _evidence(
    case: Case, found: Slowness, hits: list[_Hit], workers: list[Worker]
) -> dict[str, Any]:
    worst, own = hits[0], hits[0].slowness
    first = int(own.usual[own.stretches.first[worst.at]])
    stretch = slice(first, int(own.usual[own.stretches.end[worst.at] - 1]) + 1)
    hosts = case.replay.window.hosts
    against = "itself" if found.has_no_peers else "peers"
    directions = {
        "forward_slowdown": float(found.of_worker(found.forward, worst.at)[stretch].mean()),
        "backward_slowdown": float(found.of_worker(found.backward, worst.at)[stretch].mean()),
    }
    has_direction = not {FORWARD, BACKWARD}.isdisjoint(worst.optypes)
    return {
        **workers_evidence(workers),
        "stages": sorted({stage for _, stage in workers}),
        "hosts": sorted({hosts[worker] for worker in workers if worker in hosts}),
        "optypes": list(dict.fromkeys(optype for hit in hits for optype in hit.optypes)),
        "steps": case.steps[stretch].tolist(),
        f"slowdown_against_{against}": worst.ratio,
        f"slowdowns_against_{against}": [hit.ratio for hit in hits[:MAX_LISTED]],
        **(directions if has_direction else {}),
        "standard_errors": float(own.stretches.standard_errors[worst.at]),
        "m_w": case.report.m_w,
        **device_figures(case, workers[0], case.steps[stretch]),
    }


def _repair(case: Case, found: Slowness, hits: list[_Hit]) -> Repair:
    """The operations in which they are slow, at their peers' speed."""
    factors: dict[str, Floats] = {}
    for hit in hits:
        dp_rank, stage = hit.worker
        both = [(FORWARD, found, found.forward), (BACKWARD, found, found.backward)]
        parts = [] if hit.operations else both
        parts += [
            (each.optype, each.slowness, each.slowness.ratio)
            for each in (*hit.operations, *hit.once)
        ]
        for optype, against, side in parts:
            factor = factors.setdefault(optype, np.ones(found.ratio.shape))
            factor[:, dp_rank, stage] = _factor(against, side, hit.at)
    ones = np.ones(found.ratio.shape)
    directions = ShortenedComputations(
        case, factors.pop(FORWARD, ones), factors.pop(BACKWARD, ones)
    )
    return joint_repair(directions, ShortenedTypes(case, factors)) if factors else directions


def _factor(found: Slowness, side: Floats, at: int) -> Floats:
    """[steps], by how much a worker's operations are too long, 1 where it is not slow."""
    own = found.of_worker(side, at)
    # Also where it is slow again outside of its stretch.
    factor = np.where(found.of_worker(found.slow_steps, at), np.maximum(own, 1.0), 1.0)
    first, end = int(found.stretches.first[at]), int(found.stretches.end[at])
    stretch = stretch_slice(found.usual, first, end, own.size)
    factor[stretch] = (
        np.maximum(own[stretch], 1.0) if found.varies[at] else own[found.usual[first:end]].mean()
    )
    return factor
