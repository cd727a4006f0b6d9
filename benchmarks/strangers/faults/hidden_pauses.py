"""Pauses of a rank that the others wait for in their computations, or where nobody records it."""

from collections.abc import Callable
from typing import Literal

import numpy as np

from app.trace.ops import OP_CODES
from benchmarks.strangers.faults.compute import any_worker, log_uniform, truth_of
from benchmarks.strangers.faults.fault import Course, Fault, JobUnderway, Worker
from benchmarks.strangers.faults.hosts import IRREGULAR, first_forward, usual_step_s
from benchmarks.strangers.graph import BACKWARD, FORWARD, OPTIMIZER
from benchmarks.strangers.recording import Extras, Interruption
from benchmarks.strangers.simulation import Durations, Simulated, simulate

# Share of a computation after which its ranks meet in a collective that is not recorded.
MEETING_SHARE = 0.4
# Where a client notes the pause: with the step that has ended, or with the one that it delays.
Noted = Literal["at the end", "at the begin"]


def paused_workers(job: JobUnderway) -> list[tuple[int, Worker]]:
    """(step, worker) of each pause: a few in the window or in most steps, of one rank or in turn.

    Neither the first step nor the last one, after which nothing is seen of a pause.
    """
    rng, steps = job.rng, np.arange(1, job.num_steps - 1)
    if rng.random() < 0.45:
        steps = np.sort(rng.choice(steps, int(rng.integers(2, 6)), replace=False))
    else:
        first = int(rng.integers(1, job.num_steps // 2)) if rng.random() < 0.4 else 1
        steps = steps[(steps >= first) & (rng.random(steps.size) < rng.uniform(0.5, 1.0))]
    lone = any_worker(job) if rng.random() < 0.3 else None
    return [(step, lone or any_worker(job)) for step in steps.tolist()]


def lengths_of(job: JobUnderway, count: int) -> list[float]:
    """What each of so many pauses lasts, in seconds: together a share of the window's time."""
    all_s = log_uniform(job.rng, 0.06, 0.6) * usual_step_s(job) * job.num_steps
    lengths: list[float] = (all_s / count * job.rng.uniform(0.8, 1.2, count)).tolist()
    return lengths


def hidden_pause_annotated(job: JobUnderway) -> Fault:
    """Collections inside computations, whose peers wait in theirs; rows say who collected.

    Under FSDP a gather lets them wait, else a collective that is not recorded.
    """
    pauses = paused_workers(job)
    lasts_s = lengths_of(job, len(pauses))
    ops = [_any_computation(job, worker[1]) for _, worker in pauses]

    def change(durations: Durations, extras: Extras) -> None:
        usual = simulate(job.graph, durations)
        for (step, (dp_rank, _)), op, pause_s in zip(pauses, ops, lasts_s, strict=True):
            after_s = MEETING_SHARE / 2 * durations.own[step, op, dp_rank]
            durations.own[step, op, dp_rank] += pause_s
            _let_peers_wait(job, durations, usual, (step, op, dp_rank), pause_s)
            extras.interruptions.append(
                Interruption("gc-pause", step, op, dp_rank, after_s, pause_s)
            )

    return _of_collections("hidden-pause-annotated", job, pauses, lasts_s, change)


def hidden_pause_after_step(job: JobUnderway) -> Fault:
    """Collections after a rank's step, while all wait before the next one, mostly unrecorded."""
    pauses = paused_workers(job)
    lasts_s = lengths_of(job, len(pauses))
    noted: Noted = "at the end" if job.rng.random() < 0.5 else "at the begin"
    all_wait = bool(job.rng.random() < 0.7)
    optimizers = np.flatnonzero(job.graph.of(OPTIMIZER))

    def change(durations: Durations, extras: Extras) -> None:
        usual = simulate(job.graph, durations)
        for (step, worker), pause_s in zip(pauses, lasts_s, strict=True):
            dp_rank, stage = worker
            durations.gap[step + 1, stage, dp_rank] += pause_s
            if all_wait:
                _let_all_wait(job, durations, usual, step, worker, pause_s)
            if noted == "at the end":
                (op,) = optimizers[job.graph.stage[optimizers] == stage].tolist()
                after_s = durations.own[step, op, dp_rank]
                row = Interruption("gc-pause", step, op, dp_rank, after_s, pause_s)
            else:
                op = _first_operation(job, stage)
                before_s = pause_s + durations.launch[step + 1, op, dp_rank]
                row = Interruption("gc-pause", step + 1, op, dp_rank, -before_s, pause_s)
            extras.interruptions.append(row)

    fault = _of_collections("hidden-pause-after-step", job, pauses, lasts_s, change)
    fault.words += f", noted {noted} of a step, {'all' if all_wait else 'peers'} wait"
    return fault


def hidden_pause_single(job: JobUnderway) -> Fault:
    """A host stops once, for longer than a step, before a computation, and no row says why.

    Its peers' computations hold the wait. That it came late, and they did not, tells who it was.
    """
    dp_rank, stage = any_worker(job)
    step = int(job.rng.integers(1, job.num_steps - 1))
    op = _any_computation(job, stage)
    step_s = usual_step_s(job)
    pause_s = max(log_uniform(job.rng, 0.07, 0.6) * job.num_steps, 1.3) * step_s

    def change(durations: Durations, extras: Extras) -> None:
        del extras
        usual = simulate(job.graph, durations)
        durations.launch[step, op, dp_rank] += pause_s
        _let_peers_wait(job, durations, usual, (step, op, dp_rank), pause_s)

    on = (np.arange(job.num_steps) == step).astype(float)
    course = Course(on, step, step + 1, frozenset({"transient"}))
    worker = frozenset({(dp_rank, stage)})
    causes = frozenset({"job-stop", "gc-pause", "late-host"})
    truth = truth_of(
        "hidden-pause-single", causes, worker, course, area="host", also=(frozenset(),)
    )
    return Fault(truth, change, f"{pause_s / step_s:.1f} steps' time in step {step}")


def hidden_pause_sampled(job: JobUnderway) -> Fault:
    """The only pause of a window of one to three steps, noted or not: no rank is always slow.

    Without a row it may be left open what it was. Peers wait in computations, or where it shows.
    """
    rng = job.rng
    dp_rank, stage = any_worker(job)
    step, op = int(rng.integers(job.num_steps)), _any_computation(job, stage)
    is_noted, is_hidden = bool(rng.random() < 0.6), bool(rng.random() < 0.5)
    # Where all compute as long, only a row or a late begin tells who paused.
    is_inside = bool(rng.random() < 0.5) and (is_noted or not is_hidden)
    pause_s = log_uniform(rng, 0.08, 1.0) * usual_step_s(job) * job.num_steps

    def change(durations: Durations, extras: Extras) -> None:
        usual = simulate(job.graph, durations)
        after_s = -pause_s
        if is_inside:
            after_s = MEETING_SHARE / 2 * durations.own[step, op, dp_rank]
        (durations.own if is_inside else durations.launch)[step, op, dp_rank] += pause_s
        if is_hidden:
            _let_peers_wait(job, durations, usual, (step, op, dp_rank), pause_s)
        if is_noted:
            extras.interruptions.append(
                Interruption("gc-pause", step, op, dp_rank, after_s, pause_s)
            )

    causes = frozenset({"gc-pause"} if is_noted else {"job-stop", "gc-pause", "late-host"})
    course = Course(np.ones(job.num_steps), None, None, IRREGULAR)
    worker = frozenset({(dp_rank, stage)})
    truth = truth_of(
        "hidden-pause-sampled",
        causes,
        worker,
        course,
        area="host",
        may_abstain=not is_noted,
        also=(frozenset(),),
    )
    words = f"{pause_s / usual_step_s(job):.2f} steps' time in one of {job.num_steps} steps"
    return Fault(truth, change, f"{words}, {'noted' if is_noted else 'not noted'}")


def _any_computation(job: JobUnderway, stage: int) -> int:
    """A forward or backward of a stage, or a part of one."""
    graph = job.graph
    ops = graph.of(FORWARD, BACKWARD) & (graph.stage == stage) & (graph.weight > 0)
    return int(job.rng.choice(np.flatnonzero(ops)))


def _first_operation(job: JobUnderway, stage: int) -> int:
    """What a worker of the stage does first in each step."""
    graph = job.graph
    for name in ("params-all-gather", "forward-recv"):
        ops = graph.of(OP_CODES[name]) & (graph.stage == stage) & (graph.seq_id == 0)
        if ops.any():
            return int(np.flatnonzero(ops)[0])
    return first_forward(job, stage)


def _let_peers_wait(
    job: JobUnderway,
    durations: Durations,
    usual: Simulated,
    place: tuple[int, int, int],
    pause_s: float,
) -> None:
    """The peers' computation is longer by what they wait in the midst of it for the paused rank."""
    step, op, dp_rank = place
    if job.graph.span[op] >= 0:
        return  # parts of a computation wait for the gathers between them
    took_s = usual.end_s[step, op] - usual.start_s[step, op]
    meets_s = usual.start_s[step, op] + MEETING_SHARE * took_s
    waits_s = np.maximum(meets_s[dp_rank] + pause_s - meets_s, 0.0)
    waits_s[dp_rank] = 0.0
    durations.own[step, op] += waits_s


def _let_all_wait(
    job: JobUnderway,
    durations: Durations,
    usual: Simulated,
    step: int,
    worker: Worker,
    pause_s: float,
) -> None:
    """No other worker begins the next step before the paused one does."""
    stages = range(job.shape.pp)
    ends_s = np.stack([usual.end_s[step, job.graph.stage == stage].max(axis=0) for stage in stages])
    dp_rank, stage = worker
    waits_s = np.maximum(ends_s[stage, dp_rank] + pause_s - ends_s, 0.0)
    waits_s[stage, dp_rank] = 0.0
    durations.gap[step + 1] += waits_s


def _of_collections(
    kind: str,
    job: JobUnderway,
    pauses: list[tuple[int, Worker]],
    lasts_s: list[float],
    change: Callable[[Durations, Extras], None],
) -> Fault:
    """Those who paused may be named; that all others waited makes none of them a culprit."""
    steps = [step for step, _ in pauses]
    workers = frozenset(worker for _, worker in pauses)
    on = np.isin(np.arange(job.num_steps), steps).astype(float)
    course = Course(on, None, None, IRREGULAR)
    truth = truth_of(
        kind, frozenset({"gc-pause"}), workers, course, area="host", also=(frozenset(),)
    )
    if len(workers) > 1:
        truth = truth.without_culprits()
    mean = float(np.mean(lasts_s)) / usual_step_s(job)
    words = f"{len(pauses)} pauses of {len(workers)} workers, {mean:.2f} steps' time each"
    return Fault(truth, change, words)
