"""Reference implementation of every figure, slow and direct, to compare the engine with.

Written from docs/replay.md and docs/glossary.md, op by op and simulation by
simulation, over plain Python objects. Dependencies are in reference_rules.py.
"""

from collections.abc import Callable
from dataclasses import dataclass
from graphlib import TopologicalSorter
from statistics import fmean, median

from app.trace.job import Parallelism
from app.trace.ops import Axis
from app.trace.window import Window
from tests.reference_ops import Dependencies, Key, Op, ops_of
from tests.reference_rules import dependencies

WITH_CHUNK = {
    "forward-compute",
    "backward-compute",
    "backward-input-compute",
    "backward-weight-compute",
    "params-all-gather",
    "grads-reduce-scatter",
}
Node = tuple[int, Key]  # an operation of one dp rank
Kept = Callable[[Op], bool]
Structure = frozenset[tuple[Key, int | None]]


def dp_ranks_that_meet(axis: Axis, sizes: Parallelism) -> list[list[int]]:
    """Groups of dp ranks that start a transfer together."""
    dp_ranks = list(range(sizes.dp_size))
    if axis in (Axis.DP, Axis.DP_AND_STAGES):
        return [dp_ranks]
    if axis is Axis.EP:
        blocks = range(0, sizes.dp_size, sizes.ep_size)
        return [dp_ranks[first : first + sizes.ep_size] for first in blocks]
    return [[dp_rank] for dp_rank in dp_ranks]


def meetings_in_order(
    found: Dependencies, axes: dict[str, Axis], sizes: Parallelism
) -> list[list[Node]]:
    """Operations that end together, over all dp ranks; each after those that it waits for."""
    meetings: list[list[Node]] = []
    grouped = {key for group in found.groups for key in group}
    for group in [*found.groups, *((key,) for key in found.waits_for if key not in grouped)]:
        for dp_ranks in dp_ranks_that_meet(axes[group[0].optype], sizes):
            meetings.append([(dp_rank, key) for dp_rank in dp_ranks for key in group])
    of_node = {node: number for number, nodes in enumerate(meetings) for node in nodes}
    sorter: TopologicalSorter[int] = TopologicalSorter()
    for number, nodes in enumerate(meetings):
        for dp_rank, key in nodes:
            before = found.waits_for[key] | {whole for whole, _ in found.shares[key]}
            sorter.add(number, *(of_node[dp_rank, other] for other in sorted(before)))
    return [meetings[number] for number in sorter.static_order()]


@dataclass(frozen=True)
class Visit:
    """Operations that end together, and those that one of them waits for; all as numbers."""

    nodes: list[int]
    waits_for: list[int]
    shares: list[tuple[int, float]]


class Group:
    """Steps of one structure, simulated by the definition."""

    def __init__(self, steps: list[int], ops: list[Op], sizes: Parallelism) -> None:
        self.steps, self.sizes = steps, sizes
        self.ops = [op for op in ops if op.step in steps]
        self.op = {(op.step, op.dp_rank, op.key): op for op in self.ops}
        first = [op for op in self.ops if op.dp_rank == 0 and op.step == steps[0]]
        self.dependencies = dependencies(first, sizes, self.ops)
        axes = {op.optype: op.spec.axis for op in self.ops}
        self.meetings = meetings_in_order(self.dependencies, axes, sizes)
        self.visits = self._visits()
        self.ops_in_order = {
            step: [self.op[step, *node] for nodes in self.meetings for node in nodes]
            for step in steps
        }
        self.transfer_s = self._transfers()
        self.ideal_s = self._ideals()

    def _transfers(self) -> dict[Op, float]:
        """Section 4: from the last arrival on; without peers, the duration."""
        found = {}
        for step in self.steps:
            for nodes in self.meetings:
                met = [self.op[step, *node] for node in nodes]
                last_start_s = max(op.start_s for op in met)
                for op in met:
                    transfer_s = op.duration_s - (last_start_s - op.start_s)
                    found[op] = 0.0 if len(met) > 1 and transfer_s <= -0.010 else transfer_s
                if len(met) == 1:
                    found[met[0]] = met[0].duration_s
        return found

    def _ideals(self) -> dict[str, float]:
        """Section 6, its last sentence: mean of computes, median of communication."""
        values: dict[str, list[float]] = {}
        by_mean = {op.optype: op.spec.idealised_by_mean for op in self.ops}
        for op, transfer_s in self.transfer_s.items():
            values.setdefault(op.optype, []).append(transfer_s)
        return {
            optype: fmean(durations_s) if by_mean[optype] else median(durations_s)
            for optype, durations_s in values.items()
        }

    def _visits(self) -> list[Visit]:
        number = {
            node: n for n, node in enumerate(each for nodes in self.meetings for each in nodes)
        }
        found, waits_for, shares = [], self.dependencies.waits_for, self.dependencies.shares
        for nodes in self.meetings:
            before = [number[d, other] for d, key in nodes for other in waits_for[key]]
            part_of = [(number[d, other], part) for d, key in nodes for other, part in shares[key]]
            found.append(Visit([number[node] for node in nodes], before, part_of))
        return found

    def simulate(self, step: int, kept: Kept) -> float:
        """Step time with the kept operations as recorded and all others ideal."""
        ops = self.ops_in_order[step]
        start_s, took_s, end_s = ([0.0] * len(ops) for _ in range(3))
        for visit in self.visits:
            ready_s = [end_s[before] for before in visit.waits_for]
            ready_s += [start_s[whole] + share * took_s[whole] for whole, share in visit.shares]
            met_s = max(ready_s, default=0.0)
            for node in visit.nodes:
                op = ops[node]
                start_s[node] = met_s
                took_s[node] = self.transfer_s[op] if kept(op) else self.ideal_s[op.optype]
                end_s[node] = met_s + took_s[node]
        ends_s = zip(ops, end_s, strict=True)
        optimized_s = [each_s for op, each_s in ends_s if op.optype == "optimizer"]
        return max(optimized_s or end_s)

    def ready_s(self, op: Op) -> float:
        """Time at which all dependencies had ended; -inf without any."""
        before_s = [float("-inf")]
        for before in self.dependencies.waits_for[op.key]:
            before_s.append(self.op[op.step, op.dp_rank, before].end_s)
        for key, share in self.dependencies.shares[op.key]:
            whole = self.op[op.step, op.dp_rank, key]
            before_s.append(whole.start_s + share * whole.duration_s)
        return max(before_s)


class Reference:
    """A window simulated by the definition: its steps by structure, each structure by itself."""

    def __init__(self, window: Window) -> None:
        self.sizes = window.job.parallelism
        recorded = ops_of(window)
        by_structure: dict[Structure, list[int]] = {}
        for step in window.steps:
            here = [op for op in recorded if op.step == step]
            structures = {structure(here, dp_rank) for dp_rank in range(self.sizes.dp_size)}
            if len(structures) == 1:
                by_structure.setdefault(structures.pop(), []).append(step)
        self.groups = [Group(steps, recorded, self.sizes) for steps in by_structure.values()]
        self.group = {step: group for group in self.groups for step in group.steps}
        self.steps = sorted(self.group)
        self.ops = [op for op in recorded if op.step in self.group]

    def step_times(self, kept: Kept) -> list[float]:
        """Simulated time of every step."""
        return [self.group[step].simulate(step, kept) for step in self.steps]

    def recorded_step_times(self) -> list[float]:
        """Latest end - earliest start of every step."""
        times_s = []
        for step in self.steps:
            here = [op for op in self.ops if op.step == step]
            times_s.append(max(op.end_s for op in here) - min(op.start_s for op in here))
        return times_s

    def launch_delay(self, op: Op, step_start_s: float) -> float:
        """From the end of the dependencies to the recorded start."""
        return max(0.0, op.start_s - max(self.group[op.step].ready_s(op), step_start_s))


def structure(ops: list[Op], dp_rank: int) -> Structure:
    """Operations of a replica in a step, without order and time."""
    return frozenset(
        (op.key, op.mc if op.optype in WITH_CHUNK else None) for op in ops if op.dp_rank == dp_rank
    )


def figures(window: Window) -> dict:
    """Every figure in the shape of a result, without header and findings."""
    job = Reference(window)
    dp_ranks, stages = range(job.sizes.dp_size), range(job.sizes.pp_size)
    positions = range(len(job.steps))
    workers = [(dp_rank, stage) for dp_rank in dp_ranks for stage in stages]
    names = {op.spec.group for op in job.ops}

    recorded_s = job.recorded_step_times()
    simulated_s = job.step_times(lambda op: True)
    ideals_s = job.step_times(lambda op: False)
    by_type = {name: job.step_times(_is(lambda op: op.spec.group, name)) for name in names}
    by_dp_rank = [job.step_times(_is(lambda op: op.dp_rank, dp_rank)) for dp_rank in dp_ranks]
    by_stage = [job.step_times(_is(lambda op: op.key.stage, stage)) for stage in stages]
    by_worker = {worker: job.step_times(_is(lambda op: op.worker, worker)) for worker in workers}

    actual_s, ideal_s = fmean(simulated_s), fmean(ideals_s)
    dp_rank_slowdown = [fmean(times_s) / ideal_s for times_s in by_dp_rank]
    stage_slowdown = [fmean(times_s) / ideal_s for times_s in by_stage]
    exact = {worker: fmean(times_s) / ideal_s for worker, times_s in by_worker.items()}
    estimate = {(d, p): min(dp_rank_slowdown[d], stage_slowdown[p]) for d, p in workers}

    def by_step(times_s: list[float]) -> list[float]:
        return [time_s / its_ideal_s for time_s, its_ideal_s in zip(times_s, ideals_s, strict=True)]

    def share(is_fixed: Kept) -> float | None:
        if abs(actual_s - ideal_s) <= 1e-9 * ideal_s:
            return None
        return (actual_s - fmean(job.step_times(lambda op: not is_fixed(op)))) / (
            actual_s - ideal_s
        )

    def slowest_share(slowdown: dict[tuple[int, int], float]) -> float | None:
        slowest = slowest_workers(job, slowdown)
        return share(lambda op: op.worker in slowest)

    stage_share = [share(_is(lambda op: op.key.stage, stage)) for stage in stages]
    slowdown = actual_s / ideal_s
    return {
        "step_time_s": {"recorded": recorded_s, "simulated": simulated_s, "ideal": ideals_s},
        "launch_slowdown": fmean(recorded_s) / actual_s,
        "discrepancy": abs(actual_s - fmean(recorded_s)) / fmean(recorded_s),
        "slowdown": slowdown,
        "gpu_time_wasted": 1 - 1 / slowdown,
        "gpu_hours_lost": sum(recorded_s) * window.job.num_gpus * (1 - 1 / slowdown) / 3600,
        "launch_delay": launch_delays(job),
        "step_slowdown": by_step(simulated_s),
        "optype_slowdown": {name: fmean(times_s) / ideal_s for name, times_s in by_type.items()},
        "dp_rank_slowdown": dp_rank_slowdown,
        "stage_slowdown": stage_slowdown,
        "worker_slowdown": [[exact[d, p] for p in stages] for d in dp_ranks],
        "worker_slowdown_estimate": [[estimate[d, p] for p in stages] for d in dp_ranks],
        "m_w": slowest_share(estimate),
        "m_w_exact": slowest_share(exact),
        "m_s": stage_share[-1],
        "stage_share": stage_share,
        "per_step": {
            "optype_slowdown": {name: by_step(times_s) for name, times_s in by_type.items()},
            "dp_rank_slowdown": [[by_step(by_dp_rank[d])[i] for d in dp_ranks] for i in positions],
            "stage_slowdown": [[by_step(by_stage[p])[i] for p in stages] for i in positions],
            "worker_slowdown": [
                [[by_step(by_worker[d, p])[i] for p in stages] for d in dp_ranks] for i in positions
            ],
        },
    }


def _is(trait: Callable[[Op], object], wanted: object) -> Kept:
    """Whether an operation has the wanted trait."""
    return lambda op: trait(op) == wanted


def slowest_workers(
    job: Reference, slowdown: dict[tuple[int, int], float]
) -> list[tuple[int, int]]:
    """The slowest 3 %, at least one; ties go to the lowest rank."""
    rank = {op.worker: op.rank for op in job.ops}
    order = sorted(slowdown, key=lambda worker: (-slowdown[worker], rank[worker]))
    return order[: (3 * len(order) + 99) // 100]


def launch_delays(job: Reference) -> dict:
    """Mean seconds a step: each type's for an average worker, each worker's over all types."""
    num_steps, num_workers = len(job.steps), job.sizes.num_workers
    by_optype: dict[str, float] = {}
    by_worker = [[0.0] * job.sizes.pp_size for _ in range(job.sizes.dp_size)]
    step_start_s = {
        step: min(op.start_s for op in job.ops if op.step == step) for step in job.steps
    }
    for op in job.ops:
        delay_s = job.launch_delay(op, step_start_s[op.step]) / num_steps
        by_optype[op.optype] = by_optype.get(op.optype, 0.0) + delay_s / num_workers
        by_worker[op.dp_rank][op.key.stage] += delay_s
    waited = others_waited(job, step_start_s)
    return {"by_optype": by_optype, "by_worker": by_worker, "others_waited": waited}


def others_waited(job: Reference, step_start_s: dict[int, float]) -> list[list[float]]:
    """Mean seconds a step that others waited, where operations meet, for a worker's late launch.

    Without it they would still have waited for the second-last to come.
    """
    found = [[0.0] * job.sizes.pp_size for _ in range(job.sizes.dp_size)]
    for step in job.steps:
        group = job.group[step]
        for nodes in group.meetings:
            met = [group.op[step, *node] for node in nodes]
            *others, last = sorted(met, key=lambda op: op.start_s)
            if others:
                late_s = job.launch_delay(last, step_start_s[step])
                waited_s = min(late_s, last.start_s - others[-1].start_s) * len(others)
                found[last.dp_rank][last.key.stage] += waited_s / len(job.steps)
    return found
