"""slow-worker: computations of a worker are slower than its peers' on all micro-batches.

Forward and backward alike: a failing or throttled GPU, a busy host, or GPUs of an older generation.
One of them alone, or the optimizer: another kernel or library, work of the host within it. Where
computations hide waits, or inside a worker, only waiting for late ranks shows it
(other_slow_workers.py). The evidence includes clock, temperature and power of the GPU and of its
peers'.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from app.diagnosis.absent_workers import absent_from_most
from app.diagnosis.case import Case, evidence
from app.diagnosis.detector import LIMITS as FEW_STEPS
from app.diagnosis.detector import (
    MAX_LISTED,
    CulpritParts,
    Detector,
    Suspicion,
    as_ratio,
    is_plural,
    is_supported,
    names_of,
    too_few_steps_reason,
    workers_evidence,
)
from app.diagnosis.detectors.late_host import with_late_launches
from app.diagnosis.detectors.other_slow_workers import IN_TURN, rotating_suspicion, slow_optimizer
from app.diagnosis.evidence.interruptions import annotated_s
from app.diagnosis.evidence.late_workers import (
    LateWorker,
    arrivals_evidence,
    gpu_culprit,
    late_hosts,
    late_workers,
)
from app.diagnosis.evidence.launch_lags import sets_pace
from app.diagnosis.evidence.slow_operations import BACKWARD, FORWARD, SlowOperation, slow_operations
from app.diagnosis.evidence.slow_steps import rotation_of, workers_in_turn
from app.diagnosis.evidence.slowness import LIMITS as SLOWNESS_LIMITS
from app.diagnosis.evidence.slowness import (
    NO_COMPUTATIONS,
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
from app.diagnosis.statistics.persistence import LIMITS as PERSISTENCE
from app.diagnosis.statistics.persistence import Onset
from app.result.finding import Culprit, RuledOut
from app.result.words import ARE, IS, LAUNCH, LAUNCHES, TAKE, TAKES, WAIT, WAITS
from app.trace.window import Floats, Ints


@dataclass(frozen=True, slots=True)
class SlowWorkerLimits:
    """Thresholds of slow-worker, chosen; from which ratio one is slow: evidence/slowness.py.

    Ratios are of a worker's time to its peers', an excess is a ratio less 1.
    """

    # Score 1 from this ratio, or from so many times the threshold where that is more.
    certain_ratio: float = 1.25
    times_threshold: float = 1.1
    # Ratios within this factor are given as one.
    max_alike_ratio: float = 1.05
    # Workers that lost less than this share of the worst one's loss may be left out, if they were
    # slow in fewer than this share of the steps.
    min_share_of_worst: float = 0.1
    max_brief_share: float = 0.5
    # An excess below this share of the worst one's, and less than so many times the threshold's, is
    # left out: the most extreme of many healthy workers is near the threshold.
    min_share_of_most: float = 0.25
    clear_of_threshold: float = 1.5
    # Share of GPU time below which none is named where no excess is clear of the threshold.
    min_cost_of_doubt: float = 0.035
    # The score of what may be chance: below that from which causes are named.
    chance_score: float = 0.49
    # Garbage collection explains a slow worker if it is this share of its excess.
    min_gc_of_excess: float = 0.5
    # Below this ratio a direction is said to take as long as its peers'.
    as_long: float = 1.02
    # Forward and backward are said one by one where one has less than this share of the other's
    # excess.
    one_sided: float = 0.35
    # Confidence in workers that are slow in the forward alone, at most: a host that is late within
    # it looks the same.
    confidence_of_forward: float = 0.9
    # Of a smaller excess of all computations in the history, that of one type is not known.
    min_excess: float = 0.01


LIMITS = SlowWorkerLimits()
_DEVICE_FIGURES = ("sm_clock_mhz", "temperature_c", "power_w")


def device_figures(case: Case, worker: Worker, steps: Ints) -> dict[str, float]:
    """Median clock, temperature and power of the worker and of its peers, where these are sent.

    `xid` is the number of the last error that its driver logged.
    """
    trace, figures = case.replay.window.trace, dict[str, float]()
    columns = {name: getattr(trace, name) for name in (*_DEVICE_FIGURES, "xid")}
    sent = {name: column for name, column in columns.items() if column is not None}
    if not sent:
        return figures
    rows = np.flatnonzero((trace.stage == worker[1]) & np.isin(trace.step, steps))
    is_own = trace.dp_rank[rows] == worker[0]
    xid = sent.pop("xid", None)
    for name, column in sent.items():
        is_sent = column[rows] >= 0
        for suffix, chosen in (("", is_own & is_sent), ("_of_peers", ~is_own & is_sent)):
            if chosen.any():
                figures[name + suffix] = float(np.median(column[rows][chosen]))
    if xid is not None and (failed := rows[is_own & (xid[rows] > 0)]).size:
        figures["xid"] = float(xid[failed[trace.step[failed].argmax()]])
    return figures


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

    @property
    def ratio_when_slow(self) -> float:
        """Mean slowdown in the slow steps of one that comes and goes, else in its stretch."""
        own = self.slowness
        is_slow = own.of_worker(own.slow_steps, self.at)
        size = own.stretches.end[self.at] - own.stretches.first[self.at]
        if not 0 < is_slow[own.usual].sum() < PERSISTENCE.min_steady_share * size:
            return self.ratio
        return float(own.of_worker(own.ratio, self.at)[is_slow].mean())


class SlowWorker(Detector):
    """Compares a worker with its stage's other dp ranks; without any, with its own history."""

    cause = "slow-worker"

    @override
    def detect(self, case: Case) -> Suspicion | RuledOut:
        ratios = slowness(case)
        if ratios is None:
            return self.cannot_tell(NO_COMPUTATIONS)
        is_paused = _is_paused(case, ratios)
        # An absent worker's durations are its peers' (app.trace.imputation).
        is_absent = absent_from_most(case).ravel()
        of_workers = np.where(is_paused | is_absent, 0.0, _scores(ratios))
        # A change in a worker's own history has been seen in enough steps.
        has_support = np.ones(of_workers.size, np.bool_)
        if not ratios.has_no_peers and ratios.usual.size < FEW_STEPS.enough_steps:
            earlier = _earlier(case, ratios)
            has_support = is_supported(ratios.usual.size, earlier, ratios.threshold).ravel()
        is_clear = ratios.stretches.mean >= FEW_STEPS.min_clear_ratio
        by_chance = np.minimum(of_workers, LIMITS.chance_score)
        likely = np.where(is_clear | has_support, of_workers, by_chance)
        hits = _slow_in_both(case, ratios, likely, has_support)
        hits += _slow_in_some(case, is_paused | is_absent | (of_workers >= MIN_SCORE))
        paced = {late.worker for late in late_hosts(case) if late.sets_pace}
        if hits and all(hit.worker in paced for hit in hits):
            return self.denied(
                "the hosts of the workers that compute longer launch late, so that their GPUs wait"
            )
        hits = [hit for hit in hits if hit.worker not in paced]
        turns = workers_in_turn(case)
        if turns is not None and len(turns.workers) > len(hits):
            return rotating_suspicion(case, ratios, turns, _earlier(case, ratios))
        if hits:
            return self._suspicion(case, ratios, _without_minor(hits))
        if of_workers.max() >= MIN_SCORE:
            return self._too_few(ratios, of_workers)
        if ratios.has_no_peers:
            return slow_optimizer(case) or self.cannot_tell(
                "with one dp rank a worker has no peers: one that is slow from the beginning looks "
                "like a stage with more work, and none has become slower than it was"
            )
        return self._none(ratios, of_workers)

    def _none(self, ratios: Slowness, of_workers: Floats) -> RuledOut:
        at = int(np.argmax(ratios.stretches.mean * (of_workers >= of_workers.max())))
        dp_rank, stage = divmod(at, ratios.ratio.shape[2])
        return self.denied(
            f"no worker is slower than its peers on all micro-batches: the slowest, "
            f"dp {dp_rank}, stage {stage}, takes {_direction_figures(ratios, at)}"
            f"{_why_not(ratios, at)}",
            float(of_workers.max()),
            slowdown_against_peers=ratios.usual_mean(ratios.ratio, at),
            needed=ratios.threshold,
        )

    def _too_few(self, ratios: Slowness, of_workers: Floats) -> RuledOut:
        at = int(np.argmax(of_workers * ratios.stretches.mean))
        dp_rank, stage = divmod(at, ratios.ratio.shape[2])
        ratio = float(ratios.stretches.mean[at])
        reason = too_few_steps_reason(ratios.usual.size, f"dp {dp_rank}, stage {stage}", ratio)
        figures = {"slowdown_against_peers": ratio, "needed": FEW_STEPS.min_clear_ratio}
        return self.cannot_tell(reason, LIMITS.chance_score, **figures)

    def _suspicion(self, case: Case, ratios: Slowness, hits: list[_Hit]) -> Suspicion:
        standard_errors = hits[0].slowness.stretches.standard_errors[hits[0].at]
        workers = [hit.worker for hit in hits]
        late = late_workers(case)
        lasts = rotation_of(case, ratios, [hit.at for hit in hits])
        in_turn = lasts is not None
        culprits = _culprits(case, workers, late, one_by_one=in_turn)
        slow = Suspicion(
            self.cause,
            max(hit.score for hit in hits),
            confidence(float(standard_errors), SLOWNESS_LIMITS.min_deviations),
            culprits,
            f"{IN_TURN * in_turn}{_fact(case, ratios, hits, late, in_turn=in_turn)}",
            repair=_repair(case, ratios, hits),
            badness=_badness(case, ratios, hits),
            onset=Onset(None, lasts),
            min_cost=0.0 if any(map(_is_clear, hits)) else LIMITS.min_cost_of_doubt,
            evidence={**_evidence(case, ratios, hits, workers), **_arrivals(case, workers)},
            max_confidence=_most_confidence(case, hits),
            is_at_step_end=not any({FORWARD, BACKWARD} & {*hit.optypes} for hit in hits),
            parts=self._parts(case, ratios, hits),
        )
        return slow if slow.is_at_step_end else with_late_launches(case, slow, workers)

    def _parts(self, case: Case, ratios: Slowness, hits: list[_Hit]) -> CulpritParts:
        """By culprit: the workers of a host, a dp rank or a stage stand or fall together."""
        workers, hosts = [hit.worker for hit in hits], case.replay.window.hosts
        named = culprit_of_each(workers, hosts, case.parallelism)
        culprits = list(dict.fromkeys(named.values()))

        def hits_of(chosen: Sequence[int]) -> list[_Hit]:
            kept = [culprits[at] for at in chosen]
            return [hit for hit in hits if named[hit.worker] in kept]

        return CulpritParts(
            len(culprits),
            lambda chosen: _repair(case, ratios, hits_of(chosen)),
            lambda chosen: self._suspicion(case, ratios, hits_of(chosen)),
        )


def _most_confidence(case: Case, hits: list[_Hit]) -> float:
    if not hits[0].is_supported:
        return FEW_STEPS.max_confidence
    is_forward_alone = all(hit.optypes == [FORWARD] for hit in hits)
    may_be_host = is_forward_alone and _host_sets_pace(case, hits) is None
    return LIMITS.confidence_of_forward if may_be_host else 1.0


def _host_sets_pace(case: Case, hits: list[_Hit]) -> bool | None:
    """What recorded launches say of all these workers; None where they do not agree."""
    of_hits = {
        sets_pace(case, hit.worker, [side for side in (FORWARD, BACKWARD) if side in hit.optypes])
        for hit in hits
    }
    return of_hits.pop() if len(of_hits) == 1 else None


def _slow_in_both(
    case: Case, ratios: Slowness, likely: Floats, has_support: NDArray[np.bool_]
) -> list[_Hit]:
    """Workers that are slow in forward and backward, the worst first."""
    order = np.argsort(-likely * ratios.stretches.mean, kind="stable")
    positions = [int(at) for at in order if likely[at] >= MIN_SCORE]
    if not positions:
        return []
    once = [slow for slow in slow_operations(case) if slow.optype not in (FORWARD, BACKWARD)]
    return [
        _Hit(
            at,
            ratios,
            float(likely[at]),
            bool(has_support[at]),
            once=tuple(slow for slow in once if slow.is_slow[at]),
        )
        for at in _worth_naming(ratios, positions)
    ]


def _without_minor(hits: list[_Hit]) -> list[_Hit]:
    """Leaves out workers barely slower than healthy ones beside one that is far slower.

    The most extreme of many healthy workers is near the threshold, and beside a slow one its cost
    does not show.
    """
    least = LIMITS.min_share_of_most * max(hit.ratio - 1 for hit in hits)
    return [hit for hit in hits if hit.ratio - 1 >= least or _is_clear(hit)]


def _is_clear(hit: _Hit) -> bool:
    """Whether its excess is clear of what healthy workers show."""
    return hit.ratio - 1 >= LIMITS.clear_of_threshold * (hit.slowness.threshold - 1)


def _slow_in_some(case: Case, is_left_out: NDArray[np.bool_]) -> list[_Hit]:
    """Workers that are slow in one type of operation or two alone, the worst first."""
    operations, hits = slow_operations(case), list[_Hit]()
    is_slow = np.any([operation.is_slow for operation in operations], axis=0)
    values = {operation.optype: _scores(operation.slowness) for operation in operations}
    for at in np.flatnonzero(is_slow & ~is_left_out).tolist():
        of_worker = [operation for operation in operations if operation.is_slow[at]]
        of_worker.sort(key=lambda operation: -operation.slowness.stretches.mean[at])
        worst = of_worker[0]
        score = float(values[worst.optype][at])
        hits.append(_Hit(at, worst.slowness, score, is_supported=True, operations=tuple(of_worker)))
    return sorted(hits, key=lambda hit: -hit.score * hit.ratio)


def _is_paused(case: Case, ratios: Slowness) -> NDArray[np.bool_]:
    """[workers], whether annotated garbage collection explains their excess."""
    pauses_s = annotated_s(case, "gc-pause")
    if not pauses_s.any() or ratios.has_no_peers:
        return np.zeros(ratios.stretches.mean.size, np.bool_)
    paused_s, computed_s = (
        (spent_s - np.median(spent_s, axis=1, keepdims=True)).mean(axis=0).ravel()
        for spent_s in (pauses_s, case.work_s)
    )
    return np.asarray((paused_s > LIMITS.min_gc_of_excess * computed_s) & (computed_s > 0))


def _with_gpu(culprit: Culprit, late: list[LateWorker]) -> Culprit:
    """The culprit as the GPU that the worker's own ranks wait for, if there is one."""
    worker = culprit.dp_rank, culprit.stage
    gpus = (gpu_culprit(gpu) for gpu in late if gpu.is_inside and gpu.worker == worker)
    return next(gpus, culprit)


def _culprits(
    case: Case, workers: list[Worker], late: list[LateWorker], *, one_by_one: bool
) -> tuple[Culprit, ...]:
    """Workers, hosts or dp ranks; of a stage all workers, as the stage itself is not to blame.

    With `one_by_one` workers only: of a host where most were slow in turn, some never were.
    """
    hosts = case.replay.window.hosts
    of_workers = {worker: case.with_rank(worker_culprit(worker, hosts)) for worker in workers}
    culprits: list[Culprit] = []
    for culprit in of_workers.values() if one_by_one else case.culprits(workers):
        is_stage = culprit.stage is not None and culprit.dp_rank is None
        of_stage = [worker for worker in workers if is_stage and worker[1] == culprit.stage]
        culprits += [of_workers[worker] for worker in of_stage] or [culprit]
    return tuple(dict.fromkeys(_with_gpu(culprit, late) for culprit in culprits))


def _arrivals(case: Case, workers: list[Worker]) -> dict[str, Any]:
    """Arrivals' figures of the first of these workers that others wait for."""
    step_s = float(case.report.recorded_s.mean())
    worst = next((late for late in late_workers(case) if late.worker in workers), None)
    return {} if worst is None else arrivals_evidence(worst, worst.late.waited_for_s / step_s)


def _direction_figures(ratios: Slowness, at: int) -> str:
    """The ratio of a worker in words, by direction where these differ."""
    forward, backward = (ratios.usual_mean(side, at) for side in (ratios.forward, ratios.backward))
    if not max(forward, backward) > LIMITS.max_alike_ratio * min(forward, backward):
        return f"{as_ratio(ratios.usual_mean(ratios.ratio, at))} as long"
    return _sides(forward, backward)


def _sides(forward: float, backward: float) -> str:
    return f"{as_ratio(forward)} as long in the forward and {as_ratio(backward)} in the backward"


def _why_not(ratios: Slowness, at: int) -> str:
    """What is missing in a worker that takes longer than its peers, in words."""
    mean, least = (ratios.usual_mean(side, at) for side in (ratios.ratio, ratios.least))
    if mean < ratios.threshold:
        return f"; healthy workers differ by up to {as_ratio(ratios.threshold)}"
    if not ratios.lengths_vary and least - 1 < SLOWNESS_LIMITS.share_of_each * (mean - 1):
        return f", and its shortest computations {as_ratio(least)}: it is slow in some of them only"
    if ratios.stretches.standard_errors[at] < SLOWNESS_LIMITS.min_deviations:
        return ", which is within its changes from step to step"
    return ""


def _scores(ratios: Slowness) -> Floats:
    """[workers], 0..1; below 0.5 where the evidence is not sufficient."""
    certain = max(LIMITS.certain_ratio, LIMITS.times_threshold * ratios.threshold)
    by_ratio = scores(ratios.stretches.mean, ratios.threshold, certain)
    by_chance = np.minimum(by_ratio, LIMITS.chance_score * ratios.significance)
    return np.where(ratios.significance >= 1, by_ratio, by_chance)


def _worth_naming(ratios: Slowness, positions: list[int]) -> list[int]:
    """Leaves out workers with few slow steps and little loss: healthy ones with long operations."""
    size = (ratios.stretches.end - ratios.stretches.first)[positions]
    excess = (ratios.stretches.mean[positions] - 1) * size
    is_brief = size < LIMITS.max_brief_share * ratios.usual.size
    is_brief &= excess < LIMITS.min_share_of_worst * excess.max()
    return [at for at, brief in zip(positions, is_brief, strict=True) if not brief]


_WORDS = {FORWARD: "forward", BACKWARD: "backward"}


def _fact(
    case: Case, ratios: Slowness, hits: list[_Hit], late: list[LateWorker], *, in_turn: bool
) -> str:
    """What is slow in which workers, a clause by set of operations."""
    clauses: dict[tuple[str, ...], list[_Hit]] = {}
    for hit in hits:
        optypes = tuple(operation.optype for operation in hit.operations)
        clauses.setdefault(optypes, []).append(hit)
    return "; ".join(
        _clause(case, ratios, alike, late, in_turn=in_turn) for alike in clauses.values()
    )


def _clause(
    case: Case, ratios: Slowness, hits: list[_Hit], late: list[LateWorker], *, in_turn: bool
) -> str:
    culprits = _culprits(case, [hit.worker for hit in hits], late, one_by_one=in_turn)
    is_, its, takes = (ARE, "their", TAKE) if is_plural(culprits) else (IS, "its", TAKES)
    operations, ratio = hits[0].operations, _range_of([hit.ratio_when_slow for hit in hits])
    if not operations:
        if ratios.has_no_peers and len(hits) == 1:
            at, stretches = hits[0].at, ratios.stretches
            steps = ratios.usual[stretches.first[at] : stretches.end[at]]
            of_sides = [ratios.of_worker(side, at) for side in (ratios.forward, ratios.backward)]
            sides = [float(of_side[steps].mean()) for of_side in of_sides]
            if min(sides) - 1 < LIMITS.one_sided * (max(sides) - 1):
                return f"{names_of(culprits)} {takes} {_sides(*sides)} as before"
        than = "before" if ratios.has_no_peers else f"{its} peers"
        fact = f"{names_of(culprits)} {is_} {ratio} slower than {than} in forward and backward"
        return f"{fact}{_by_launches(case, hits, culprits)}"
    words = [_WORDS.get(operation.optype, operation.optype) for operation in operations]
    fact = f"{names_of(culprits)} {takes} {ratio} as long as {its} peers in the {words[0]}"
    for operation, word in zip(operations[1:], words[1:], strict=True):
        means = [float(operation.slowness.stretches.mean[hit.at]) for hit in hits]
        fact += f" and {_range_of(means)} in the {word}"
    other = {"forward": ratios.backward, "backward": ratios.forward}.get(words[0])
    if other is None or len(hits) > 1 or len(words) > 1:
        return fact
    of_other = ratios.usual_mean(other, hits[0].at)
    [beside] = {"forward", "backward"} - set(words)
    if of_other < LIMITS.as_long:
        fact += f", and {is_} as fast as they are in the {beside}"
        known = _by_launches(case, hits, culprits)
        return fact + (known or (_doubt_of_forward(culprits) if beside == "backward" else ""))
    return f"{fact} and {as_ratio(of_other)} in the {beside}{_by_launches(case, hits, culprits)}"


def _by_launches(case: Case, hits: list[_Hit], culprits: tuple[Culprit, ...]) -> str:
    """Who is behind in the long computations, where launches were recorded."""
    by_host, is_one = _host_sets_pace(case, hits), not is_plural(culprits)
    if by_host is None:
        return ""
    its, gpu, host = ("its", "GPU", "host") if is_one else ("their", "GPUs", "hosts")
    if by_host:
        waits = WAITS if is_one else WAIT
        return f": {its} {gpu} {waits} for {its} {host}, as recorded launches show"
    launches = LAUNCHES if is_one else LAUNCH
    return f": {its} {gpu} {IS if is_one else ARE} slow, as {its} {host} {launches} in time"


def _doubt_of_forward(culprits: tuple[Culprit, ...]) -> str:
    """A host that launches a forward piece by piece delays its kernels, not the backward's."""
    if is_plural(culprits):
        return f": their GPUs {ARE} slow or their hosts late, which look alike without launch times"
    return f": its GPU {IS} slow or its host late, which look alike without launch times"


def _range_of(mean: list[float]) -> str:
    """Ratios in words, a range where they differ."""
    least, most = min(mean), max(mean)
    ends = as_ratio(least), as_ratio(most)
    if most <= LIMITS.max_alike_ratio * least or ends[0] == ends[1]:
        return as_ratio(mean[0])
    return " to ".join(ends)


def _badness(case: Case, ratios: Slowness, hits: list[_Hit]) -> Floats:
    """[steps of the extended history], the highest ratio of these workers."""
    earlier, of_hits = _earlier(case, ratios), []
    for hit in hits:
        before, now = (ratios.of_worker(side, hit.at) for side in (earlier, hit.slowness.ratio))
        if hit.operations:
            before = _earlier_of_one(case, ratios, hit, before)
        of_hits.append(np.concatenate([before, now]))
    return np.asarray(np.max(of_hits, axis=0))


def _earlier_of_one(case: Case, ratios: Slowness, hit: _Hit, before: Floats) -> Floats:
    """[earlier steps], its ratio in one type, by the earlier ratio of all its computations.

    The history has the mean of forward and backward alone, in which their shares are fixed.
    """
    if hit.operations[0].optype not in (FORWARD, BACKWARD):
        signal = case.extended_history.signals.get("once_s")
        earlier_s = None if signal is None else signal[: before.size]
        if earlier_s is None or not np.isfinite(earlier_s).all():
            return np.full(before.shape, np.nan)
        return ratios.of_worker(ratios_to_peers(earlier_s, hit.slowness.measure), hit.at)
    slow = ratios.of_worker(hit.slowness.slow_steps, hit.at)
    ratio = ratios.of_worker(ratios.ratio, hit.at)
    excess = float((ratio[slow] - 1).mean()) if slow.any() else 0.0
    if excess < LIMITS.min_excess:
        return np.full(before.shape, np.nan)
    return np.asarray(1 + (before - 1) * (hit.ratio - 1) / excess)


@evidence
def _earlier(case: Case, ratios: Slowness) -> Floats:
    """[earlier steps, dp, pp], ratios before the window; NaN where unknown."""
    history = case.extended_history
    if ratios.has_no_peers:
        return against_own_history(history)[: history.num_before]
    before_s = history.signals["compute_s"][: history.num_before]
    is_known = np.isfinite(before_s).all(axis=(1, 2))
    earlier = np.full(before_s.shape, np.nan)
    earlier[is_known] = ratios_to_peers(before_s[is_known], ratios.measure)
    return earlier


def _evidence(
    case: Case, ratios: Slowness, hits: list[_Hit], workers: list[Worker]
) -> dict[str, Any]:
    worst, own = hits[0], hits[0].slowness
    first = int(own.usual[own.stretches.first[worst.at]])
    stretch = slice(first, int(own.usual[own.stretches.end[worst.at] - 1]) + 1)
    hosts = case.replay.window.hosts
    against = "itself" if ratios.has_no_peers else "peers"
    directions = {
        "forward_slowdown": float(ratios.of_worker(ratios.forward, worst.at)[stretch].mean()),
        "backward_slowdown": float(ratios.of_worker(ratios.backward, worst.at)[stretch].mean()),
    }
    has_direction = not {FORWARD, BACKWARD}.isdisjoint(worst.optypes)
    return {
        **workers_evidence(workers),
        "stages": sorted({stage for _, stage in workers}),
        "hosts": sorted({hosts[worker] for worker in workers if worker in hosts}),
        "optypes": list(dict.fromkeys(optype for hit in hits for optype in hit.optypes)),
        "steps": case.steps[stretch].tolist(),
        f"slowdown_against_{against}": worst.ratio_when_slow,
        f"slowdowns_against_{against}": [hit.ratio_when_slow for hit in hits[:MAX_LISTED]],
        **(directions if has_direction else {}),
        "standard_errors": float(own.stretches.standard_errors[worst.at]),
        "host_sets_pace": _host_sets_pace(case, hits),
        "m_w": case.report.m_w,
        **device_figures(case, workers[0], case.steps[stretch]),
    }


def _repair(case: Case, ratios: Slowness, hits: list[_Hit]) -> Repair:
    """The operations in which they are slow, at their peers' speed."""
    factors: dict[str, Floats] = {}
    for hit in hits:
        dp_rank, stage = hit.worker
        both = [(FORWARD, ratios, ratios.forward), (BACKWARD, ratios, ratios.backward)]
        parts = [] if hit.operations else both
        parts += [
            (operation.optype, operation.slowness, operation.slowness.ratio)
            for operation in (*hit.operations, *hit.once)
        ]
        for optype, of_type, side in parts:
            factor = factors.setdefault(optype, np.ones(ratios.ratio.shape))
            factor[:, dp_rank, stage] = _factor(of_type, side, hit.at)
    ones = np.ones(ratios.ratio.shape)
    directions = ShortenedComputations(
        case, factors.pop(FORWARD, ones), factors.pop(BACKWARD, ones)
    )
    return joint_repair(directions, ShortenedTypes(case, factors)) if factors else directions


def _factor(ratios: Slowness, side: Floats, at: int) -> Floats:
    """[steps], by how much a worker's operations are too long, 1 where it is not slow."""
    own = ratios.of_worker(side, at)
    # Also where it is slow again outside of its stretch.
    factor = np.where(ratios.of_worker(ratios.slow_steps, at), np.maximum(own, 1.0), 1.0)
    first, end = int(ratios.stretches.first[at]), int(ratios.stretches.end[at])
    stretch = stretch_slice(ratios.usual, first, end, own.size)
    factor[stretch] = (
        np.maximum(own[stretch], 1.0) if ratios.varies[at] else own[ratios.usual[first:end]].mean()
    )
    return factor
