"""What changed in a job's steps: when, by how much, and on which workers?

Read `job_changes` for the changes that results list, `common_rises` for a slowdown of all workers.
`compute_per_work` divides computation times by each worker's work.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from app.diagnosis.case import Case
from app.diagnosis.features import WORK_NAMES
from app.diagnosis.finding import Hosts, Worker, group_culprits
from app.diagnosis.job_history import ExtendedHistory
from app.diagnosis.statistics import change_points
from app.diagnosis.statistics.change_points import (
    ChangeCriteria,
    LevelChange,
    level_changes,
    level_changes_of_each,
    still_up,
)
from app.diagnosis.statistics.ramps import fit_shape, ramp_shape, rising_ramp
from app.diagnosis.statistics.robust import lower_quantile
from app.engine.medians import median_of, medians_of_known
from app.result.finding import Culprit
from app.result.join import MAX_CHANGES, MAX_STEPS_APART
from app.result.window_result import JobChange
from app.trace.job import Parallelism
from app.trace.window import Floats


@dataclass(frozen=True, slots=True)
class JobChangeLimits:
    """Which changes are of all workers, and which are listed. Chosen on made jobs."""

    # Steps before and after a rise of all workers: fewer do not give its levels.
    rise_before: int = 5
    rise_after: int = 3
    # Its ratio: noise differs between workers, so a smaller one is significant where all have it.
    min_rise_ratio: float = 1.05
    # Quantile of the workers that rose least: a fault of some workers leaves these unchanged.
    least_risen: float = 0.1
    # The least risen workers rose by at least this share of the median worker (in logarithms).
    min_share_of_typical: float = 0.6
    # The spread between workers may grow by so much (standard deviation of logarithms).
    max_more_spread: float = 0.02
    # Standard errors needed where another signal changed at the same step.
    known_deviations: float = 2.5
    # Work estimated below this share of the usual cannot be divided by.
    min_work: float = 0.2
    # Step time follows the slowest worker, so a few odd steps in a row are no change of it: so many
    # steps are needed on either side.
    lasting_steps: int = 8
    # A fall up to this position is the end of the warm-up.
    warm_up_steps: int = 5
    # A change of this share of the workers is one of all.
    min_share_of_all: float = 0.9

    @property
    def common_rise(self) -> ChangeCriteria:
        """What a rise of all workers must show."""
        return change_points.LIMITS.criteria(self.rise_before, self.rise_after, self.min_rise_ratio)


LIMITS = JobChangeLimits()
# Unit of launch lateness, as a share of a step.
_DELAY_UNIT = 0.02
# Workers whose median is taken, and workers of large jobs whose changes are searched: those that
# vary most, up to 1 ms each.
_MAX_SAMPLED = 64
_MAX_WORKERS = 128
# Half of a normal variable's values are within so many standard deviations.
_HALF_WITHIN = 0.6745
# Steps on either side that show whether other workers changed as well.
_NEARBY_STEPS = 8


def signal_against_others(case: Case, signal: str, workers: Sequence[Worker]) -> Floats | None:
    """[n], the mean of a signal over some workers, divided by the median over all others.

    Without others it is divided by its own minimum. None where the job has no such signal.
    """
    values = case.extended_history.signals.get(signal)
    if values is None or not workers:
        return None
    is_one = np.zeros(values.shape[1:], np.bool_)
    is_one[tuple(np.transpose(workers))] = True
    own = values[:, is_one].mean(axis=1)
    if is_one.all():
        usual = np.full(own.size, np.min(own, initial=np.inf, where=np.isfinite(own)))
    else:
        usual = np.median(values[:, ~is_one], axis=1)
    ratio: Floats = np.divide(own, usual, out=np.full(own.size, np.nan), where=usual > 0)
    return ratio


def launch_lateness(case: Case, workers: Sequence[Worker]) -> Floats | None:
    """[n], 1 + the mean launch delay of some workers, in units of 2 % of the median step."""
    values = case.extended_history.signals.get("launch_s")
    if values is None or not workers:
        return None
    late_s = values[(slice(None), *np.transpose(workers))].mean(axis=1)
    return np.asarray(1 + late_s / (_DELAY_UNIT * np.median(case.extended_history.step_s)))


def compute_per_work(history: ExtendedHistory) -> Floats | None:
    """[n, dp, pp], `compute_s` divided by the worker's work in that step, 1 = the usual work.

    Work is fitted to the computation times of the whole history from tokens and squared lengths.
    A worker that sends neither gets the mean work of the step's others, or 1. None without
    computations.
    """
    return history.derived(_compute_per_work)


def _compute_per_work(history: ExtendedHistory) -> Floats | None:
    compute_s = history.signals.get("compute_s")
    if compute_s is None:
        return None
    sent = [history.signals[name] for name in WORK_NAMES if name in history.signals]
    work = _work(compute_s, sent) if sent else None
    return compute_s if work is None else compute_s / work


def _work(compute_s: Floats, sent: list[Floats]) -> Floats | None:
    """[n, dp, pp], 1 = the usual work; None where tokens and lengths do not explain the times."""
    known = np.isfinite(compute_s) & np.isfinite(sent).all(axis=0)
    if not known.any() or any(not np.mean(column[known]) for column in sent):
        return None
    # Stages differ in their work: each worker is divided by its own median.
    shares = compute_s / medians_of_known(np.moveaxis(compute_s, 0, -1))
    terms = [np.ones(compute_s.shape), *(column / np.mean(column[known]) for column in sent)]
    factors = np.stack([term[known] for term in terms], axis=-1)
    weights = np.linalg.lstsq(factors, shares[known], rcond=None)[0]
    work = np.where(known, np.tensordot(weights, np.stack(terms), axes=1), np.nan)
    return _filled(work) if (work[known] > LIMITS.min_work).all() else None


def _filled(work: Floats) -> Floats:
    """Unknown work becomes the mean of the step's other workers, or 1 where none is known."""
    known = np.isfinite(work)
    count = known.sum(axis=(1, 2))
    of_step = np.where(count > 0, np.nansum(work, axis=(1, 2)) / np.maximum(count, 1), 1.0)
    return np.where(known, work, of_step[:, None, None])


@dataclass(frozen=True, slots=True)
class CommonRise:
    """A signal rose on every worker by about the same ratio, and has stayed up.

    `badness` [n] is the typical worker's signal divided by its level before `change`;
    `standard_errors` is how many of them the two levels are apart.
    """

    change: LevelChange
    ratio: float
    badness: Floats
    standard_errors: float

    def factors(self, num_before: int) -> Floats:
        """[steps of the window], the slowdown of each step: 1 before the change, `ratio` after."""
        steps = np.arange(num_before, self.badness.size)
        begin, until = self.change.position, self.change.until
        share = np.clip((steps - begin + 1) / (until - begin + 1), 0.0, 1.0)
        return np.asarray(self.ratio**share)


def least_common_rises(
    parts: Sequence[Sequence[Floats | None]], known: LevelChange | None = None
) -> list[CommonRise | None]:
    """The smallest rise of each part's signals; None where not all of them rose."""
    known_signals = [signal for part in parts for signal in part if signal is not None]
    rises = iter(common_rises(known_signals, known))
    least: list[CommonRise | None] = []
    for part in parts:
        of_part = [None if signal is None else next(rises) for signal in part]
        risen = [rise for rise in of_part if rise is not None]
        is_all = len(risen) == len(of_part)
        least.append(min(risen, key=lambda rise: rise.ratio) if is_all else None)
    return least


def common_rises(
    signals: Sequence[Floats], known: LevelChange | None = None
) -> list[CommonRise | None]:
    """The rise of each signal [n, dp, pp] on every worker, if there is one; NaN where not known.

    With `known`, a change of another signal: whether these rose with it, which takes less evidence.
    """
    by_worker = [signal.reshape(signal.shape[0], -1) for signal in signals]
    by_worker = [signal[:, (signal > 0).any(axis=0)] for signal in by_worker]
    may_rise = np.array([signal.shape[1] >= 2 for signal in by_worker], np.bool_)
    if known is None and may_rise.any():
        several = [signal for signal in by_worker if signal.shape[1] >= 2]
        may_rise[may_rise] = _may_rise([_sampled_median(signal) for signal in several])
    return [
        _common_rise(signal, known) if is_open else None
        for signal, is_open in zip(by_worker, may_rise.tolist(), strict=True)
    ]


def _sampled_median(signal: Floats) -> Floats:
    """[n], the median of a few workers of a signal [n, workers]; NaN where one is not known."""
    some = signal[:, :: 1 + signal.shape[1] // _MAX_SAMPLED]
    return np.where(np.isnan(some).any(axis=1), np.nan, medians_of_known(np.nan_to_num(some)))


def _may_rise(medians: list[Floats]) -> list[bool]:
    """Whether these medians of signals rose: a quick check whether all workers did."""
    criteria = LIMITS.common_rise
    return [
        still_up(changes, criteria) is not None
        or rising_ramp(median, criteria, changes) is not None
        for median, changes in zip(
            medians, level_changes_of_each(np.stack(medians), criteria), strict=True
        )
    ]


def _common_rise(of_worker: Floats, known: LevelChange | None) -> CommonRise | None:
    is_known = np.asarray((of_worker > 0).all(axis=1) & np.isfinite(of_worker).all(axis=1))
    if not is_known.any():
        return None
    shares = np.full(of_worker.shape, np.nan)
    shares[is_known] = of_worker[is_known] / medians_of_known(of_worker[is_known].T)
    if known is not None:
        return _rise_at(known, shares, is_known, is_known_elsewhere=True)
    quantiles = (0.5, LIMITS.least_risen)
    rises = (_rise_of_quantile(shares, is_known, share) for share in quantiles)
    return next((rise for rise in rises if rise is not None), None)


def _rise_of_quantile(shares: Floats, is_known: np.ndarray, share: float) -> CommonRise | None:
    """The rise at the latest onset of this quantile over workers; None where it never rose."""
    typical = np.full(shares.shape[0], np.nan)
    typical[is_known] = np.sort(shares[is_known], axis=1)[:, int(share * (shares.shape[1] - 1))]
    criteria = LIMITS.common_rise
    changes = level_changes(typical, criteria)
    onsets = (rising_ramp(typical, criteria, changes), still_up(changes, criteria))
    rises = (_rise_at(onset, shares, is_known) for onset in onsets if onset is not None)
    return next((rise for rise in rises if rise is not None), None)


def _rise_at(
    change: LevelChange, shares: Floats, is_known: np.ndarray, *, is_known_elsewhere: bool = False
) -> CommonRise | None:
    """The rise at a change if nearly all workers rose alike.

    `is_known_elsewhere`: another signal shows the change, so the workers' spread does not count.
    """
    if change.until - change.position + 1 >= change_points.LIMITS.min_ramp_steps:
        return _rise_on_ramp(change, shares, is_known, is_known_elsewhere=is_known_elsewhere)
    at = np.arange(shares.shape[0])
    before = shares[is_known & (at < change.position)]
    after = shares[is_known & (at >= change.until)]
    if len(before) < LIMITS.rise_before or not len(after):
        return None
    level = medians_of_known(before.T)
    ratios = medians_of_known(after.T) / level
    ratio = median_of(ratios)
    lowest = lower_quantile(ratios, LIMITS.least_risen)
    chance = _error(before, after) if is_known_elsewhere else 0.0
    if ratio <= 1 or lowest <= 1 or not _rose_alike(np.log(ratio), np.log(lowest), chance):
        return None
    if not is_known_elsewhere:
        most = 2 * _spread(before / level) + LIMITS.max_more_spread
        if _spread(after / (level * ratio)) > most:
            return None
    badness = np.full(at.size, np.nan)
    badness[is_known] = medians_of_known(shares[is_known] / level)
    errors = _standard_errors(badness, change, is_known)
    if errors < _enough(is_known_elsewhere):
        return None
    return CommonRise(change, ratio, badness, errors)


def _rose_alike(typical: float, lowest: float, chance: float) -> bool:
    """Whether the least risen workers rose nearly as much as the typical one, in logarithms."""
    return lowest >= LIMITS.min_share_of_typical * typical - chance


def _enough(is_known_elsewhere: bool) -> float:
    """Standard errors that a rise needs."""
    if is_known_elsewhere:
        return LIMITS.known_deviations
    return change_points.LIMITS.min_deviations


def _rise_on_ramp(
    change: LevelChange, shares: Floats, is_known: np.ndarray, *, is_known_elsewhere: bool
) -> CommonRise | None:
    """The rise along a ramp if nearly all workers rose alike: each worker's slope is fitted."""
    num_before = int(is_known[: change.position].sum())
    if 0 < num_before < change_points.LIMITS.min_before:
        return None  # a ramp begins after enough steps, or with the first
    shape = ramp_shape(shares.shape[0], change.position, change.until)[is_known]
    fit = fit_shape(np.log(shares[is_known]), shape)
    rise = float(np.median(fit.rise))
    lowest = lower_quantile(fit.rise, LIMITS.least_risen)
    chance = float(np.median(fit.rise_error))
    if rise <= 0 or lowest <= 0 or not _rose_alike(rise, lowest, chance):
        return None
    badness = np.median(shares / np.exp(fit.level), axis=1)
    typical = fit_shape(np.log(badness[is_known])[:, None], shape)
    errors = float(typical.rise[0] / typical.rise_error[0])
    if errors < _enough(is_known_elsewhere):
        return None
    return CommonRise(change, float(np.exp(rise)), badness, errors)


def _error(before: Floats, after: Floats) -> float:
    """Standard error of the typical worker's ratio, in logarithms."""
    squares = sum(_clipped_variances(np.log(part.T)) / len(part) for part in (before, after))
    return median_of(np.sqrt(squares))


def _spread(shares: Floats) -> float:
    """Median over steps of the workers' spread, a robust standard deviation of logarithms."""
    logs = np.log(shares)
    away = np.abs(logs - medians_of_known(logs)[:, None])
    return median_of(medians_of_known(away) / _HALF_WITHIN)


def _standard_errors(badness: Floats, change: LevelChange, is_known: np.ndarray) -> float:
    logs, at = np.log(badness), np.arange(badness.size)
    parts = [logs[is_known & (at < change.position)], logs[is_known & (at >= change.until)]]
    error = np.sqrt(sum(_clipped_variances(part[None]) / part.size for part in parts))
    return float((median_of(parts[1]) - median_of(parts[0])) / error[0])


def _clipped_variances(logs: Floats) -> Floats:
    """Variances of series [series, n] with outliers clipped, as a job's first step is one."""
    middle = medians_of_known(logs)[:, None]
    reach = change_points.LIMITS.outlier_deviations * medians_of_known(np.abs(logs - middle))
    reach = reach[:, None] / _HALF_WITHIN
    clipped = np.clip(logs, middle - reach, middle + reach)
    return np.asarray(np.maximum(clipped.var(axis=1), 1e-6))


def job_changes(
    history: ExtendedHistory, hosts: Hosts, parallelism: Parallelism
) -> tuple[JobChange, ...]:
    """The newest changes in the history, ascending by step."""
    lasting, steps = change_points.LIMITS.usual, LIMITS.lasting_steps
    changes = [
        _job_change(history, "step-time", change, change.before, change.ratio)
        for change in level_changes(history.step_s, lasting._replace(before=steps, after=steps))
    ]
    changes += _of_workers(history, hosts, parallelism)
    return tuple(sorted(changes, key=lambda change: (change.step, change.what))[-MAX_CHANGES:])


def _of_workers(history: ExtendedHistory, hosts: Hosts, sizes: Parallelism) -> Iterator[JobChange]:
    compute_s = compute_per_work(history)
    if compute_s is None:
        return
    of_worker = compute_s.reshape(history.num_steps, -1).T
    chosen = _most_varying(of_worker)
    changes = [
        (change, int(worker))
        for worker, series in zip(chosen, level_changes_of_each(of_worker[chosen]), strict=True)
        for change in series
        if not _ends_warm_up(change)
    ]
    for shared in _group_by_step(changes):
        ratio = median_of(np.array([change.ratio for change, _ in shared]))
        typical, _ = min(shared, key=lambda row: abs(row[0].ratio - ratio))
        hit = {worker for _, worker in shared}
        if chosen.size < len(of_worker):
            hit |= _followers(of_worker, typical, ratio)
        workers = [divmod(worker, sizes.pp_size) for worker in sorted(hit)]
        before_s = float(np.mean([change.before for change, _ in shared]))
        is_all = len(hit) >= LIMITS.min_share_of_all * len(of_worker)
        culprits = () if is_all else group_culprits(workers, hosts, sizes)
        yield _job_change(history, "compute", typical, before_s, ratio, culprits)


def _ends_warm_up(change: LevelChange) -> bool:
    """Whether it is a fall right after the epoch's first steps, which are slow to warm up."""
    return change.ratio < 1 and change.position <= LIMITS.warm_up_steps


def _most_varying(of_worker: Floats) -> np.ndarray:
    """Positions of the workers to search, of series [workers, n]."""
    if len(of_worker) <= _MAX_WORKERS:
        return np.arange(len(of_worker))
    known = of_worker[:, np.isfinite(of_worker).all(axis=0)]
    if not known.shape[1]:
        return np.arange(_MAX_WORKERS)
    varies = known.std(axis=1) / known.mean(axis=1)
    return np.argsort(-varies, kind="stable")[:_MAX_WORKERS]


def _group_by_step(
    changes: list[tuple[LevelChange, int]],
) -> Iterator[list[tuple[LevelChange, int]]]:
    """Groups of changes (with their workers) in one direction at about the same step."""
    for is_up in (True, False):
        shared: list[tuple[LevelChange, int]] = []
        of_one_way = [row for row in changes if (row[0].ratio > 1) == is_up]
        for change, worker in sorted(of_one_way, key=lambda row: row[0].position):
            if shared and change.position - shared[0][0].position > MAX_STEPS_APART:
                yield shared
                shared = []
            shared.append((change, worker))
        if shared:
            yield shared


def _followers(of_worker: Floats, change: LevelChange, ratio: float) -> set[int]:
    """The workers whose level changed by at least half as much at the same time."""
    first, end = max(0, change.position - _NEARBY_STEPS), change.until + _NEARBY_STEPS
    parts = of_worker[:, first : change.position], of_worker[:, change.until : end]
    before, after = (np.median(part, axis=1) for part in parts)
    way = np.log(after / before) / np.log(ratio)
    return set(np.flatnonzero(way >= 0.5).tolist())


def _job_change(
    history: ExtendedHistory,
    what: Literal["step-time", "compute"],
    change: LevelChange,
    before_s: float,
    ratio: float,
    culprits: tuple[Culprit, ...] = (),
) -> JobChange:
    steps = int(history.steps[change.position]), int(history.steps[change.until])
    after_s = before_s * ratio
    return JobChange(
        step=steps[0],
        until_step=steps[1],
        what=what,
        before_s=before_s,
        after_s=after_s,
        ratio=after_s / before_s,
        culprits=culprits,
    )
