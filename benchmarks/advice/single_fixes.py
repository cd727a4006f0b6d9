"""Trials of one fault and the fix that removes it."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from app.advice.all_reduce import Network
from app.advice.facts import Facts
from app.advice.fix import Fix
from app.engine.replays import prepare
from app.synth.cluster import Cluster
from app.synth.costs import OperationCosts
from app.synth.faults.fault import Fault
from app.synth.faults.interruptions import GcPauses
from app.synth.faults.sequence_imbalance import SequenceImbalance
from app.synth.faults.slow_compute import SlowWorker
from app.synth.faults.slow_network import FlappingNic, SlowDpGroup, SlowLink, SlowNic
from app.synth.job import SimulatedJob
from app.trace.job import Parallelism
from benchmarks.advice.lpt_sequences import LptSequences
from benchmarks.advice.trial import (
    AFTER,
    STEPS,
    Trial,
    advised,
    pasted_layers,
    recorded,
    simulated_step_s,
)
from tests.harness.ddp_jobs import ddp_window, with_all_reduce, with_straggl_ar

SEQUENCE_SETTINGS = ("max_length", "full_share", "attention_share", "is_sent")


def single_fix_trial(seed: int) -> Trial[Fix]:
    """A job of 2 to 8 dp ranks and 2 to 8 stages, with one fault; its kind goes by the seed."""
    rng = np.random.default_rng(seed)
    dp, pp = int(rng.integers(2, 9)), int(rng.choice([2, 4, 4, 8]))
    job = SimulatedJob(
        Parallelism(dp, pp, 8),
        int(rng.integers(pp, 4 * pp + 1)),
        costs=OperationCosts(noise=float(rng.uniform(0.005, 0.03))),
        seed=int(rng.integers(1 << 30)),
    )
    return MAKERS[seed % len(MAKERS)](job, rng)


def repaired(name: str, job: SimulatedJob, fault: Fault) -> Trial[Fix]:
    """The job with a fault, and without it."""
    slow = replace(job, faults=(fault,))
    return Trial(name, recorded(slow), Facts(), advised(name), lambda _: simulated_step_s(job))


def random_worker(job: SimulatedJob, rng: np.random.Generator) -> tuple[int, int]:
    """Dp rank and stage."""
    sizes = job.parallelism
    return int(rng.integers(sizes.dp_size)), int(rng.integers(sizes.pp_size))


def _slow_worker(job: SimulatedJob, rng: np.random.Generator) -> Trial[Fix]:
    fault = SlowWorker(*random_worker(job, rng), float(rng.uniform(1.1, 2)))
    return repaired("replace-worker", job, fault)


def _slow_network(job: SimulatedJob, rng: np.random.Generator) -> Trial[Fix]:
    """A slow or flapping network card, a slow link, or slow collectives of one stage."""
    dp_rank, stage = random_worker(job, rng)
    slowdown = float(rng.uniform(5, 40))
    faults: tuple[Fault, ...] = (
        SlowNic(dp_rank, stage, slowdown),
        FlappingNic(dp_rank, stage, 2 * slowdown),
        SlowLink(dp_rank, min(stage, job.parallelism.pp_size - 2), 2 * slowdown),
        SlowDpGroup(stage, slowdown),
    )
    return repaired("repair-link", job, faults[int(rng.integers(len(faults)))])


def _gc_pauses(job: SimulatedJob, rng: np.random.Generator) -> Trial[Fix]:
    """One joint pause in 500 steps: in most windows of this length there is none."""
    fault = GcPauses(rate=float(rng.uniform(0.005, 0.03)), pause_s=float(rng.uniform(0.1, 0.4)))
    return repaired("planned-gc", job, fault)


def random_sequences(rng: np.random.Generator) -> SequenceImbalance:
    """Documents of very different lengths, which clients tell or not."""
    return SequenceImbalance(
        max_length=int(rng.choice([8_192, 32_768, 65_536])),
        full_share=float(rng.uniform(0.005, 0.05)),
        attention_share=float(rng.uniform(0.15, 0.6)),
        is_sent=bool(rng.random() < 0.5),
    )


def dealt_out(fault: SequenceImbalance, job: SimulatedJob) -> LptSequences:
    """The job's documents, dealt out longest first."""
    settings = {name: getattr(fault, name) for name in SEQUENCE_SETTINGS}
    return LptSequences(**settings, documents_seed=job.seed)


def _uneven_sequences(job: SimulatedJob, rng: np.random.Generator) -> Trial[Fix]:
    fault = random_sequences(rng)
    balanced = replace(job, faults=(dealt_out(fault, job),))
    return Trial(
        "balance-sequences",
        recorded(replace(job, faults=(fault,))),
        Facts(),
        advised("balance-sequences"),
        # The same steps, as others have other documents: only the noise is to be another.
        lambda _: simulated_step_s(balanced, range(STEPS)),
    )


def _late_rank(job: SimulatedJob, rng: np.random.Generator) -> Trial[Fix]:
    """DDP with a rank that is always late: gradients by a ring, then by StragglAR."""
    dp, pp = int(rng.choice([4, 8, 16])), int(rng.choice([1, 1, 2, 4]))
    network = Network(float(rng.uniform(3e-6, 5e-5)), 1 / float(rng.uniform(5e9, 50e9)))
    num_bytes, dp_rank = int(rng.integers(1 << 28, 1 << 32)), int(rng.integers(dp))
    # From too little to be worth it to more than enough.
    fault = SlowWorker(dp_rank, int(rng.integers(pp)), float(rng.uniform(1.02, 1.6)))
    server = Cluster(gpus_per_host=dp * pp)
    changed = replace(job, parallelism=Parallelism(dp, pp, 1), faults=(fault,), cluster=server)
    ring = with_all_reduce(changed, num_bytes, network)

    def achieved_s(_: Fix) -> float:
        other_noise = replace(ring, seed=ring.seed + 1)
        fixed = with_straggl_ar(other_noise, AFTER, dp_rank, num_bytes, network)
        return float(prepare(ddp_window(fixed, AFTER)).simulated_s.mean())

    window = ddp_window(ring, range(STEPS))
    return Trial("straggl-ar", window, Facts(), advised("straggl-ar"), achieved_s)


def with_loss(loss_layers: float, layers: int) -> Callable[..., SimulatedJob]:
    """Gives a job these layers on its stages; the loss costs as much as some on the last one."""

    def with_layers(job: SimulatedJob, counts: Sequence[int]) -> SimulatedJob:
        work = np.array(counts, float)
        work[-1] += loss_layers
        costs = replace(job.costs, stage_factors=tuple((work / layers).tolist()))
        return replace(job, costs=costs)

    return with_layers


def _long_stage(job: SimulatedJob, rng: np.random.Generator) -> Trial[Fix]:
    pp, layers = job.parallelism.pp_size, int(rng.integers(4, 13))
    with_layers = with_loss(float(rng.uniform(0.2, 0.9)) * layers, layers)
    return Trial(
        "resplit-stages",
        recorded(with_layers(job, [layers] * pp)),
        Facts(layers=layers * pp),
        advised("resplit-stages"),
        lambda fix: simulated_step_s(with_layers(job, pasted_layers(fix))),
    )


MAKERS = (_slow_worker, _long_stage, _gc_pauses, _slow_network, _late_rank, _uneven_sequences)
