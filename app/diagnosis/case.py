"""One window as detectors see it: its replay, its report and the job's history."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from app.diagnosis.evidence.features import (
    SIGNAL_NAMES,
    Computations,
    Features,
    Pace,
    group_signals,
    work_s,
    work_signals,
)
from app.diagnosis.evidence.links import (
    DpGroups,
    Links,
    find_dp_groups,
    find_links,
    spans_hosts,
)
from app.diagnosis.evidence.outliers import LaunchDelays, Outliers, find_outliers, launch_delays
from app.diagnosis.evidence.reported_delays import AnnotatedDelays, annotated_delays, annotations_of
from app.diagnosis.evidence.slowness import Slowness, slowness_by_history, slowness_to_peers
from app.diagnosis.finding import Hosts, Worker, group_culprits, with_ranks
from app.diagnosis.job_history import (
    ExtendedHistory,
    History,
    extended_history,
    onset_in_history,
)
from app.diagnosis.statistics.persistence import Onset
from app.engine.medians import medians_of_known
from app.engine.metrics import MAD_TO_DEVIATION
from app.engine.replays import WindowReplay
from app.engine.report import Report
from app.engine.what_if import Replayer
from app.result.finding import Culprit
from app.trace.job import Parallelism
from app.trace.window import Floats, Ints, Trace

AnswerT = TypeVar("AnswerT")
KeyT = TypeVar("KeyT")
Culprits = tuple[Culprit, ...]


@dataclass(frozen=True)
class Case:
    """A window to diagnose; every figure is computed once, when first used (see features.py).

    Steps are those that were replayed, ascending. Steps of equal structure form a group; figures of
    all groups are joined in the order of `steps`.
    """

    replay: WindowReplay
    report: Report
    history: History

    def cached(self, compute: Callable[["Case"], AnswerT]) -> AnswerT:
        """The result of `compute(self)`, computed once for all detectors."""
        if compute not in self._cache:
            self._cache[compute] = compute(self)
        found: AnswerT = self._cache[compute]
        return found

    def cached_for(self, compute: Callable[["Case", KeyT], AnswerT], of: KeyT) -> AnswerT:
        """The result of `compute(self, of)`, computed once for each `of`, which is hashable."""
        key = compute, of
        if key not in self._cache:
            self._cache[key] = compute(self, of)
        found: AnswerT = self._cache[key]
        return found

    @cached_property
    def _cache(self) -> dict[Any, Any]:
        return {}

    @cached_property
    def groups(self) -> tuple[Features, ...]:
        """Steps of equal structure."""
        return tuple(
            Features(group, np.searchsorted(self.steps, group.steps))
            for group in self.replay.groups
        )

    def group_of(self, replayer: Replayer) -> Features:
        """The features of one of the replay's groups."""
        return next(group for group in self.groups if group.replayer is replayer)

    @cached_property
    def num_workers(self) -> int:
        """dp ranks times stages."""
        return self.parallelism.num_workers

    @cached_property
    def parallelism(self) -> Parallelism:
        """Sizes of the job."""
        return self.replay.window.job.parallelism

    def culprits(self, workers: Iterable[Worker], hosts: Hosts | None = None) -> Culprits:
        """The culprits of these workers (`group_culprits`), with global ranks."""
        named = group_culprits(
            workers, self.replay.window.hosts if hosts is None else hosts, self.parallelism
        )
        return tuple(self.with_rank(culprit, is_whole=True) for culprit in named)

    def with_rank(self, culprit: Culprit, *, is_whole: bool = False) -> Culprit:
        """The culprit with the global ranks of its worker or of its host's workers.

        With `is_whole` a host also says how many workers it has, as all of them are affected.
        """
        rank_of = self.replay.groups[0].grid.rank
        workers = self._workers_of(culprit)
        return with_ranks(culprit, workers, rank_of, self.parallelism, is_whole=is_whole)

    def _workers_of(self, culprit: Culprit) -> list[Worker]:
        if culprit.dp_rank is not None and culprit.stage is not None:
            return [(culprit.dp_rank, culprit.stage)]
        if culprit.host is None or culprit.dp_rank is not None or culprit.stage is not None:
            return []
        hosts = self.replay.window.hosts
        return sorted(worker for worker, host in hosts.items() if host == culprit.host)

    @cached_property
    def steps(self) -> Ints:
        """[steps], ascending."""
        return np.asarray(self.replay.steps, np.int64)

    @cached_property
    def work_s(self) -> Floats:
        """[steps, dp, pp], seconds that a worker computed, without waits and `gc`."""
        return self.joined(work_s)

    @cached_property
    def is_usual(self) -> NDArray[np.bool_]:
        """[steps], False for odd steps: the first ones, evaluations, checkpoints (`odd_steps`)."""
        own_s, step_s = self.work_s, self.report.recorded_s
        launch_s = self.signals.get("launch_s")
        begins = self.extended_history.num_before == 0
        if launch_s is None:
            return ~odd_steps(own_s, step_s, begins=begins)
        # A step that waits for data is no evaluation.
        launch_s = np.maximum(0.0, launch_s - self.late_by_s("data-wait"))
        odd = odd_steps(own_s + launch_s, step_s, begins=begins)
        # Frequent planned pauses can hide rare evaluations in the sum: look at delays alone, too.
        return ~(odd | odd_steps(launch_s, step_s, begins=begins))

    def annotations(self, name: str) -> Trace | None:
        """The client's annotations of one type; None where there are none."""
        return self.cached_for(_annotations, name)

    def annotated_delays(self, name: str) -> tuple[AnnotatedDelays, ...]:
        """Launches of each group that one type of annotation made late; empty without any."""
        return self.cached_for(_annotated_delays, name)

    def late_by_s(self, annotation: str) -> Floats:
        """[steps, dp, pp], launch delays that the client puts down to a type of annotation."""
        return self.cached_for(_late_by_s, annotation)

    @cached_property
    def usual_steps(self) -> Ints:
        """Positions in `steps` of the usual steps, by which workers are judged."""
        return np.flatnonzero(self.is_usual)

    @cached_property
    def forward(self) -> Pace | None:
        """Every worker's forward computations in each step; None where some has none."""
        return self._pace(lambda group: group.forward)

    @cached_property
    def backward(self) -> Pace | None:
        """Every worker's backward computations in each step; None where some has none."""
        return self._pace(lambda group: group.backward)

    @cached_property
    def slowness(self) -> Slowness | None:
        """Every worker compared with its peers; None without forward, backward or usual steps."""
        if self.forward is None or self.backward is None or not self.usual_steps.size:
            return None
        if self.parallelism.dp_size == 1:
            return slowness_by_history(
                self.extended_history, self.forward, self.backward, self.usual_steps
            )
        return slowness_to_peers(self.forward, self.backward, self.usual_steps, self._host_numbers)

    @property
    def _host_numbers(self) -> Ints:
        """[dp, pp], a number for each host, -1 where unknown."""
        hosts = self.replay.window.hosts
        numbers = {host: number for number, host in enumerate(sorted(set(hosts.values())))}
        found = np.full((self.parallelism.dp_size, self.parallelism.pp_size), -1, np.int64)
        for worker, host in hosts.items():
            found[worker] = numbers[host]
        return found

    @cached_property
    def outliers(self) -> tuple[Outliers, ...]:
        """Single long computations, of each group."""
        return tuple(find_outliers(group) for group in self.groups)

    @cached_property
    def delays(self) -> tuple[LaunchDelays, ...]:
        """Launch delays of computations, of each group."""
        return tuple(launch_delays(group) for group in self.groups)

    @cached_property
    def links(self) -> tuple[Links | None, ...]:
        """Transfers between stages by link, of each group; None where there are none."""
        return tuple(find_links(group, self.replay.window.hosts) for group in self.groups)

    @cached_property
    def dp_groups(self) -> tuple[DpGroups | None, ...]:
        """Collectives of dp ranks by stage, of each group; None where there are none."""
        spans = spans_hosts(self.replay.window.hosts, self.parallelism)
        of_groups = zip(self.groups, self.links, strict=True)
        return tuple(find_dp_groups(group, spans, links) for group, links in of_groups)

    @cached_property
    def signals(self) -> dict[str, Floats]:
        """{name: [steps, dp, pp]}, the signals that every group has (features.py)."""
        of_groups = [group_signals(group) for group in self.groups]
        names = [name for name in SIGNAL_NAMES if all(name in each for each in of_groups)]
        return {name: self._in_order([each[name] for each in of_groups]) for name in names}

    @cached_property
    def new_history(self) -> History:
        """What the window adds to the job's history."""
        return History(self.steps, self.report.recorded_s, self.signals | work_signals(self.replay))

    @cached_property
    def extended_history(self) -> ExtendedHistory:
        """The history before the window, and the window."""
        return extended_history(self.history, self.new_history)

    def onset_of(self, badness: Floats) -> Onset:
        """`onset_in_history` of badness [n], computed once for each array."""
        known = self._onsets.get(id(badness))
        if known is None:
            found = onset_in_history(self.extended_history, badness)
            known = self._onsets[id(badness)] = badness, found
        return known[1]

    @cached_property
    def _onsets(self) -> dict[int, tuple[Floats, Onset]]:
        # The array is kept as well, so that its id stays its own.
        return {}

    def joined(self, compute: Callable[[Features], Floats]) -> Floats:
        """[steps, ...], figures of all groups [steps of the group, ...] in the order of `steps`."""
        return self._in_order([compute(group) for group in self.groups])

    def _in_order(self, answers: list[Floats]) -> Floats:
        if len(answers) == 1:
            return answers[0]
        order = np.argsort(np.concatenate([group.positions for group in self.groups]))
        return np.concatenate(answers)[order]

    def _pace(self, choose: Callable[[Features], Computations | None]) -> Pace | None:
        chosen = [choose(group) for group in self.groups]
        paces = [each.pace for each in chosen if each is not None]
        if len(paces) < len(chosen):
            return None
        return Pace(
            self._in_order([pace.mean_s for pace in paces]),
            self._in_order([pace.least_s for pace in paces]),
        )


def _annotations(case: Case, name: str) -> Trace | None:
    return annotations_of(case.replay.window, name)


def _annotated_delays(case: Case, name: str) -> tuple[AnnotatedDelays, ...]:
    notes = case.annotations(name)
    if notes is None:
        return ()
    return tuple(
        annotated_delays(group, late, notes, is_between=name == "gc-pause")
        for group, late in zip(case.groups, case.delays, strict=True)
    )


def _late_by_s(case: Case, annotation: str) -> Floats:
    sizes = case.parallelism
    found = np.zeros((case.steps.size, sizes.dp_size, sizes.pp_size))
    noted = case.annotated_delays(annotation)
    if not noted:
        return found
    for group, late, each in zip(case.groups, case.delays, noted, strict=True):
        dp_rank, step = np.divmod(each.lane, len(group.steps))
        np.add.at(found, (group.positions[step], dp_rank, late.stage[each.at]), each.seconds)
    return found


# Of the usual step; papers call that a straggler.
_MIN_DIFFERENCE = 0.10
# Standard deviations, for jobs whose steps vary by nature.
_MANY_DEVIATIONS = 6.0
# Warm-up takes fewer steps than this.
_WARM_UP = 4
# Fewer steps do not show what is usual, and if more than this share differ, none is odd.
_MIN_STEPS = 4
_MAX_SHARE = 1 / 3
# Steps of the running median: three odd ones do not move it, and it follows a new level.
_NEARBY_STEPS = 7
# Steps of one new level differ by less than this share of the change; an evaluation and a
# checkpoint in a row differ by more.
_MAX_LEVEL_DIFFERENCE = 0.25
# Odd steps in a row: an evaluation and a checkpoint.
_MAX_ADJACENT = 2


def odd_steps(own_s: Floats, step_s: Floats, *, begins: bool) -> NDArray[np.bool_]:
    """[steps], steps in which the typical worker of some stage took far more or less than usual.

    The job's first steps, an evaluation, a checkpoint: one or two steps between usual ones. A
    change that lasts makes no step odd, and neither does a fault of a few workers.

    Args:
        own_s: [steps, dp, pp], seconds that each worker computed, and its launch delays.
        step_s: [steps], seconds each step took.
        begins: no earlier step is known, so the job may be warming up.
    """
    num_steps = step_s.size
    odd = np.zeros(num_steps, np.bool_)
    if num_steps < _MIN_STEPS:
        return odd
    above_s = _typical(own_s)
    away_s = np.abs(above_s)
    deviation_s = MAD_TO_DEVIATION * medians_of_known(away_s.T)
    limit_s = np.maximum(_MIN_DIFFERENCE * medians_of_known(step_s), _MANY_DEVIATIONS * deviation_s)
    far = np.asarray((away_s > limit_s).any(axis=1))
    if not far.any():
        return odd
    for first, end in _runs(far):
        may_go_on = end == num_steps and _alike(above_s[first], above_s[end - 1])
        odd[first:end] = end - first <= (1 if may_go_on else _MAX_ADJACENT)
    is_slow = np.asarray((above_s > limit_s).any(axis=1))
    warm_up = int(np.argmin(is_slow)) if begins and not is_slow[:_WARM_UP].all() else 0
    if odd[warm_up:].sum() > _MAX_SHARE * num_steps:
        odd[:] = False
    odd[:warm_up] = True
    return odd if not odd.all() else np.zeros(num_steps, np.bool_)


def _typical(own_s: Floats) -> Floats:
    """[steps, pp], seconds of each stage's typical worker above the running median over steps.

    By stage, as a delay may be on the first one only. The lower median over dp ranks: one slow rank
    of two makes no step odd.
    """
    low = (own_s.shape[1] - 1) // 2
    typical_s = np.partition(own_s, low, axis=1)[:, low]
    size = min(_NEARBY_STEPS, typical_s.shape[0])
    medians_s = medians_of_known(sliding_window_view(typical_s, size, axis=0))
    nearest = np.clip(np.arange(typical_s.shape[0]) - size // 2, 0, len(medians_s) - 1)
    return np.asarray(typical_s - medians_s[nearest])


def _alike(one_s: Floats, other_s: Floats) -> bool:
    """Whether two steps differ from usual by about the same on all stages."""
    apart_s, size_s = np.abs(one_s - other_s).max(), np.abs(one_s).max()
    return bool(apart_s <= _MAX_LEVEL_DIFFERENCE * size_s)


def _runs(flags: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """First and end of each run of True."""
    edges = np.flatnonzero(np.diff(flags.astype(np.int8), prepend=0, append=0))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))
