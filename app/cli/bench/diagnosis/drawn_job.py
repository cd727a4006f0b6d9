"""A job's shape, costs, steps and habits, as chance has them."""

from collections.abc import Sequence

import numpy as np

from app.cli.bench.diagnosis.arrivals import Habits
from app.cli.bench.diagnosis.families import Between, Family, Shape
from app.cli.bench.diagnosis.kinds import Kind
from app.synth.cluster import Cluster
from app.synth.costs import Costs
from app.synth.life import Event, Resize, Restart
from app.synth.odd_steps import OddSteps
from app.trace.job import Parallelism

GPUS_A_HOST = 8
Rng = np.random.Generator


def sizes(family: Family, kinds: Sequence[Kind], rng: Rng) -> tuple[Shape, Parallelism]:
    """A shape that has a place for these kinds of fault, and how many GPUs each worker has."""
    fitting = [
        (shape, Parallelism(shape.dp, shape.pp, tp_size=tp_size, vpp_size=shape.chunks))
        for shape in family.shapes
        for tp_size in (2, 4, 8)
        if all(_fits(kind, shape, tp_size) for kind in kinds)
    ]
    return fitting[rng.integers(len(fitting))]


def _fits(kind: Kind, shape: Shape, tp_size: int) -> bool:
    dp, pp, hosts = kind.wants
    num_hosts = -(-shape.dp * shape.pp * tp_size // GPUS_A_HOST)
    return shape.dp >= dp and shape.pp >= pp and num_hosts >= max(hosts, 2)


def costs(family: Family, shape: Shape, rng: Rng) -> Costs:
    """What operations take."""
    forward_s = _between(family.forward_s, rng)
    gather_s = _between(family.collective, rng) * forward_s
    uneven = 1 + family.uneven * rng.uniform(-1, 1, shape.pp)
    return Costs(
        forward_s=forward_s,
        backward_s=_between(family.backward, rng) * forward_s,
        stage_transfer_s=_between(family.transfer, rng) * forward_s,
        params_all_gather_s=gather_s,
        grads_reduce_scatter_s=gather_s * 4 / 3,
        noise=_between(family.spread, rng),
        transfer_noise=_between(family.transfer_spread, rng),
        stage_factors=tuple(uneven.tolist()),
        tail=family.noises[rng.integers(len(family.noises))],
    )


def cluster(rng: Rng) -> Cluster:
    """Half of the jobs have clocks that are wrong."""
    if rng.random() < 0.5:
        return Cluster(GPUS_A_HOST)
    drift_ppm = float(rng.choice([0.0, 200.0]))
    return Cluster(GPUS_A_HOST, clock_offset_s=1.0, drift_ppm=drift_ppm, jitter_s=50e-6)


def window_steps(rng: Rng) -> int:
    """The service's default, or longer windows."""
    return int(rng.choice([8, 20, 20]))


def recorded(num_steps: int, rng: Rng) -> tuple[int, ...]:
    """Steps from the job's very first on, from later on, or 30 of every 300."""
    kind = rng.integers(3)
    first = 0 if kind == 0 else int(rng.integers(100, 5000))
    of_each = 30 if kind == 2 else num_steps
    return tuple(first + 10 * of_each * (i // of_each) + i % of_each for i in range(num_steps))


def odd_steps(step_s: float, rng: Rng) -> OddSteps:
    """First steps that are long, and in every second job evaluations and checkpoints."""
    has_others = rng.random() < 0.5
    return OddSteps(
        num_first=int(rng.integers(4)),
        first_factor=float(rng.uniform(1.5, 4.0)),
        evaluate_every=int(rng.integers(10, 50)) if has_others else 0,
        evaluation_s=float(rng.uniform(0.5, 5.0)) * step_s,
        checkpoint_every=int(rng.integers(10, 50)) if has_others else 0,
        checkpoint_s=float(rng.uniform(0.3, 3.0)) * step_s,
    )


def events(steps: Sequence[int], made_sizes: Parallelism, rng: Rng) -> tuple[Event, ...]:
    """Of ten healthy jobs one is started again, and one with another number of replicas."""
    at_step, lost = steps[len(steps) // 2 + int(rng.integers(-5, 6))], int(rng.integers(6))
    kind = rng.integers(10)
    if kind == 0:
        return (Restart(at_step, lost),)
    if kind == 1 and made_sizes.dp_size > 2:
        return (Resize(at_step, lost, dp_size=made_sizes.dp_size - 1),)
    return ()


def habits(made_sizes: Parallelism, clocks: Cluster, step_s: float, rng: Rng) -> Habits:
    """One worker in every third job is late; hosts are told where clocks are wrong, and mostly."""
    late_worker, late_s = None, 0.0
    if rng.random() < 1 / 3:
        late_worker = int(rng.integers(made_sizes.dp_size)), int(rng.integers(made_sizes.pp_size))
        late_s = float(rng.uniform(1, 8)) * step_s
    sends_hosts = clocks.clock_offset_s > 0 or rng.random() < 0.8
    return Habits(sends_hosts, late_worker, late_s)


def _between(low_high: Between, rng: Rng) -> float:
    return float(rng.uniform(*low_high))
