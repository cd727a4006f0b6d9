"""One window as evidence and detectors see it: its replay, its report and the job's history.

`Case` holds them, and what is computed of them: an evidence function is marked with `evidence` and
answers once a case.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property, wraps
from typing import Any, TypeVar, TypeVarTuple

import numpy as np

from app.diagnosis.features import (
    SIGNAL_NAMES,
    Computations,
    Features,
    Pace,
    group_signals,
    work_s,
    work_signals,
)
from app.diagnosis.finding import Hosts, Worker, group_culprits, with_ranks
from app.diagnosis.first_steps import FirstSteps
from app.diagnosis.job_history import ExtendedHistory, History, extended_history, onset_in_history
from app.diagnosis.statistics.persistence import Onset
from app.engine.replays import WindowReplay
from app.engine.report import Report
from app.engine.what_if import Replayer
from app.result.finding import Culprit
from app.trace.job import Parallelism
from app.trace.window import Floats, Ints

AnswerT = TypeVar("AnswerT")
Ts = TypeVarTuple("Ts")
Culprits = tuple[Culprit, ...]


@dataclass(frozen=True)
class Case:
    """A window to diagnose; every figure is computed once, when first used.

    Steps are those that were replayed, ascending. Steps of equal structure form a group; figures of
    all groups are joined in the order of `steps`. `first_steps` are what the replay leaves out.
    """

    replay: WindowReplay
    report: Report
    history: History
    first_steps: FirstSteps | None = None

    @cached_property
    def answers(self) -> dict[Any, Any]:
        """What `evidence` keeps, by function and arguments."""
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
    def forward(self) -> Pace | None:
        """Every worker's forward computations in a step; None where some has none."""
        return self._pace(lambda group: group.forward)

    @cached_property
    def backward(self) -> Pace | None:
        """Every worker's backward computations in a step; None where some has none."""
        return self._pace(lambda group: group.backward)

    @cached_property
    def host_numbers(self) -> Ints:
        """[dp, pp], the host of every worker by its place in the order of names, -1 if unknown."""
        hosts = self.replay.window.hosts
        numbers = {host: number for number, host in enumerate(sorted(set(hosts.values())))}
        of_workers = np.full((self.parallelism.dp_size, self.parallelism.pp_size), -1, np.int64)
        for worker, host in hosts.items():
            of_workers[worker] = numbers[host]
        return of_workers

    @cached_property
    def signals(self) -> dict[str, Floats]:
        """{name: [steps, dp, pp]}, the signals that every group has (features.py)."""
        of_groups = [group_signals(group) for group in self.groups]
        names = [name for name in SIGNAL_NAMES if all(name in signals for signals in of_groups)]
        return {name: self._in_order([signals[name] for signals in of_groups]) for name in names}

    @cached_property
    def new_history(self) -> History:
        """What the window adds to the job's history."""
        return History(self.steps, self.report.recorded_s, self.signals | work_signals(self.replay))

    @cached_property
    def extended_history(self) -> ExtendedHistory:
        """The history before the window, and the window."""
        return extended_history(self.history, self.new_history)

    def onset_of(self, badness: Floats) -> Onset:
        """`onset_in_history` of badness [n], computed once an array."""
        key = "onset", id(badness)
        if key not in self.answers:
            # The array is kept as well, so that its id stays its own.
            self.answers[key] = badness, onset_in_history(self.extended_history, badness)
        onset: Onset = self.answers[key][1]
        return onset

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
        paces = [side.pace for side in chosen if side is not None]
        if len(paces) < len(chosen):
            return None
        return Pace(
            self._in_order([pace.mean_s for pace in paces]),
            self._in_order([pace.least_s for pace in paces]),
        )


def evidence(compute: Callable[[Case, *Ts], AnswerT]) -> Callable[[Case, *Ts], AnswerT]:
    """The function, which answers once a case and other arguments, which are hashable."""

    @wraps(compute)
    def answer(case: Case, *args: *Ts) -> AnswerT:
        key = compute, args
        if key not in case.answers:
            case.answers[key] = compute(case, *args)
        result: AnswerT = case.answers[key]
        return result

    return answer
