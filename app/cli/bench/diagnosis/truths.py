"""What a perfect diagnosis would say of a made job's faults, and what they really cost."""

from collections.abc import Sequence

import numpy as np

from app.cli.bench.diagnosis.blame import blamed
from app.cli.bench.diagnosis.kinds import Kind
from app.cli.bench.diagnosis.outcome import Answer, Fault, Workers
from app.cli.bench.diagnosis.plan import Plan
from app.synth.faults import fault as made_fault
from app.synth.faults.network import neighbours
from app.synth.truth import StepTimes
from app.synth.world import World
from app.trace.job import Parallelism
from app.trace.window import Floats, Ints

_WORKER, _STAGE = "slow-worker", "stage-imbalance"


def truths(plan: Plan, judged: Sequence[int]) -> tuple[Fault, ...]:
    """The job's faults, costs being those in the judged steps: the same job without, same seed."""
    times = StepTimes.of(plan.made, plan.steps)
    costs = times.costs(np.searchsorted(plan.steps, judged))
    return tuple(
        _truth(plan, kind, fault, cost, _longer(plan, fault, times.with_all_s, without_s))
        for kind, fault, cost, without_s in zip(
            plan.kinds, plan.made.faults, costs, times.without_s, strict=True
        )
    )


def began_at(fault: made_fault.Fault, steps: Sequence[int]) -> int | None:
    """Position of the fault's first recorded step; None where it is older than the record."""
    position = int(np.searchsorted(steps, fault.when.first_step))
    return position or None


def _truth(
    plan: Plan, kind: Kind, fault: made_fault.Fault, cost: float | None, step_change: float
) -> Fault:
    world = plan.made.world
    began = began_at(fault, plan.steps)
    answers = answers_to(fault, world)
    causes = {answer.cause for answer in answers}
    cannot_tell = began is None and world.parallelism.dp_size == 1 and causes == {_WORKER, _STAGE}
    return Fault(
        kind=kind.name,
        answers=answers,
        cost=cost,
        has_place=kind.has_place,
        onset=began if kind.is_step else None,
        step_change=step_change,
        or_withheld=(_WORKER, _STAGE) if cannot_tell else (),
    )


def answers_to(fault: made_fault.Fault, world: World) -> tuple[Answer, ...]:
    """The fault's own cause and culprits first, then what leaves the very same record."""
    if fault.cause is None:
        return ()
    sizes = world.parallelism
    workers = blamed(fault.culprits(world), sizes, world.hosts)
    found = [Answer(fault.cause, workers)]
    if fault.cause in (_WORKER, _STAGE) and _are_whole_stages(workers, sizes):
        other = _STAGE if fault.cause == _WORKER else _WORKER
        found += [Answer(other, workers)] * (fault.cause == _WORKER or sizes.dp_size == 1)
    if fault.cause in ("slow-link", "flapping-link") and not sizes.is_data_parallel:
        found += [Answer(fault.cause, each) for each in _same_links(workers, world)]
    return tuple(found)


def _are_whole_stages(workers: Workers, sizes: Parallelism) -> bool:
    """Whether they are all replicas of some stages: then it may be the stages' work as well."""
    return len(workers) == sizes.dp_size * len({stage for _, stage in workers})


def _same_links(workers: Workers, world: World) -> list[Workers]:
    """Without data parallelism, an end's card and its only link cannot be told apart."""
    found: set[Workers] = set()
    for stage in {stage for _, stage in workers}:
        if len(neighbours(world, stage)) == 1:
            pair = frozenset({(0, stage), (0, neighbours(world, stage)[0])})
            if workers in (pair, frozenset({(0, stage)})):
                found |= {pair, *(_end(each, world) for each in pair)} - {frozenset()}
    return sorted(found - {workers}, key=sorted)


def _end(worker: tuple[int, int], world: World) -> Workers:
    return frozenset({worker}) if len(neighbours(world, worker[1])) == 1 else frozenset()


def _longer(plan: Plan, fault: made_fault.Fault, with_s: Floats, without_s: Floats | None) -> float:
    """By what share steps are longer with the fault, from its first one on."""
    if without_s is None:
        return 0.0
    since: Ints = np.arange(began_at(fault, plan.steps) or 0, len(plan.steps))
    return float(with_s[since].sum() / without_s[since].sum() - 1)
