"""Faults with a shape in time: they stay for some steps, come back, or are few and large."""

from dataclasses import replace
from typing import Literal

import numpy as np

from app.trace.ops import OP_CODES
from benchmarks.strangers.faults.compute import any_worker, log_uniform, slow_worker, truth_of
from benchmarks.strangers.faults.everybody import nobody
from benchmarks.strangers.faults.fault import (
    CHRONIC,
    Course,
    Fault,
    JobUnderway,
    Truth,
)
from benchmarks.strangers.faults.hosts import first_forward, usual_step_s
from benchmarks.strangers.graph import BACKWARD, FORWARD, OPTIMIZER
from benchmarks.strangers.recording import Extras
from benchmarks.strangers.simulation import Durations, Simulated, simulate

# Experts' largest part of the time of a computation.
MAX_EXPERTS = 0.6
MAX_PERIOD = 8
# Whole jobs stop between steps, where rows of an evaluation or a checkpoint are missing as well, or
# in the midst of a step wherever ranks are, as when machines are frozen.
Stopped = Literal["one rank", "in a step", "between steps", "before the optimizer"]
STOPPED: tuple[Stopped, ...] = (
    "one rank", "one rank", "one rank", "in a step", "in a step", "between steps",
    "before the optimizer",
)  # fmt: skip
# What an observation of such a stop may be called.
IDLE = frozenset({"idle-between-steps"})


def hot_expert_stays(job: JobUnderway) -> Fault:
    """The experts of one expert-parallel rank are hot for some steps, then those of another.

    As many tokens are routed as with even loads: the other ranks of a block have less to do. An
    expert's copies in all blocks are hot, in the layers of one stage or of all of them.
    """
    shape, rng = job.shape, job.rng
    ep = shape.ep
    stages = list(range(shape.pp)) if rng.random() < 0.4 else [int(rng.integers(shape.pp))]
    most = MAX_EXPERTS * (ep - 1)
    strength = log_uniform(rng, 0.15, most)
    hot = np.empty((len(stages), job.num_steps), np.int64)
    for lane in range(len(stages)):
        step, expert = 0, int(rng.integers(ep))
        while step < job.num_steps:
            stays = int(rng.integers(2, max(4, job.num_steps // 2)))
            hot[lane, step : step + stays] = expert
            expert = int((expert + rng.integers(1, ep)) % ep)
            step += stays
    position = np.arange(shape.dp) % ep
    is_hot = hot[:, :, None] == position
    load = np.where(is_hot, 1 + strength, 1 - strength / (ep - 1))
    load *= 1 + 0.03 * rng.standard_normal(load.shape)
    of_compute = job.graph.of(FORWARD, BACKWARD)

    def change(durations: Durations, extras: Extras) -> None:
        del extras
        for lane, stage in enumerate(stages):
            ops = of_compute & (job.graph.stage == stage)
            durations.own[:, ops] *= load[lane, :, None, :]

    guilty = frozenset((dp_rank, stage) for dp_rank in range(shape.dp) for stage in stages)
    course = Course(np.ones(job.num_steps), None, None, CHRONIC | {"transient", "rotating"})
    truth = truth_of("hot-expert-stays", frozenset({"expert-imbalance"}), guilty, course)
    moves = int(np.count_nonzero(np.diff(hot, axis=1)))
    words = f"{1 + strength:.2f}x, stages {stages}, {moves} moves"
    return Fault(truth.without_culprits(), change, words)


def every_kth_step(num_steps: int, rng: np.random.Generator) -> Course:
    """In every k-th step, k from 2 to 8, at least three times."""
    period = int(rng.integers(2, min(MAX_PERIOD, num_steps // 3) + 1))
    first = int(rng.integers(period))
    on = (np.arange(num_steps) % period == first).astype(float)
    persistence = {"transient", "chronic"} if period <= 3 else {"transient"}
    return Course(on, None, None, frozenset(persistence))


slow_every_k = slow_worker("slow-every-k", every_kth_step, least=1.3, most=6.0)


def few_huge_stops(job: JobUnderway) -> Fault:
    """One rank, or the whole job, stands still one to four times, each for longer than a step."""
    rng = job.rng
    stopped = STOPPED[int(rng.integers(len(STOPPED)))]
    count = int(rng.integers(1, 5))
    steps = np.sort(rng.choice(np.arange(2, job.num_steps), count, replace=False)).tolist()
    all_s = log_uniform(rng, 0.08, 1.2) * usual_step_s(job) * job.num_steps
    least_s = 1.5 * usual_step_s(job)
    lasts_s = np.maximum(all_s / count * rng.uniform(0.6, 1.4, count), least_s).tolist()
    worker = any_worker(job)
    computes = np.flatnonzero(job.graph.of(FORWARD, BACKWARD) & (job.graph.stage == worker[1]))
    ops = rng.choice(computes, count).tolist()
    moments = rng.uniform(0.15, 0.8, count).tolist()  # shares of the step
    is_late = bool(rng.random() < 0.5)

    def change(durations: Durations, extras: Extras) -> None:
        del extras
        usual = simulate(job.graph, durations)
        for step, op, stop_s, moment in zip(steps, ops, lasts_s, moments, strict=True):
            if stopped == "one rank":
                (durations.launch if is_late else durations.own)[step, op, worker[0]] += stop_s
            elif stopped == "before the optimizer":
                durations.launch[step, job.graph.of(OPTIMIZER)] += stop_s
            elif stopped == "in a step":
                _stop_all_computations(job, durations, usual, step, moment, stop_s)
            else:
                _stop_between_steps(job, durations, step, stop_s)

    on = np.isin(np.arange(job.num_steps), steps).astype(float)
    course = Course(on, steps[0], None, frozenset({"transient"}))
    words = f"{stopped}, steps {steps}, {sum(lasts_s) / usual_step_s(job):.1f} steps' time"
    return Fault(_truth_of_stops(job, stopped, worker, course), change, words)


def _stop_all_computations(
    job: JobUnderway,
    durations: Durations,
    usual: Simulated,
    step: int,
    moment: float,
    stop_s: float,
) -> None:
    """Everything that computes at one moment of a step stands still; others wait for it."""
    start_s, end_s = usual.start_s[step], usual.end_s[step]
    at_s = start_s.min() + moment * (end_s.max() - start_s.min())
    is_computing = job.graph.of(FORWARD, BACKWARD, OPTIMIZER)[:, None]
    is_running = is_computing & (start_s <= at_s) & (end_s > at_s)
    durations.own[step][is_running] += stop_s


def _stop_between_steps(job: JobUnderway, durations: Durations, step: int, stop_s: float) -> None:
    """All workers begin a step late."""
    if durations.is_continuous:
        durations.gap[step] += stop_s
        return
    graph = job.graph
    # Without the time between steps in the record, what comes first in each step is late.
    first_ops = graph.of(OP_CODES["params-all-gather"]) & (graph.mc == 0)
    if not first_ops.any():
        first_ops = graph.of(OP_CODES["forward-recv"]) & (graph.seq_id == 0)
        first_ops[first_forward(job, 0)] = True
    durations.launch[step, first_ops] += stop_s


def _truth_of_stops(
    job: JobUnderway, stopped: Stopped, worker: tuple[int, int], course: Course
) -> Truth:
    """Stops of a rank may be collections, too; those of a job between steps what nobody noted."""
    if stopped == "one rank":
        causes = frozenset({"job-stop", "gc-pause", "late-host"})
        guilty = frozenset({worker})
        return truth_of("few-huge-stops", causes, guilty, course, area="host", also=(frozenset(),))
    truth = nobody("few-huge-stops", "job-stop", job, course)
    if stopped == "in a step":
        return truth
    causes = truth.causes | {"checkpoint-stall"}
    return replace(truth, causes=causes, facts=IDLE, may_abstain=True)


def warm_up(job: JobUnderway) -> Fault:
    """The first one to six steps of a run compile, tune and allocate, on each rank as long as ever.

    Nothing is wrong: the right answer names no cause.
    """
    shape, rng = job.shape, job.rng
    count = int(rng.integers(1, 7))
    # The first step compiles; the others tune and allocate less and less.
    slower = log_uniform(rng, 0.4, 6.0) * np.exp(-rng.uniform(0.3, 1.2) * np.arange(count))
    of_rank = rng.uniform(0.7, 1.4, (count, 1, shape.dp))
    of_stage = rng.uniform(0.9, 1.1, (count, shape.pp))
    factor = 1 + slower[:, None, None] * of_rank * of_stage[:, job.graph.stage, None]
    compiles_s = rng.uniform(0.0, 3.0) * usual_step_s(job) * rng.uniform(0.8, 1.2, shape.dp)
    of_compute = job.graph.of(FORWARD, BACKWARD, OPTIMIZER)
    firsts = [first_forward(job, stage) for stage in range(shape.pp)]
    is_compiled = bool(rng.random() < 0.5)

    def change(durations: Durations, extras: Extras) -> None:
        del extras
        durations.own[:count, of_compute] *= factor[:, of_compute]
        if is_compiled:
            durations.own[0, firsts] += compiles_s

    on = (np.arange(job.num_steps) < count).astype(float)
    course = Course(on, None, None, frozenset())
    truth = truth_of("warm-up", frozenset(), frozenset(), course, area="all")
    return Fault(truth.without_culprits(), change, f"{count} steps, {1 + slower[0]:.1f}x")
