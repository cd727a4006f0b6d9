"""True faults of a simulated job, the right answers to them, and the stated findings.

Culprits are compared as the workers that they are; a fault's cost is the difference to the same job
without it, same seed.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from app.result.finding import Culprit
from app.synth.cluster import World
from app.synth.faults import fault as synth_fault
from app.synth.faults.fault import neighbours
from app.synth.truth import FaultStepTimes
from app.trace.job import Parallelism
from app.trace.window import Floats, Ints
from benchmarks.diagnosis.drawn_jobs import JobPlan
from benchmarks.diagnosis.fault_kinds import FaultKind

Worker = tuple[int, int]  # dp rank, stage
Workers = frozenset[Worker]

# A cheaper fault does not count.
MIN_COST = 0.05
_WORKER, _STAGE = "slow-worker", "stage-imbalance"


@dataclass(frozen=True, slots=True)
class RightAnswer:
    """A cause and its culprits; no workers where all are affected alike."""

    cause: str
    workers: Workers


@dataclass(frozen=True, slots=True)
class TrueFault:
    """One fault that a job had, and what a perfect diagnosis may say of it.

    `kind` is its name in the grid. `answers` are as good as each other, the usual one first; where
    the data cannot tell several causes apart, `or_withheld` names those of which "insufficient
    evidence" is as good. `cost` is the share of the judged steps' time that is won back without
    the fault, None where it costs no time (a silent worker). `onset` is the position among the
    recorded steps from which on the step time has risen for good by the share `step_change`;
    None where the fault has been there from the beginning or comes and goes. `has_place` says
    whether it is a single worker, host or link.
    """

    kind: str
    answers: tuple[RightAnswer, ...]
    cost: float | None
    has_place: bool = False
    onset: int | None = None
    step_change: float = 0.0
    or_withheld: tuple[str, ...] = ()

    @property
    def counts(self) -> bool:
        """Whether it is large enough to count."""
        return self.cost is None or self.cost >= MIN_COST

    @property
    def causes(self) -> frozenset[str]:
        """The causes that are right."""
        return frozenset(answer.cause for answer in self.answers)


@dataclass(frozen=True, slots=True)
class StatedFinding:
    """One finding; `onset` is a position among the job's recorded steps."""

    cause: str
    workers: Workers
    confidence: float
    cost: float | None
    onset: int | None
    sentence: str

    def has_cause_of(self, fault: TrueFault) -> bool:
        """Whether its cause is the fault's."""
        return self.cause in fault.causes

    def has_culprits_of(self, fault: TrueFault) -> bool:
        """Whether its workers are exactly the fault's culprits."""
        return any(self.workers == answer.workers for answer in fault.answers)


@dataclass(frozen=True, slots=True)
class DiagnosisOutcome:
    """One simulated job: its true faults, and its findings.

    `findings` are those of the last full window, most costly first; `withheld` the causes
    that it had no evidence on; `early` what was said in windows before that of causes that were
    not there, and in all windows of a healthy job. `num_changes` is how many changes and onsets
    were told in all windows, `num_failed` how many of them could not be analysed.
    `clock_residual_s` is None where there was nothing to tell it from.
    """

    number: int
    what: str
    family: str
    faults: tuple[TrueFault, ...]
    findings: tuple[StatedFinding, ...]
    withheld: frozenset[str] = frozenset()
    early: tuple[StatedFinding, ...] = ()
    num_changes: int = 0
    num_failed: int = 0
    clock_residual_s: float | None = None
    analysis_s: float = 0.0
    diagnosis_s: float = 0.0

    @property
    def is_healthy(self) -> bool:
        """Whether the job has no fault."""
        return not self.faults

    @property
    def counts(self) -> bool:
        """Whether each of its faults is large enough."""
        return all(fault.counts for fault in self.faults)


def workers_of_culprits(
    culprits: Iterable[Culprit], sizes: Parallelism, hosts: Mapping[Worker, str]
) -> Workers:
    """The workers that culprits name, by worker, rank, stage or host; none where all are named."""
    named: set[Worker] = set()
    for culprit in culprits:
        named |= {worker for worker in _all(sizes) if _is_culprit(culprit, worker, hosts)}
    return frozenset() if len(named) == sizes.num_workers else frozenset(named)


def _all(sizes: Parallelism) -> Iterable[Worker]:
    return ((d, p) for d in range(sizes.dp_size) for p in range(sizes.pp_size))


def _is_culprit(culprit: Culprit, worker: Worker, hosts: Mapping[Worker, str]) -> bool:
    dp_rank, stage = worker
    if culprit.dp_rank is not None or culprit.stage is not None:  # its host adds nothing
        return culprit.dp_rank in (None, dp_rank) and culprit.stage in (None, stage)
    return culprit.host is not None and culprit.host == hosts.get(worker)


def truths(plan: JobPlan, judged: Sequence[int]) -> tuple[TrueFault, ...]:
    """The job's faults, costs being those in the judged steps: the same job without, same seed."""
    times = FaultStepTimes.of(plan.simulated, plan.steps)
    costs = times.costs(np.searchsorted(plan.steps, judged))
    return tuple(
        _truth(plan, kind, fault, cost, _step_change(plan, fault, times.with_all_s, without_s))
        for kind, fault, cost, without_s in zip(
            plan.kinds, plan.simulated.faults, costs, times.without_s, strict=True
        )
    )


def began_at(fault: synth_fault.Fault, steps: Sequence[int]) -> int | None:
    """Position of the fault's first recorded step; None where it is older than the record."""
    position = int(np.searchsorted(steps, fault.when.first_step))
    return position or None


def _truth(
    plan: JobPlan, kind: FaultKind, fault: synth_fault.Fault, cost: float | None, step_change: float
) -> TrueFault:
    world = plan.simulated.world
    onset = began_at(fault, plan.steps)
    answers = answers_to(fault, world)
    causes = {answer.cause for answer in answers}
    cannot_tell = onset is None and world.parallelism.dp_size == 1 and causes == {_WORKER, _STAGE}
    return TrueFault(
        kind=kind.name,
        answers=answers,
        cost=cost,
        has_place=kind.has_place,
        onset=onset if kind.is_step else None,
        step_change=step_change,
        or_withheld=(_WORKER, _STAGE) if cannot_tell else (),
    )


def answers_to(fault: synth_fault.Fault, world: World) -> tuple[RightAnswer, ...]:
    """The fault's own cause and culprits first, then answers with an identical recording."""
    if fault.cause is None:
        return ()
    sizes = world.parallelism
    workers = workers_of_culprits(fault.culprits(world), sizes, world.hosts)
    found = [RightAnswer(fault.cause, workers)]
    if fault.cause in (_WORKER, _STAGE) and _are_whole_stages(workers, sizes):
        other = _STAGE if fault.cause == _WORKER else _WORKER
        found += [RightAnswer(other, workers)] * (fault.cause == _WORKER or sizes.dp_size == 1)
    if fault.cause in ("slow-link", "flapping-link") and not sizes.is_data_parallel:
        found += [RightAnswer(fault.cause, each) for each in _same_links(workers, world)]
    return tuple(found)


def _are_whole_stages(workers: Workers, sizes: Parallelism) -> bool:
    """Whether they are all replicas of some stages: then it may be the stages' work as well."""
    return len(workers) == sizes.dp_size * len({stage for _, stage in workers})


def _same_links(workers: Workers, world: World) -> list[Workers]:
    """Without data parallelism, an end's card and its only link are indistinguishable."""
    found: set[Workers] = set()
    for stage in {stage for _, stage in workers}:
        if len(neighbours(world, stage)) == 1:
            pair = frozenset({(0, stage), (0, neighbours(world, stage)[0])})
            if workers in (pair, frozenset({(0, stage)})):
                found |= {pair, *(_end(each, world) for each in pair)} - {frozenset()}
    return sorted(found - {workers}, key=sorted)


def _end(worker: tuple[int, int], world: World) -> Workers:
    return frozenset({worker}) if len(neighbours(world, worker[1])) == 1 else frozenset()


def _step_change(
    plan: JobPlan, fault: synth_fault.Fault, with_s: Floats, without_s: Floats | None
) -> float:
    """By what share steps are longer with the fault, from its first one on."""
    if without_s is None:
        return 0.0
    since: Ints = np.arange(began_at(fault, plan.steps) or 0, len(plan.steps))
    return float(with_s[since].sum() / without_s[since].sum() - 1)
