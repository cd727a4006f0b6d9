"""Slow workers in steps with uneven numbers of micro-batches, which cannot be replayed.

The computations of the micro-batches that all dp ranks have are compared as in any other job. What
a slow worker costs is concluded from how long the replicas compute in all: a replica with fewer
micro-batches may be slow and yet be waited for no longer than the others.
"""

from dataclasses import replace
from math import prod

import numpy as np

from app.diagnosis.case import Case
from app.diagnosis.detector import Suspicion
from app.diagnosis.detectors.slow_worker import SlowWorker
from app.diagnosis.fidelity import MAX_CONFIDENCE, MIN_COST
from app.diagnosis.job_history import History
from app.diagnosis.suspicions import deny
from app.engine.medians import medians_of_known
from app.engine.replays import prepare
from app.engine.report import analyse_replay
from app.errors import InvalidTrace
from app.formatting import percent
from app.result.finding import RuledOut
from app.trace.completeness import OF_MICROBATCH
from app.trace.job import Parallelism
from app.trace.uneven_counts import uneven_counts
from app.trace.window import Floats, Ints, Trace, Window

NOTE = "The cost is concluded from how long each rank computes, as no step can be replayed"


def slow_in_uneven_steps(window: Window) -> tuple[Case, Suspicion | RuledOut] | None:
    """Slow workers by their computations, with the case of these; None in any other window."""
    uneven = uneven_counts(window)
    if uneven is None:
        return None
    trace = window.trace.of_steps(uneven.steps)
    trace = trace.select(np.isin(trace.optype, OF_MICROBATCH))
    common = replace(
        window,
        steps=uneven.steps,
        trace=_common(trace, np.array(uneven.steps), window.job.parallelism),
        skipped=(),
        origin_ns=None,
        collectives=None,
        imputed=None,
    )
    try:
        replay = prepare(common)
    except InvalidTrace:
        return None
    case = Case(replay, analyse_replay(replay), History())
    answer = SlowWorker().detect(case)
    if isinstance(answer, RuledOut):
        return case, answer
    cost = _cost(case, trace, window, answer)
    if cost < MIN_COST:
        reason = f"it costs only {percent(cost)} of the job's GPU time"
        return case, deny(answer, reason, cost=cost)
    confidence = min(answer.max_confidence, MAX_CONFIDENCE)
    return case, replace(answer, cost=cost, max_confidence=confidence, note=NOTE)


def _cells(trace: Trace, steps: Ints, sizes: Parallelism) -> tuple[Ints, tuple[int, int, int]]:
    """[rows], each row's place in [steps, dp, pp], flat; and that shape."""
    shape = (steps.size, sizes.dp_size, sizes.pp_size)
    places = (np.searchsorted(steps, trace.step), trace.dp_rank, trace.stage)
    return np.ravel_multi_index(places, shape), shape


def _common(computations: Trace, steps: Ints, sizes: Parallelism) -> Trace:
    """The computations of the micro-batches that every dp rank has, in every step."""
    cell, shape = _cells(computations, steps, sizes)
    is_common = np.zeros(computations.num_ops, np.bool_)
    for code in OF_MICROBATCH:
        rows = computations.rows_of_type(code)
        number = np.bincount(cell[rows], minlength=prod(shape)).reshape(shape)
        lowest = number.min(axis=(0, 1))
        is_common[rows] = computations.seq_id[rows] < lowest[computations.stage[rows]]
    return computations.select(is_common)


def _cost(case: Case, computations: Trace, window: Window, suspicion: Suspicion) -> float:
    """Share of the time by which the longest replica computes longer than without the cause."""
    cell, shape = _cells(computations, case.steps, case.parallelism)
    number = np.bincount(cell, minlength=prod(shape)).reshape(shape)
    work_s = np.bincount(cell, computations.duration_s, prod(shape)).reshape(shape)
    is_slow = np.zeros(shape[1:], np.bool_)
    is_slow[tuple(np.transpose(suspicion.workers))] = True
    of_peers_s = np.where(is_slow, np.nan, work_s / np.maximum(number, 1))
    usual_s = medians_of_known(of_peers_s.transpose(0, 2, 1))[:, None]
    repaired_s = np.where(is_slow & np.isfinite(usual_s), number * usual_s, work_s)
    # A replica's time is that of its longest stage, as the others wait for it.
    gain_s = work_s.max(axis=(1, 2)) - repaired_s.max(axis=(1, 2))
    return float(np.maximum(gain_s, 0.0).sum() / _recorded_s(case, window).sum())


def _recorded_s(case: Case, window: Window) -> Floats:
    """[steps], from the first start to the last end on the worker with the longest step."""
    trace = window.trace.of_steps(case.steps.tolist())
    cell, shape = _cells(trace, case.steps, case.parallelism)
    begin_s, end_s = np.full(prod(shape), np.inf), np.full(prod(shape), -np.inf)
    np.minimum.at(begin_s, cell, trace.start_s)
    np.maximum.at(end_s, cell, trace.start_s + trace.duration_s)
    return np.asarray((end_s - begin_s).reshape(shape).max(axis=(1, 2)))
