"""Combines the results of several windows into one, as if all steps were of one window.

T, T_ideal and every T_keep are means over steps, so each ratio to T_ideal is the mean of the
windows', weighted by what their steps would take without stragglers. Shares of the loss are
weighted by the loss.

Arrivals (docs/arrivals.md): means over steps are weighted by the windows' steps, shares of
occurrences by their number of occurrences, shares of the step by its time. Windows without arrivals
are left out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np
from msgspec.structs import replace

from app.result.arrivals import (
    MAX_GROUPS,
    ArrivalsByStep,
    ArrivalsRecord,
    GroupMember,
    LateRankRecord,
    RankGroupRecord,
)
from app.result.figures import EQUAL_TIMES, MAX_DISCREPANCY, as_tuples, gpu_time_wasted
from app.result.record import Record
from app.result.window_result import (
    MAX_CLOCKS,
    RESOLUTIONS,
    AbsentWorker,
    BySteps,
    ClocksRecord,
    FidelityRecord,
    FiguresByStep,
    HostClockRecord,
    ImputedRecord,
    LaunchDelayRecord,
    Matrix,
    OptypeTime,
    StageCompute,
    StepTimes,
    Thinned,
    WindowHeader,
    WindowResult,
    num_steps,
    resolution_of,
    step_counts,
    total_s,
)
from app.trace.window import Floats

Results = Sequence[WindowResult]
# A value of each window, and its weight.
WeightedValues = Sequence[tuple[float | None, float]]


@dataclass(frozen=True, slots=True)
class Weights:
    """[windows] sums over each window's steps, seconds, and how many steps it has."""

    recorded_s: Floats
    simulated_s: Floats
    ideal_s: Floats
    steps: Floats

    @classmethod
    def of(cls, known: Results) -> "Weights":
        """Weights of windows with figures."""
        return cls(
            np.array([total_s(result, "recorded") for result in known]),
            np.array([total_s(result, "simulated") for result in known]),
            np.array([total_s(result, "ideal") for result in known]),
            np.array([float(num_steps(result)) for result in known]),
        )

    @property
    def lost_s(self) -> Floats:
        """Loss of each window's steps, seconds."""
        return self.simulated_s - self.ideal_s


def combine_results(results: Results) -> WindowResult:
    """One result of at least one window, ascending and of one run, without `per_step`.

    Windows without figures add their skipped steps and nothing else. The estimate of S_w and the
    share of a stage are exact; M_W is of each window's own slowest workers, lost GPU-hours are
    against each window's own ideal, and times by stage and type are of windows that have them. The
    causes are the newest window's: see app.result.join.
    """
    known = [result for result in results if result.slowdown is not None]
    newest = replace(
        known[-1] if known else results[-1],
        window=_header(results),
        skipped_steps=tuple(step for result in results for step in result.skipped_steps),
        imputed=_imputed(results),
        per_step=None,
    )
    if not known:
        return newest
    total = Weights.of(known)
    recorded_s, simulated_s = total.recorded_s.sum(), total.simulated_s.sum()
    slowdown = float(simulated_s / total.ideal_s.sum())
    stages = [result.stage_slowdown for result in known]
    dp_ranks = [result.dp_rank_slowdown for result in known]
    workers = [result.worker_slowdown for result in known]
    return replace(
        newest,
        steps=tuple(step for result in known for step in result.steps),
        step_started_s=tuple(at_s for result in known for at_s in _started_s(result)),
        structures=tuple(steps for result in known for steps in result.structures),
        step_time_s=StepTimes(
            recorded=tuple(s for result in known for s in result.step_time_s.recorded),
            between=tuple(s for result in known for s in _between_s(result)),
            simulated=tuple(s for result in known for s in result.step_time_s.simulated),
            ideal=tuple(s for result in known for s in result.step_time_s.ideal),
        ),
        thinned=_thinned(known),
        launch_slowdown=float(recorded_s / simulated_s),
        fidelity=_fidelity(known, float(abs(simulated_s - recorded_s) / recorded_s)),
        clocks=combine_clocks(known),
        slowdown=slowdown,
        gpu_time_wasted=gpu_time_wasted(slowdown),
        gpu_hours_lost=sum(result.gpu_hours_lost or 0.0 for result in known),
        launch_delay=combine_launch_delay(known, total),
        step_slowdown=tuple(ratio for result in known for ratio in result.step_slowdown),
        # A window without a type lost nothing to it.
        optype_slowdown=_by_name(
            [result.optype_slowdown for result in known], total.ideal_s, absent=1.0
        ),
        dp_rank_slowdown=_means(dp_ranks, total.ideal_s),
        stage_slowdown=_means(stages, total.ideal_s),
        worker_slowdown=_means(workers, total.ideal_s),
        worker_slowdown_estimate=_estimate(dp_ranks, stages, workers, total.ideal_s),
        m_w=_of_loss([result.m_w for result in known], total),
        m_w_exact=_of_loss([result.m_w_exact for result in known], total),
        m_s=_of_loss([result.m_s for result in known], total),
        stage_share=tuple(
            _of_loss(shares, total)
            for shares in zip(*(result.stage_share or () for result in known), strict=True)
        ),
        stage_compute_s=_stage_compute(known, total.steps),
        optype_time_s=_optype_times(known, total.steps),
        arrivals=_arrivals(known),
        unexplained_share=_share_of_time(
            [result.unexplained_share for result in known], total.recorded_s
        ),
        coverage=_share_of_time([result.coverage for result in known], total.recorded_s),
        wait_coverage=_wait_coverage(known, total.recorded_s),
    )


def combine_per_step(parts: Sequence[FiguresByStep]) -> FiguresByStep:
    """`per_step` of successive windows, one after the other.

    A type that one window lacks cost nothing there: its slowdown alone is 1.
    """
    names = {name: None for part in parts for name in part.optype_slowdown}
    return FiguresByStep(
        optype_slowdown={
            name: tuple(
                ratio
                for part in parts
                for ratio in part.optype_slowdown.get(name, (1.0,) * len(part.stage_slowdown))
            )
            for name in names
        },
        dp_rank_slowdown=tuple(row for part in parts for row in part.dp_rank_slowdown),
        stage_slowdown=tuple(row for part in parts for row in part.stage_slowdown),
        worker_slowdown=tuple(rows for part in parts for rows in part.worker_slowdown),
    )


def _header(results: Results) -> WindowHeader:
    windows = [result.window for result in results]
    states = {window.state for window in windows}
    order: tuple[Literal["open", "superseded", "incomplete"], ...] = (
        "open", "superseded", "incomplete"
    )  # fmt: skip
    return WindowHeader(
        id=f"{windows[0].id}..{windows[-1].id}",
        epoch=windows[-1].epoch,
        revision=sum(window.revision or 0 for window in windows),
        state=next((state for state in order if state in states), "complete"),
        missing=tuple(sorted({rank for window in windows for rank in window.missing})),
        windows=tuple(str(window.id) for window in windows),
    )


def _imputed(results: Results) -> ImputedRecord | None:
    """Imputed operations of all windows; a worker is missing from the steps of all of them.

    A window without losses does not say how many operations it has: as many a step as the others.
    """
    with_losses = [
        (result.imputed, num_steps(result)) for result in results if result.imputed is not None
    ]
    if not with_losses:
        return None
    blocks = [block for block, _ in with_losses]
    workers: dict[int, AbsentWorker] = {}
    for worker in (worker for block in blocks for worker in block.workers):
        if (before := workers.get(worker.rank)) is not None:
            num_steps_of_both = worker.num_steps + before.num_steps
            worker = replace(worker, first_step=before.first_step, num_steps=num_steps_of_both)
        workers[worker.rank] = worker
    num_ops = sum(block.ops for block in blocks)
    of_losses = sum(block.ops / block.share for block in blocks if block.share)
    in_all, in_these = sum(map(num_steps, results)), sum(steps for _, steps in with_losses)
    of_all = of_losses * in_all / in_these if in_these else of_losses
    return ImputedRecord(
        ops=num_ops,
        lone_ops=sum(block.lone_ops for block in blocks),
        share=num_ops / of_all if of_all else 0.0,
        workers=tuple(workers[rank] for rank in sorted(workers)),
        steps=tuple(step for block in blocks for step in block.steps),
    )


def _started_s(result: WindowResult) -> BySteps:
    return result.step_started_s or (None,) * len(result.steps)


def _between_s(result: WindowResult) -> BySteps:
    """Idle time before each step; unknown where the result does not have it."""
    between_s = result.step_time_s.between
    return (None,) * len(result.steps) if between_s is None else between_s


def _thinned(known: Results) -> Thinned | None:
    """The steps that the values stand for, where a window was thinned; as coarse as the coarsest.

    What a thinned window knows of its operations is of that window alone.
    """
    if not any(result.thinned for result in known):
        return None
    return Thinned(
        resolution=max(map(resolution_of, known), key=RESOLUTIONS.index),
        step_counts=tuple(count for result in known for count in step_counts(result)),
    )


def _fidelity(known: Results, discrepancy: float) -> FidelityRecord:
    """Errors of opposite sign may cancel in the mean, so low windows count, too."""
    num_low = sum(result.fidelity.verdict == "low" for result in known)
    is_low = discrepancy > MAX_DISCREPANCY or 2 * num_low > len(known)
    return FidelityRecord(
        discrepancy=discrepancy,
        verdict="low" if is_low else "ok",
        low_windows=num_low,
        step_discrepancy=tuple(
            share for result in known for share in result.fidelity.step_discrepancy
        ),
    )


def combine_clocks(known: Results) -> ClocksRecord:
    """Each host's window with the largest residual; the overall residual is the largest, too."""
    all_ = [result.clocks for result in known]
    residuals = [clocks.residual_ms for clocks in all_ if clocks.residual_ms is not None]
    if not residuals:
        return all_[-1]
    hosts: dict[str, HostClockRecord] = {}
    for name, clock in (named for clocks in all_ for named in clocks.hosts.items()):
        if name not in hosts or clock.residual_ms > hosts[name].residual_ms:
            hosts[name] = clock
    worst = sorted(hosts.items(), key=lambda named: (-named[1].residual_ms, named[0]))
    reasons = [clocks.reason for clocks in all_ if clocks.reason]
    return ClocksRecord(
        residual_ms=max(residuals),
        hosts=dict(worst[:MAX_CLOCKS]),
        reason=reasons[-1] if reasons else None,
    )


def combine_launch_delay(known: Results, total: Weights) -> LaunchDelayRecord:
    """Means over steps; a type absent from a window counts as 0 there."""
    delays = [result.launch_delay for result in known]
    return LaunchDelayRecord(
        by_optype=_by_name([delay.by_optype for delay in delays], total.steps, absent=0.0),
        by_worker=_means([delay.by_worker for delay in delays], total.steps),
        others_waited=_means([delay.others_waited for delay in delays], total.steps),
    )


def _by_name(
    of_windows: Sequence[Mapping[str, float]], weights: Floats, *, absent: float
) -> dict[str, float]:
    """The weighted mean of each name that any window has, `absent` in those that lack it."""
    names = {name: None for by_name in of_windows for name in by_name}
    return {
        name: weighted([by_name.get(name, absent) for by_name in of_windows], weights)
        for name in names
    }


def _stage_compute(known: Results, steps: Floats) -> StageCompute | None:
    times = [result.stage_compute_s for result in known]
    measured = [of_window for of_window in times if of_window is not None]
    if not measured:
        return None
    weights = steps[[of_window is not None for of_window in times]]
    return StageCompute(
        forward=as_tuples(_mean([of_window.forward for of_window in measured], weights)),
        backward=as_tuples(_mean([of_window.backward for of_window in measured], weights)),
    )


def _optype_times(known: Results, steps: Floats) -> dict[str, OptypeTime]:
    """Means over the windows that have op times; of those, ones without a type count as 0."""
    have = [
        (result.optype_time_s, weight)
        for result, weight in zip(known, steps.tolist(), strict=True)
        if result.optype_time_s
    ]
    names = {name: None for types, _ in have for name in types}
    return {name: _optype_time([(types.get(name), w) for types, w in have]) for name in names}


_OPTYPE_PARTS = ("recorded", "transfer", "wait")


def _optype_time(parts: Sequence[tuple[OptypeTime | None, float]]) -> OptypeTime:
    first = next(times for times, _ in parts if times is not None)
    known = (name for name in _OPTYPE_PARTS if getattr(first, name) is not None)
    nothing = OptypeTime(**dict.fromkeys(_OPTYPE_PARTS) | dict.fromkeys(known, 0.0))
    return OptypeTime(
        **_mean_fields([(times or nothing, weight) for times, weight in parts], *_OPTYPE_PARTS)
    )


FiguresT = TypeVar("FiguresT", BySteps | None, Matrix)


def _means(of_windows: Sequence[FiguresT], weights: Floats) -> FiguresT:
    """The weighted mean of each element over the windows that know it; None where one has none."""
    if any(figures is None for figures in of_windows):
        return None
    means: FiguresT = as_tuples(_mean(of_windows, weights))
    return means


def _mean(parts: Sequence[BySteps | None] | Sequence[Matrix], weights: Floats) -> Floats:
    """The weighted mean over the windows; of an element over those that know it, else NaN."""
    values = np.array(parts, np.float64)
    weight = weights.reshape(-1, *[1] * (values.ndim - 1))
    is_known = np.isfinite(values)
    if is_known.all():
        return np.asarray((values * weight).sum(axis=0) / weights.sum())
    total = np.where(is_known, values * weight, 0.0).sum(axis=0)
    with np.errstate(invalid="ignore"):  # 0 / 0 is not known
        return np.asarray(total / (is_known * weight).sum(axis=0))


def _estimate(
    dp_ranks: Sequence[BySteps | None],
    stages: Sequence[BySteps | None],
    workers: Sequence[Matrix],
    weights: Floats,
) -> Matrix:
    if None in dp_ranks or None in stages or None in workers:
        return None
    estimate = np.minimum(_mean(dp_ranks, weights)[:, None], _mean(stages, weights)[None, :])
    is_known = np.isfinite(_mean(workers, weights))
    matrix: Matrix = as_tuples(np.where(is_known, estimate, np.nan))
    return matrix


def weighted(values: Sequence[float], weights: Floats) -> float:
    """The weighted mean."""
    return float(np.dot(np.asarray(values, np.float64), weights) / weights.sum())


def mean_known(values: WeightedValues) -> float | None:
    """The weighted mean of those that are known; None where none is."""
    pairs = [(value, weight) for value, weight in values if value is not None]
    total = sum(weight for _, weight in pairs)
    return sum(value * weight for value, weight in pairs) / total if total > 0 else None


def _mean_fields(parts: Sequence[tuple[Record, float]], *names: str) -> dict[str, Any]:
    """By field, the weighted mean of the records that know it."""
    return {
        name: mean_known([(getattr(record, name), weight) for record, weight in parts])
        for name in names
    }


def _share_of_time(shares: Sequence[float | None], recorded_s: Floats) -> float | None:
    return mean_known(list(zip(shares, recorded_s.tolist(), strict=True)))


def _wait_coverage(known: Results, recorded_s: Floats) -> float | None:
    """Not known of all windows where it is not of one."""
    shares = [result.wait_coverage for result in known]
    return None if None in shares else _share_of_time(shares, recorded_s)


def _of_loss(shares: Sequence[float | None], total: Weights) -> float | None:
    """Where a window lost nothing there was nothing to win back in it."""
    # A loss may be rounding alone.
    has_loss = abs(total.lost_s.sum()) > EQUAL_TIMES * total.ideal_s.sum()
    if not has_loss or all(share is None for share in shares):
        return None
    return weighted([share or 0.0 for share in shares], total.lost_s)


@dataclass(frozen=True, slots=True)
class _WindowArrivals:
    """Arrivals of a window, its number of steps, and seconds that these took."""

    arrivals: ArrivalsRecord
    steps: float
    recorded_s: float


def _arrivals(known: Results) -> ArrivalsRecord | None:
    """Arrivals of windows with figures, in their order and of one run."""
    have = [
        _WindowArrivals(result.arrivals, num_steps(result), total_s(result, "recorded"))
        for result in known
        if result.arrivals is not None
    ]
    if not have:
        return None
    ranks = _RankMeans(have)
    waited_for_s = ranks.means("waited_for_s")
    mean_step_s = sum(part.recorded_s for part in have) / sum(part.steps for part in have)
    joint = ArrivalsRecord(
        num_occurrences=sum(part.arrivals.num_occurrences for part in have),
        num_ranks=max(part.arrivals.num_ranks or len(part.arrivals.rank) for part in have),
        waiting_share=mean_known([(part.arrivals.waiting_share, part.recorded_s) for part in have]),
        largest_share=max((wait_s or 0.0 for wait_s in waited_for_s), default=0.0) / mean_step_s,
        rank=tuple(ranks.at),
        dp_rank=ranks.newest([part.arrivals.dp_rank for part in have]),
        stage=ranks.newest([part.arrivals.stage for part in have]),
        host=ranks.newest([part.arrivals.host for part in have]),
        local_rank=ranks.newest([part.arrivals.local_rank for part in have]),
        waited_for_s=waited_for_s,
        waited_s=ranks.means("waited_s"),
        late_share=ranks.means("late_share"),
        own_delay_s=ranks.means("own_delay_s"),
        groups=_groups(have),
        culprits=(),
        per_step=ranks.by_step(),
    )
    return replace(joint, culprits=_late_ranks(have, joint, ranks, mean_step_s))


T = TypeVar("T")


class _RankMeans:
    """Every rank of any window, ascending: its means, and what the newest window knows of it."""

    def __init__(self, parts: Sequence[_WindowArrivals]) -> None:
        self._parts = parts
        every = sorted({rank for part in parts for rank in part.arrivals.rank})
        self.at = {rank: at for at, rank in enumerate(every)}
        self._columns = [np.array([self.at[rank] for rank in part.arrivals.rank]) for part in parts]

    def newest(self, of_windows: Sequence[Sequence[T | None]]) -> tuple[T | None, ...]:
        """Each rank's value in the newest window that knows it."""
        latest: list[T | None] = [None] * len(self.at)
        for columns, values in zip(self._columns, of_windows, strict=True):
            for at, value in zip(columns.tolist(), values, strict=True):
                if value is not None:
                    latest[at] = value
        return tuple(latest)

    def means(
        self, name: Literal["waited_for_s", "waited_s", "late_share", "own_delay_s"]
    ) -> BySteps:
        """The weighted mean of a rank's figures in the windows that know them."""
        total, weight = np.zeros(len(self.at)), np.zeros(len(self.at))
        for part, columns in zip(self._parts, self._columns, strict=True):
            of_window = part.arrivals.num_occurrences if name == "late_share" else part.steps
            values = np.array(getattr(part.arrivals, name), np.float64)
            is_known = np.isfinite(values)
            total[columns[is_known]] += values[is_known] * of_window
            weight[columns[is_known]] += of_window
        return tuple(float(t / w) if w > 0 else None for t, w in zip(total, weight, strict=True))

    def by_step(self) -> ArrivalsByStep | None:
        """[steps][ranks], None for ranks that a window does not have; None if one has no steps."""
        rows: list[BySteps] = []
        for part, columns in zip(self._parts, self._columns, strict=True):
            if part.arrivals.per_step is None:
                return None
            for values in part.arrivals.per_step.waited_for_s:
                row: list[float | None] = [None] * len(self.at)
                for at, value in zip(columns.tolist(), values, strict=True):
                    row[at] = value
                rows.append(tuple(row))
        return ArrivalsByStep(waited_for_s=tuple(rows))


def _groups(parts: Sequence[_WindowArrivals]) -> tuple[RankGroupRecord, ...]:
    """Groups by name, those that wait longest first; their members as far as windows name them."""
    seen: dict[str, list[tuple[RankGroupRecord, float]]] = {}
    for part in parts:
        for group in part.arrivals.groups:
            seen.setdefault(group.name, []).append((group, part.steps))
    joint = [_group(of_group) for of_group in seen.values()]
    return tuple(sorted(joint, key=lambda group: -(group.waited_s or 0.0))[:MAX_GROUPS])


def _group(seen: Sequence[tuple[RankGroupRecord, float]]) -> RankGroupRecord:
    return replace(
        seen[-1][0],
        num_occurrences=sum(group.num_occurrences for group, _ in seen),
        members=_members(seen),
        **_mean_fields(seen, "transfer_s", "waited_s", "bandwidth_bytes_s"),
    )


def _members(seen: Sequence[tuple[RankGroupRecord, float]]) -> tuple[GroupMember, ...]:
    """Members that every window names: of large groups each has the most waited for alone."""
    by_rank: dict[int, list[tuple[GroupMember, float, float]]] = {}
    for group, steps in seen:
        for member in group.members:
            weights = (member, steps, float(group.num_occurrences))
            by_rank.setdefault(member.rank, []).append(weights)
    members = [
        replace(
            of_rank[-1][0],
            **_mean_fields([(member, s) for member, s, _ in of_rank], "waited_for_s", "waited_s"),
            late_share=mean_known([(member.late_share, n) for member, _, n in of_rank]),
        )
        for of_rank in by_rank.values()
        if len(of_rank) == len(seen)
    ]
    return tuple(sorted(members, key=lambda member: -(member.waited_for_s or 0.0)))


def _late_ranks(
    parts: Sequence[_WindowArrivals],
    joint: ArrivalsRecord,
    ranks: _RankMeans,
    mean_step_s: float,
) -> tuple[LateRankRecord, ...]:
    """Late ranks of any window, with their cost over all windows."""
    newest: dict[int, LateRankRecord] = {}
    late_steps: dict[int, float] = {}
    for part in parts:
        for late in part.arrivals.culprits:
            newest[late.rank] = late
            so_far = late_steps.get(late.rank, 0.0)
            late_steps[late.rank] = so_far + (late.steps_late or 0.0) * part.steps
    total = sum(part.steps for part in parts)
    late_ranks = [
        replace(
            late,
            waited_for_s=joint.waited_for_s[at],
            share=(joint.waited_for_s[at] or 0.0) / mean_step_s,
            late_share=joint.late_share[at],
            steps_late=late_steps[late.rank] / total,
            own_delay_s=joint.own_delay_s[at],
        )
        for late, at in ((late, ranks.at[rank]) for rank, late in newest.items())
    ]
    return tuple(sorted(late_ranks, key=lambda late: -(late.share or 0.0)))
