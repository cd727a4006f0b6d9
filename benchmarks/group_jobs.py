"""Simulated jobs for `python -m benchmarks groups`: an event simulation of ranks in groups.

Written apart from app/synth, so that the engine is not judged by its own model. Ranks compute with
log-normal noise, in part shared by a host; GPUs differ for good by 1 to 3 %; transfers have Pareto
tails; members leave a collective 1 to 16 us apart; a host's clock is up to 1 s wrong, and drifts.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from app.trace.collectives import Collectives, RankGroup, RankPlace

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

GPUS_PER_HOST = 8
KINDS = ("all-reduce", "all-gather", "all-to-all", "reduce-scatter")
ALL_REDUCE, ALL_GATHER, ALL_TO_ALL, REDUCE_SCATTER = range(4)
HIDDEN_BYTES = 8192


@dataclass(frozen=True)
class Layout:
    """Sizes of a job; ranks count tp first, then cp, ep within dp, then pp."""

    family: str
    tp: int = 1
    cp: int = 1
    ep: int = 1
    dp: int = 2
    pp: int = 1

    @property
    def num_ranks(self) -> int:
        """World size."""
        return self.tp * self.cp * self.dp * self.pp


LAYOUTS = {
    "tp8": [Layout("tp8", tp=8, dp=4), Layout("tp8", tp=8, dp=8), Layout("tp8", tp=8, dp=3, pp=2)],
    "cp4": [
        Layout("cp4", cp=4, dp=8),
        Layout("cp4", tp=2, cp=4, dp=8),
        Layout("cp4", tp=2, cp=4, dp=4, pp=2),
    ],
    "ep16": [Layout("ep16", ep=16, dp=32), Layout("ep16", tp=2, ep=16, dp=32)],
}


@dataclass(frozen=True)
class World:
    """How a job computes and communicates; `slow` has the factor of each slow rank."""

    layout: Layout
    seed: int
    num_steps: int
    num_layers: int
    num_microbatches: int
    compute_s: float
    transfer_s: float
    noise: float
    host_noise: float
    spread: float
    spikes: float
    routing: float
    bytes_follow_routing: bool
    stride: int
    with_starts: bool
    slow: dict[int, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Recording:
    """What the members recorded, and the true step times."""

    table: Collectives
    steps: tuple[int, ...]
    step_s: Floats
    receives: dict[int, tuple[Floats, Floats]]


def random_world(rng: np.random.Generator, layout: Layout) -> World:
    """A healthy job of that layout."""
    return World(
        layout=layout,
        seed=int(rng.integers(1 << 62)),
        num_steps=int(rng.choice([6, 8, 8, 12])),
        num_layers=int(rng.choice([4, 8])),
        num_microbatches=int(rng.choice([1, 2, 4])),
        compute_s=float(rng.choice([0.5e-3, 2e-3, 5e-3])),
        transfer_s=float(rng.choice([50e-6, 200e-6])),
        noise=float(rng.choice([0.005, 0.02, 0.05])),
        host_noise=float(rng.choice([0.0, 0.01, 0.02])),
        spread=float(rng.uniform(0.01, 0.03)),
        spikes=float(rng.choice([0.0, 0.0, 0.002])),
        routing=float(rng.choice([0.05, 0.2, 0.4])),
        bytes_follow_routing=bool(rng.random() < 0.5),
        stride=int(rng.choice([1, 1, 10])),
        with_starts=True,
    )


def speeds(world: World) -> Floats:
    """[ranks], how much longer than the best GPU each takes for good, without any fault."""
    rng = np.random.default_rng([world.seed, 1])
    num = world.layout.num_ranks
    if rng.random() < 0.5:
        return 1 + world.spread * rng.random(num)
    return 1 + world.spread * (0.5 + np.clip(rng.normal(size=num) / 4, -0.5, 0.5))


def groups_of(layout: Layout) -> dict[str, Ints]:
    """[groups, members] of each axis that has several members."""
    at = np.arange(layout.num_ranks).reshape(layout.pp, layout.dp, layout.cp, layout.tp)
    found = {
        "tp": at.reshape(-1, layout.tp),
        "cp": at.transpose(0, 1, 3, 2).reshape(-1, layout.cp),
        "dp": at.transpose(0, 2, 3, 1).reshape(-1, layout.dp),
    }
    if layout.ep > 1:
        found["ep"] = at.transpose(0, 2, 3, 1).reshape(-1, layout.ep)
    return {axis: groups for axis, groups in found.items() if groups.shape[1] > 1}


class Simulation:
    """Ranks that compute and communicate; `now_s` [ranks] is the true time of each."""

    def __init__(self, world: World, factor: Floats) -> None:
        layout = world.layout
        self.world, self.factor = world, factor
        self.rng = np.random.default_rng([world.seed, 2])
        num = layout.num_ranks
        self.host = np.arange(num) // GPUS_PER_HOST
        self.num_hosts = int(self.host[-1]) + 1
        self.now_s = self.rng.uniform(0, 50e-6, num)
        self.groups = groups_of(layout)
        self.first = dict(
            zip(
                self.groups,
                np.cumsum([0, *(len(each) for each in self.groups.values())]),
                strict=False,
            )
        )
        self.stages = np.arange(num).reshape(layout.pp, -1)
        self.rows: list[tuple[Ints, ...]] = []
        self.times: list[tuple[Floats, Floats]] = []
        self.posted: list[tuple[Ints, Floats, Floats]] = []
        self.sequence: dict[tuple[str, int, int], int] = {}
        self.step = 0
        # Hot experts stay hot: most of a rank's load is its own, for each layer.
        self.hot = np.exp(
            world.routing * self.rng.normal(size=(world.num_layers, num))
            + world.routing * self.rng.normal(size=num)
        )

    def compute(self, ranks: Ints, length_s: float, load: Floats | None = None) -> None:
        """Advance the ranks by a computation of this length, with noise and faults."""
        world, num = self.world, ranks.size
        noise = world.noise * self.rng.normal(size=num)
        noise += (world.host_noise * self.rng.normal(size=self.num_hosts))[self.host[ranks]]
        took_s = length_s * np.exp(noise) * self.factor[ranks]
        if load is not None:
            took_s *= load
        spiked = self.rng.random(num) < world.spikes
        took_s += np.where(spiked, length_s * self.rng.pareto(2.0, num), 0.0)
        self.now_s[ranks] += took_s

    def transfer_s(self, size: tuple[int, ...], times: float = 1.0) -> Floats:
        """What transfers take: mostly alike, some much longer."""
        tail = 1 + 0.1 * np.minimum(self.rng.pareto(2.5, size), 30.0)
        return np.asarray(self.world.transfer_s * times * tail)

    def meet(
        self, axis: str, kind: int, stage: int, num_bytes: Floats | None = None, times: float = 1.0
    ) -> None:
        """Run a collective in every group of the axis on a stage, if it has any."""
        if axis not in self.groups:
            return
        groups = self.groups[axis]
        here = np.flatnonzero(np.isin(groups[:, 0], self.stages[stage]))
        members = groups[here]
        begun_s = self.now_s[members]
        end_s = begun_s.max(axis=1) + self.transfer_s((len(here),), times)
        end_s = end_s[:, None] + self.rng.uniform(1e-6, 16e-6, members.shape)
        self.now_s[members] = end_s
        which = np.repeat(self.first[axis] + here, members.shape[1])
        number = self.sequence.get((axis, kind, stage), 0)
        self.sequence[axis, kind, stage] = number + 1
        size = members.size
        sizes = np.full(size, 1 << 20) if num_bytes is None else num_bytes[members].ravel()
        self.rows.append(
            (
                which,
                np.full(size, kind),
                np.full(size, self.step),
                np.full(size, number),
                members.ravel(),
                sizes.astype(np.int64),
            )
        )
        self.times.append((begun_s.ravel(), (end_s - begun_s).ravel()))

    def receive(self, stage: int, sent_s: Floats) -> None:
        """The ranks of a stage wait for what those of the stage before have sent."""
        ranks = self.stages[stage]
        posted_s = self.now_s[ranks]
        received_s = np.maximum(posted_s, sent_s) + self.transfer_s(ranks.shape)
        self.posted.append((ranks, posted_s, received_s))
        self.now_s[ranks] = received_s

    def layers(self, stage: int, direction: float) -> None:
        """The layers of a stage for one micro-batch, forward or backward."""
        world, ranks = self.world, self.stages[stage]
        for layer in range(world.num_layers):
            if direction == 1.0:
                self.meet("cp", ALL_GATHER, stage)
            self.compute(ranks, direction * world.compute_s)
            self.meet("tp", ALL_REDUCE, stage)
            if "ep" in self.groups:
                self.experts(stage, layer, direction)
            else:
                self.compute(ranks, direction * world.compute_s)
            self.meet("tp", ALL_REDUCE, stage)
            if direction == 2.0:
                self.meet("cp", REDUCE_SCATTER, stage)

    def experts(self, stage: int, layer: int, direction: float) -> None:
        """Tokens are sent to their experts, which take as long as they have tokens."""
        world, ranks = self.world, self.stages[stage]
        load = self.hot[layer] * np.exp(0.3 * world.routing * self.rng.normal(size=ranks.size))
        groups = self.groups["ep"]
        load[groups] /= load[groups].mean(axis=1)[:, None]
        num_bytes = load * HIDDEN_BYTES * 4096
        even = np.full(load.size, HIDDEN_BYTES * 4096.0)
        self.meet("ep", ALL_TO_ALL, stage, num_bytes if world.bytes_follow_routing else even)
        self.compute(ranks, direction * world.compute_s, load[ranks])
        self.meet("ep", ALL_TO_ALL, stage, num_bytes)

    def one_step(self) -> None:
        """All micro-batches forward, then all backward, then gradients."""
        num_stages = len(self.stages)
        for direction, order in ((1.0, range(num_stages)), (2.0, range(num_stages)[::-1])):
            sent_s: list[Floats] = []
            for at, stage in enumerate(order):
                done_s = []
                for microbatch in range(self.world.num_microbatches):
                    if at:
                        self.receive(stage, sent_s[microbatch])
                    self.layers(stage, direction)
                    done_s.append(self.now_s[self.stages[stage]].copy())
                sent_s = done_s
        for stage in range(num_stages):
            self.meet("dp", REDUCE_SCATTER, stage, times=10.0)
            self.compute(self.stages[stage], 0.2 * self.world.compute_s)
            self.meet("dp", ALL_GATHER, stage, times=10.0)


def simulated(world: World, *, healthy: Sequence[int] = ()) -> Recording:
    """What a job's ranks record; those in `healthy` as fast as the median GPU."""
    factor = speeds(world)
    median = float(np.median(factor))
    for rank, times in world.slow.items():
        factor[rank] *= times
    factor[list(healthy)] = median
    run = Simulation(world, factor)
    ends_s, steps = [0.0], []
    for number in range(world.num_steps):
        run.step = 100 + number * world.stride
        steps.append(run.step)
        run.sequence.clear()
        run.one_step()
        ends_s.append(float(run.now_s.max()))
        if world.stride > 1:
            run.now_s += 5.0  # unrecorded steps
            ends_s[-1] += 5.0
    step_s = np.diff(ends_s) - (5.0 if world.stride > 1 else 0.0)
    return Recording(_table(run), tuple(steps), step_s, _receives(run))


def _clocks(run: Simulation) -> tuple[Floats, Floats]:
    """[ranks], how far each one's clock is ahead, and its drift."""
    rng = np.random.default_rng([run.world.seed, 3])
    offset_s = rng.uniform(-1, 1, run.num_hosts)[run.host]
    return offset_s, rng.uniform(-20e-6, 20e-6, run.num_hosts)[run.host]


def _table(run: Simulation) -> Collectives:
    group, kind, step, sequence, rank, num_bytes = (
        np.concatenate(each) for each in zip(*run.rows, strict=True)
    )
    start_s, stay_s = (np.concatenate(each) for each in zip(*run.times, strict=True))
    offset_s, drift = _clocks(run)
    start_s = start_s * (1 + drift[rank]) + offset_s[rank]
    order = np.random.default_rng([run.world.seed, 4]).permutation(group.size)
    groups = tuple(
        RankGroup(f"{axis} {at}", axis, tuple(ranks.tolist()))
        for axis, each in run.groups.items()
        for at, ranks in enumerate(each)
    )
    return Collectives(
        groups,
        KINDS,
        group[order],
        kind[order],
        step[order],
        sequence[order],
        rank[order],
        start_s[order] if run.world.with_starts else np.full(group.size, np.nan),
        (stay_s * (1 + drift[rank]))[order],
        num_bytes[order],
        {
            each: RankPlace(each, host=f"host{run.host[each]}", local_rank=each % GPUS_PER_HOST)
            for each in range(run.host.size)
        },
        is_continuous=True,
    )


def _receives(run: Simulation) -> dict[int, tuple[Floats, Floats]]:
    """When each rank waited for what it received, by its own clock."""
    if not run.posted:
        return {}
    ranks, posted_s, received_s = (np.concatenate(each) for each in zip(*run.posted, strict=True))
    least_s = float((received_s - posted_s).min())
    offset_s, drift = _clocks(run)
    posted_s = posted_s * (1 + drift[ranks]) + offset_s[ranks]
    received_s = received_s * (1 + drift[ranks]) + offset_s[ranks] - least_s
    return {
        int(rank): (posted_s[ranks == rank], received_s[ranks == rank]) for rank in np.unique(ranks)
    }
