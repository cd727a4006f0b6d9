"""The definition of every figure, done the slow and obvious way: what the engine is held against.

Written from the what-if model's sections 3 to 5, op by op and simulation by simulation, over
plain Python objects.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from itertools import pairwise
from statistics import fmean, median
from typing import NamedTuple

from app.trace.job import Parallelism
from app.trace.ops import OP_NAMES
from app.trace.window import Window

COMPUTE = {"forward-compute", "backward-compute", "optimizer", "gc"}
MEETS_DP_RANKS = {
    "params-all-gather",
    "grads-reduce-scatter",
    "separate-grads-all-reduce",
    "optimizer-clip-main-grad",
}
ANNOTATIONS = {"gc-pause", "data-wait"}
JOINT_NAME = {
    "forward-send": "forward-pp-comm",
    "forward-recv": "forward-pp-comm",
    "backward-send": "backward-pp-comm",
    "backward-recv": "backward-pp-comm",
}
LIVE_TOLERANCE_S = 50e-6


class Key(NamedTuple):
    """One operation of a replica's step, whichever the replica and the step."""

    stage: int
    optype: str
    seq_id: int


@dataclass(frozen=True, eq=False)
class Op:
    """One recorded operation; equal to itself only."""

    step: int
    dp_rank: int
    key: Key
    rank: int
    mc: int
    start_s: float
    duration_s: float

    @property
    def end_s(self) -> float:
        return self.start_s + self.duration_s

    @property
    def place(self) -> tuple[int, int]:
        return self.dp_rank, self.key.stage


Node = tuple[int, Key]  # an operation of one dp rank
Kept = Callable[[Op], bool]


@dataclass
class Dependencies:
    """What each operation of a replica waits for, and which of them end together."""

    waits_for: dict[Key, set[Key]] = field(default_factory=dict)
    pairs: list[tuple[Key, Key]] = field(default_factory=list)
    groups: list[tuple[Key, ...]] = field(default_factory=list)

    def add(self, before: Key, after: Key) -> None:
        self.waits_for[after].add(before)

    def chain(self, ops: list[Op]) -> None:
        for before, after in pairwise(ops):
            self.add(before.key, after.key)


def ops_of(window: Window) -> list[Op]:
    """The window's rows as objects, annotations left out."""
    trace = window.trace
    found = []
    for row in range(trace.num_ops):
        optype = OP_NAMES[trace.optype[row]]
        if optype not in ANNOTATIONS:
            key = Key(int(trace.stage[row]), optype, int(trace.seq_id[row]))
            found.append(
                Op(
                    int(trace.step[row]),
                    int(trace.dp_rank[row]),
                    key,
                    int(trace.rank[row]),
                    int(trace.mc[row]),
                    float(trace.start_s[row]),
                    float(trace.duration_s[row]),
                )
            )
    return found


def dependencies(ops: Iterable[Op], sizes: Parallelism) -> Dependencies:
    """Section 3, from the operations of one step of one replica."""
    ops = sorted(ops, key=lambda op: (op.start_s, op.key.seq_id, op.key.optype))
    found = Dependencies({op.key: set() for op in ops})
    matched: dict[tuple[int, str], list[Key]] = {}
    for stage in range(sizes.pp_size):
        here = [op for op in ops if op.key.stage == stage]
        _streams(found, here, sizes)
        for direction in ("forward", "backward"):
            _compute_and_p2p(found, here, direction, sizes, matched)
        _first_backward(found, here)
        _parameters(found, here, sizes)
        _end_of_step(found, here, ops, stage, sizes)
    _pairs(found, matched, sizes)
    _stage_groups(found, ops, sizes)
    return found


def _of(ops: list[Op], *optypes: str) -> list[Op]:
    return [op for op in ops if op.key.optype in optypes]


def _numbered(ops: list[Op], *optypes: str) -> list[Op]:
    return sorted(_of(ops, *optypes), key=lambda op: op.key.seq_id)


def _streams(found: Dependencies, here: list[Op], sizes: Parallelism) -> None:
    """Rules 1 to 3."""
    found.chain(_of(here, "forward-compute", "backward-compute"))
    for optype in JOINT_NAME:
        found.chain(_of(here, optype))
    if sizes.dp_size * sizes.dsp_size > 1:
        found.chain(_of(here, "params-all-gather", "grads-reduce-scatter"))


def _compute_and_p2p(
    found: Dependencies,
    here: list[Op],
    direction: str,
    sizes: Parallelism,
    matched: dict[tuple[int, str], list[Key]],
) -> None:
    """Rule 4. `matched` gets the sends and recvs that have a peer."""
    computes = _of(here, f"{direction}-compute")
    if not computes:
        return
    recvs = [
        op
        for op in _of(here, f"{direction}-recv")
        if not op.start_s > computes[-1].start_s + LIVE_TOLERANCE_S
    ]
    sends = [
        op
        for op in _of(here, f"{direction}-send")
        if not op.end_s < computes[0].end_s - LIVE_TOLERANCE_S
    ]
    first = 1 if len(recvs) == len(computes) - 1 else 0
    num_chunks = sizes.vpp_size * sizes.pp_size
    onward = 1 if direction == "forward" else -1
    for k, recv in zip(range(first, len(computes)), recvs, strict=False):
        found.add(recv.key, computes[k].key)
        if k > 0:
            found.add(computes[k - 1].key, recv.key)
        if 0 <= _model_chunk(computes[k], sizes) - onward < num_chunks:
            matched.setdefault((recv.key.stage, recv.key.optype), []).append(recv.key)
    for compute, send in zip(computes, sends, strict=False):
        found.add(compute.key, send.key)
        if 0 <= _model_chunk(compute, sizes) + onward < num_chunks:
            matched.setdefault((send.key.stage, send.key.optype), []).append(send.key)


def _model_chunk(compute: Op, sizes: Parallelism) -> int:
    return compute.mc * sizes.pp_size + compute.key.stage


def _first_backward(found: Dependencies, here: list[Op]) -> None:
    """Rule 5."""
    before = []
    for op in _of(here, "forward-compute", "backward-compute"):
        if op.key.optype == "backward-compute":
            break
        before.append(op)
    else:
        return
    if len(before) >= 2:
        for op in _of(here, "backward-send", "backward-recv"):
            if op.key.seq_id == 0:
                found.add(before[-2].key, op.key)


def _pairs(
    found: Dependencies, matched: dict[tuple[int, str], list[Key]], sizes: Parallelism
) -> None:
    """Rule 6."""
    for stage in range(sizes.pp_size):
        for direction, onward in (("forward", 1), ("backward", -1)):
            peer = (stage + onward) % sizes.pp_size
            sends = matched.get((stage, f"{direction}-send"), [])
            recvs = matched.get((peer, f"{direction}-recv"), [])
            found.pairs += list(zip(sends, recvs, strict=True))
    found.groups += found.pairs


def _parameters(found: Dependencies, here: list[Op], sizes: Parallelism) -> None:
    """Rule 7."""
    if sizes.dp_size * sizes.dsp_size == 1:
        return
    gathers, forwards = _numbered(here, "params-all-gather"), _of(here, "forward-compute")
    for chunk in {op.mc for op in gathers}:
        of_chunk = [op for op in forwards if op.mc == chunk]
        if of_chunk:
            found.add([op for op in gathers if op.mc == chunk][-1].key, of_chunk[0].key)


def _end_of_step(
    found: Dependencies, here: list[Op], everywhere: list[Op], stage: int, sizes: Parallelism
) -> None:
    """Rule 8."""
    data_parallel = sizes.dp_size * sizes.dsp_size > 1
    overlapped = bool(_of(everywhere, "separate-grads-all-reduce"))
    computes = _of(here, "forward-compute", "backward-compute")
    before = sorted(computes, key=lambda op: op.end_s)[-1:]
    before += [op for op in _of(here, "gc") if op.key.seq_id == 0]
    after = _numbered(here, "layernorm-grads-all-reduce")
    if stage in (0, sizes.pp_size - 1):
        after += _numbered(here, "embedding-grads-all-reduce")
    if data_parallel:
        after += _numbered(
            here, "separate-grads-all-reduce" if overlapped else "grads-reduce-scatter"
        )
    after += _numbered(here, "optimizer-clip-main-grad")
    after += _numbered(here, "optimizer")
    found.chain(before + after)
    scatters = _numbered(here, "grads-reduce-scatter")
    if not (data_parallel and overlapped and scatters):
        return
    for chunk in {op.mc for op in scatters}:
        backwards = [op for op in _of(here, "backward-compute") if op.mc == chunk]
        if backwards:
            last = sorted(backwards, key=lambda op: op.end_s)[-1]
            found.add(last.key, next(op.key for op in scatters if op.mc == chunk))
    if after:
        found.add(scatters[-1].key, after[0].key)


def _stage_groups(found: Dependencies, ops: list[Op], sizes: Parallelism) -> None:
    """Rule 9, within a replica."""
    ends = {0, sizes.pp_size - 1}
    for optype, stages in (
        ("embedding-grads-all-reduce", ends),
        ("optimizer-clip-main-grad", set(range(sizes.pp_size))),
    ):
        here = [op.key for op in _of(ops, optype) if op.key.stage in stages]
        for seq_id in {key.seq_id for key in here}:
            found.groups.append(tuple(key for key in here if key.seq_id == seq_id))


def meetings_in_order(found: Dependencies, dp_size: int) -> list[list[Node]]:
    """Operations that end together, over all dp ranks; each after those that it waits for."""
    meetings: list[list[Node]] = []
    grouped = {key for group in found.groups for key in group}
    for group in [*found.groups, *((key,) for key in found.waits_for if key not in grouped)]:
        replicas = [[(dp_rank, key) for key in group] for dp_rank in range(dp_size)]
        if group[0].optype in MEETS_DP_RANKS:
            meetings.append([node for replica in replicas for node in replica])
        else:
            meetings += replicas
    of_node = {node: number for number, nodes in enumerate(meetings) for node in nodes}
    sorter = TopologicalSorter(
        {
            number: {
                of_node[dp_rank, before]
                for dp_rank, key in nodes
                for before in found.waits_for[key]
            }
            for number, nodes in enumerate(meetings)
        }
    )
    return [meetings[number] for number in sorter.static_order()]


class Reference:
    """A window simulated by the definition."""

    def __init__(self, window: Window) -> None:
        self.window = window
        self.sizes = window.job.parallelism
        self.steps = window.steps
        self.ops = ops_of(window)
        self.op = {(op.step, op.dp_rank, op.key): op for op in self.ops}
        first = [op for op in self.ops if op.dp_rank == 0 and op.step == self.steps[0]]
        self.dependencies = dependencies(first, self.sizes)
        self.meetings = meetings_in_order(self.dependencies, self.sizes.dp_size)
        self.transfer_s = self._transfers()
        self.ideal_s = self._ideals()

    def _transfers(self) -> dict[Op, float]:
        """Section 4: from the last arrival on; of an operation that meets nobody, its duration."""
        found = {}
        for step in self.steps:
            for nodes in self.meetings:
                met = [self.op[step, *node] for node in nodes]
                last_start_s = max(op.start_s for op in met)
                for op in met:
                    transfer_s = op.end_s - last_start_s
                    found[op] = 0.0 if len(met) > 1 and transfer_s <= -0.010 else transfer_s
                if len(met) == 1:
                    found[met[0]] = met[0].duration_s
        return found

    def _ideals(self) -> dict[str, float]:
        """Section 2: mean of computes, median of communication."""
        values: dict[str, list[float]] = {}
        for op, transfer_s in self.transfer_s.items():
            values.setdefault(op.key.optype, []).append(transfer_s)
        return {
            optype: fmean(durations_s) if optype in COMPUTE else median(durations_s)
            for optype, durations_s in values.items()
        }

    def simulate(self, step: int, kept: Kept) -> float:
        """Step time with the kept operations as recorded and all others ideal."""
        end_s: dict[Node, float] = {}
        latest_s = []
        for nodes in self.meetings:
            start_s = max(
                (
                    end_s[dp_rank, before]
                    for dp_rank, key in nodes
                    for before in self.dependencies.waits_for[key]
                ),
                default=0.0,
            )
            for node in nodes:
                op = self.op[step, *node]
                took_s = self.transfer_s[op] if kept(op) else self.ideal_s[op.key.optype]
                end_s[node] = start_s + took_s
                if op.key.optype == "optimizer":
                    latest_s.append(end_s[node])
        return max(latest_s or end_s.values())

    def step_times(self, kept: Kept) -> list[float]:
        """Simulated time of every step."""
        return [self.simulate(step, kept) for step in self.steps]

    def recorded_step_times(self) -> list[float]:
        """Latest end - earliest start of every step."""
        times_s = []
        for step in self.steps:
            here = [op for op in self.ops if op.step == step]
            times_s.append(max(op.end_s for op in here) - min(op.start_s for op in here))
        return times_s

    def launch_delay(self, op: Op, step_start_s: float) -> float:
        """From the end of what the operation waits for to its recorded start."""
        ready_s = max(
            (
                self.op[op.step, op.dp_rank, before].end_s
                for before in self.dependencies.waits_for[op.key]
            ),
            default=step_start_s,
        )
        return max(0.0, op.start_s - max(ready_s, step_start_s))


def figures(window: Window) -> dict:
    """Section 5 in the shape of section 7, without header and findings."""
    job = Reference(window)
    dp_ranks, stages = range(job.sizes.dp_size), range(job.sizes.pp_size)
    places = [(dp_rank, stage) for dp_rank in dp_ranks for stage in stages]
    names = {JOINT_NAME.get(op.key.optype, op.key.optype) for op in job.ops}

    recorded_s = job.recorded_step_times()
    simulated_s = job.step_times(lambda op: True)
    ideals_s = job.step_times(lambda op: False)
    by_type = {
        name: job.step_times(_is(lambda op: JOINT_NAME.get(op.key.optype, op.key.optype), name))
        for name in names
    }
    by_dp_rank = [job.step_times(_is(lambda op: op.dp_rank, dp_rank)) for dp_rank in dp_ranks]
    by_stage = [job.step_times(_is(lambda op: op.key.stage, stage)) for stage in stages]
    by_worker = {place: job.step_times(_is(lambda op: op.place, place)) for place in places}

    actual_s, ideal_s = fmean(simulated_s), fmean(ideals_s)
    dp_rank_slowdown = [fmean(times_s) / ideal_s for times_s in by_dp_rank]
    stage_slowdown = [fmean(times_s) / ideal_s for times_s in by_stage]
    exact = {place: fmean(times_s) / ideal_s for place, times_s in by_worker.items()}
    estimate = {(d, p): min(dp_rank_slowdown[d], stage_slowdown[p]) for d, p in places}

    def share(is_fixed: Kept) -> float | None:
        if abs(actual_s - ideal_s) <= 1e-9 * ideal_s:
            return None
        return (actual_s - fmean(job.step_times(lambda op: not is_fixed(op)))) / (
            actual_s - ideal_s
        )

    def slowest_share(slowdown: dict[tuple[int, int], float]) -> float | None:
        slowest = slowest_workers(job, slowdown)
        return share(lambda op: op.place in slowest)

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
        "step_slowdown": [time_s / ideal_s for time_s in simulated_s],
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
            "optype_slowdown": {
                name: [time_s / ideal_s for time_s in times_s] for name, times_s in by_type.items()
            },
            "dp_rank_slowdown": [
                [by_dp_rank[d][i] / ideal_s for d in dp_ranks] for i in range(len(job.steps))
            ],
            "stage_slowdown": [
                [by_stage[p][i] / ideal_s for p in stages] for i in range(len(job.steps))
            ],
            "worker_slowdown": [
                [[by_worker[d, p][i] / ideal_s for p in stages] for d in dp_ranks]
                for i in range(len(job.steps))
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
    rank = {op.place: op.rank for op in job.ops}
    order = sorted(slowdown, key=lambda place: (-slowdown[place], rank[place]))
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
        optype = op.key.optype
        by_optype[optype] = by_optype.get(optype, 0.0) + delay_s / num_workers
        by_worker[op.dp_rank][op.key.stage] += delay_s
    return {"by_optype": by_optype, "by_worker": by_worker}
