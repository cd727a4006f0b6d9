"""One window as detectors see it: replayed, reported on, with the job's own history."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from app.diagnosis import signals as figures
from app.diagnosis.course import Course, course_of
from app.diagnosis.delays import Delays, delays
from app.diagnosis.dp_groups import DpGroups, dp_groups
from app.diagnosis.features import Computations, Features, Pace
from app.diagnosis.finding import Culprit
from app.diagnosis.grouping import Hosts, Worker, culprits
from app.diagnosis.history import History
from app.diagnosis.links import Links, links, same_host
from app.diagnosis.load import load
from app.diagnosis.outliers import Outliers, outliers
from app.diagnosis.slowness import Slowness, slowness, slowness_by_itself
from app.diagnosis.usual import odd_steps
from app.engine.replays import WindowReplay
from app.engine.report import Report
from app.engine.what_if import Replayer
from app.trace.job import Parallelism
from app.trace.window import Floats, Ints

Answer = TypeVar("Answer")
Culprits = tuple[Culprit, ...]


@dataclass(frozen=True)
class Case:
    """What is known when a window is diagnosed; features.py says how to ask for it.

    Steps are those that were replayed, ascending; steps of different structure are in groups of
    their own, and figures of all of them are joined in the order of `steps`.
    """

    replay: WindowReplay
    report: Report
    history: History

    def ask(self, question: Callable[["Case"], Answer]) -> Answer:
        """The answer to what several detectors ask of a case, worked out once."""
        if question not in self._answers:
            self._answers[question] = question(self)
        answer: Answer = self._answers[question]
        return answer

    @cached_property
    def _answers(self) -> dict[Any, Any]:
        return {}

    @cached_property
    def groups(self) -> tuple[Features, ...]:
        """Steps of equal structure."""
        return tuple(Features(group) for group in self.replay.groups)

    def group_of(self, replayer: Replayer) -> Features:
        """The features of one of the replay's groups."""
        return next(group for group in self.groups if group.replayer is replayer)

    def at(self, group: Features) -> Ints:
        """[steps of the group], their positions in `steps`."""
        return self._positions[group.replayer.steps]

    @cached_property
    def _positions(self) -> dict[tuple[int, ...], Ints]:
        return {group.steps: np.searchsorted(self.steps, group.steps) for group in self.groups}

    @property
    def parallelism(self) -> Parallelism:
        """Sizes of the job."""
        return self.replay.window.job.parallelism

    def host(self, dp_rank: int, stage: int) -> str | None:
        """Where a worker runs, if that is known."""
        return self.replay.window.hosts.get((dp_rank, stage))

    def culprits(self, workers: Iterable[Worker], hosts: Hosts | None = None) -> Culprits:
        """Who is to blame for these workers (grouping.py), with the global rank of a worker."""
        named = culprits(
            workers, self.replay.window.hosts if hosts is None else hosts, self.parallelism
        )
        return tuple(self.with_rank(culprit) for culprit in named)

    def with_rank(self, culprit: Culprit) -> Culprit:
        """The culprit with the global rank of its worker, where it is one."""
        if culprit.rank is not None or culprit.dp_rank is None or culprit.stage is None:
            return culprit
        rank = int(self.replay.groups[0].grid.rank[culprit.dp_rank, culprit.stage])
        return replace(culprit, rank=rank)

    @cached_property
    def steps(self) -> Ints:
        """[steps], ascending."""
        return np.asarray(self.replay.steps, np.int64)

    @cached_property
    def is_usual(self) -> NDArray[np.bool_]:
        """[steps], False for first, evaluation and checkpoint steps (usual.py)."""
        work_s, step_s = self.joined(figures.work_s), self.report.recorded_s
        launch_s = self.signals.get("launch_s")
        begins = self.course.num_before == 0
        if launch_s is None:
            return ~odd_steps(work_s, step_s, begins=begins)
        odd = odd_steps(work_s + launch_s, step_s, begins=begins)
        # Planned pauses in computations may be too many to be odd, and evaluations beside be few.
        return ~(odd | odd_steps(launch_s, step_s, begins=begins))

    @cached_property
    def usual_steps(self) -> Ints:
        """Positions in `steps` of those that workers can be judged by."""
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
        """Every worker against its peers; None without forward and backward, or usual steps."""
        if self.forward is None or self.backward is None or not self.usual_steps.size:
            return None
        if self.parallelism.dp_size == 1:
            return slowness_by_itself(self.course, self.forward, self.backward, self.usual_steps)
        return slowness(self.forward, self.backward, self.usual_steps)

    @cached_property
    def outliers(self) -> tuple[Outliers, ...]:
        """Lone long computations, of each group."""
        return tuple(outliers(group) for group in self.groups)

    @cached_property
    def delays(self) -> tuple[Delays, ...]:
        """Launch delays of computations, of each group."""
        return tuple(delays(group) for group in self.groups)

    @cached_property
    def links(self) -> tuple[Links | None, ...]:
        """Transfers between stages by link, of each group; None where there are none."""
        where = same_host(self.replay.window.hosts, self.parallelism)
        return tuple(links(group, where) for group in self.groups)

    @cached_property
    def dp_groups(self) -> tuple[DpGroups | None, ...]:
        """Collectives of dp ranks by stage, of each group; None where there are none."""
        return tuple(dp_groups(group) for group in self.groups)

    @cached_property
    def signals(self) -> dict[str, Floats]:
        """{name: [steps, dp, pp]}, those that every group has (signals.py)."""
        of_groups = [figures.signals(group) for group in self.groups]
        names = [name for name in figures.NAMES if all(name in each for each in of_groups)]
        return {name: self._in_order([each[name] for each in of_groups]) for name in names}

    @cached_property
    def recent(self) -> History:
        """What the window adds to the job's history."""
        return History(self.steps, self.report.recorded_s, self.signals | load(self.replay))

    @cached_property
    def course(self) -> Course:
        """The history before the window, and the window."""
        return course_of(self.history, self.recent)

    def joined(self, ask: Callable[[Features], Floats]) -> Floats:
        """[steps, ...], answers of all groups [steps of the group, ...] in the order of `steps`."""
        return self._in_order([ask(group) for group in self.groups])

    def _in_order(self, answers: list[Floats]) -> Floats:
        if len(answers) == 1:
            return answers[0]
        order = np.argsort(np.concatenate([self.at(group) for group in self.groups]))
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
