"""What workers that stop irregularly lose, and which of them are launched late by their hosts.

`stalled_workers.py` of the detectors tells causes of such stops apart. The memory allocator stops
computations only; a busy CPU delays sends, collectives and the optimizer step as well, which
`others_late` finds. `rank_blocks` are the workers that share a host if ranks fill hosts one after
the other.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from math import comb

import numpy as np
from numpy.typing import NDArray

from app.diagnosis.case import Case, evidence
from app.diagnosis.evidence.data_waits import data_waits
from app.diagnosis.evidence.interruptions import (
    InterruptionKind,
    Interruptions,
    Stalls,
    interruptions_of,
    is_one_of,
    joined,
    no_rows,
    rows_of_group,
)
from app.diagnosis.evidence.late_workers import late_hosts
from app.diagnosis.evidence.outliers import launch_delays, launch_delays_s
from app.diagnosis.evidence.usual_steps import is_usual
from app.diagnosis.features import Features
from app.diagnosis.finding import Worker
from app.diagnosis.statistics.robust import hit_chance, log_binomial_tail, lower_quantile
from app.engine.graph import ALL_DP_RANKS, NO_PEERS
from app.trace.ops import OpKind
from app.trace.window import Ints

# GPUs of a host, most usual first.
HOST_SIZES = (8, 4, 16)


@dataclass(frozen=True, slots=True)
class LateLaunchLimits:
    """From when on a worker launches late. All were chosen on made jobs."""

    # A worker that is launched late in this share of its computations is a late host.
    max_share_of_computations: float = 0.5
    # Another operation than a computation starts late from so many times the usual delay, and this
    # share of a forward.
    min_times_usual: float = 20.0
    min_share_of_forward: float = 0.1
    # Probability of so many late starts of other operations by chance.
    max_chance: float = 1e-6


LIMITS = LateLaunchLimits()


def held_up(case: Case, chosen: NDArray[np.bool_]) -> Interruptions:
    """What the chosen workers [dp, pp] lose by stops of computations, short ones included."""
    longer = interruptions_of(case, InterruptionKind.LONG).of_workers(chosen)
    later = interruptions_of(case, InterruptionKind.LATE).of_workers(chosen)
    # A first forward that is late repeatedly waits for data.
    loads = data_waits(case).waits.any()
    return joined([longer, later.where(is_usual(case)[later.step] & ~(later.is_first & loads))])


def launched_late(case: Case, stalls: Stalls) -> NDArray[np.bool_]:
    """[dp, pp], late hosts that launch most of their computations late: no irregular stops."""
    hosts = is_one_of(case, (host.worker for host in late_hosts(case)))
    is_regular = stalls.late.counts(case) >= LIMITS.max_share_of_computations * stalls.trials
    return hosts & is_regular


def workers_by_host(case: Case) -> dict[str, list[Worker]]:
    """The workers of each host, as far as hosts are known."""
    by_host: dict[str, list[Worker]] = defaultdict(list)
    for worker, host in sorted(case.replay.window.hosts.items()):
        by_host[host].append(worker)
    return dict(by_host)


def rank_blocks(case: Case, stopped: NDArray[np.bool_], size: int) -> dict[str, list[Worker]]:
    """Hosts of any of these workers [dp, pp], if ranks fill hosts of so many GPUs in order.

    By the first and last global rank in words; empty where a host would have one worker.
    """
    tp_size, rank = case.parallelism.tp_size, case.replay.groups[0].grid.rank
    hit = np.isin(rank // size, rank[stopped & (rank >= 0)] // size)
    return {
        f"ranks {size * number} to {size * number + len(workers) * tp_size - 1}": workers
        for number, workers in _blocks(rank, hit, size).items()
        if len(workers) > 1
    }


def chance_of_one_host(case: Case, workers: Sequence[Worker]) -> float:
    """Probability that as many workers, drawn at random, share a host; 1.0 if these do not.

    Workers of one stage have the same memory to allocate, and are drawn from that stage. Where
    hosts are unknown, blocks of successive ranks are taken for them.
    """
    rank = case.replay.groups[0].grid.rank
    hosts = [*(workers_by_host(case) or _blocks(rank, rank >= 0, HOST_SIZES[0])).values()]
    if not any(set(workers) <= set(others) for others in hosts):
        return 1.0
    stages, num_drawn_from = {stage for _, stage in workers}, case.num_workers
    if len(stages) == 1:
        hosts = [[worker for worker in others if worker[1] in stages] for others in hosts]
        num_drawn_from = case.parallelism.dp_size
    shared = sum(comb(len(others), len(workers)) for others in hosts)
    return float(shared / comb(num_drawn_from, len(workers)))


def _blocks(rank: Ints, chosen: NDArray[np.bool_], size: int) -> dict[int, list[Worker]]:
    """The chosen workers [dp, pp] by host, if each has so many GPUs and ranks fill them."""
    blocks: dict[int, list[Worker]] = defaultdict(list)
    for dp_rank, stage in np.argwhere(chosen & (rank >= 0)).tolist():
        blocks[int(rank[dp_rank, stage]) // size].append((dp_rank, stage))
    return dict(blocks)


@evidence
def other_launches(case: Case) -> Interruptions:
    """Late launches of other operations than computations and receives, in usual steps."""
    parts = [no_rows(case)]
    for number, (group, late) in enumerate(zip(case.groups, launch_delays(case), strict=True)):
        rows = _other_rows(group)
        if not rows.size:
            continue
        delay_s = launch_delays_s(group.replayer, rows)
        usual_s = max(float(np.median(delay_s)), late.usual_s)
        forward_s = 0.0 if group.forward is None else float(np.median(group.forward.pace.mean_s))
        least_s = max(LIMITS.min_times_usual * usual_s, LIMITS.min_share_of_forward * forward_s)
        in_usual = np.tile(is_usual(case)[group.positions], group.replayer.dp_size)
        at, lane = np.nonzero((delay_s > least_s) & in_usual)
        of_ops = (rows[at], lane, delay_s[at, lane], 0.0)
        parts.append(rows_of_group(case, number, InterruptionKind.LATE, *of_ops))
    return joined(parts)


def _other_rows(group: Features) -> Ints:
    """Operations that are neither computations of micro-batches nor receives.

    Those with which a step begins are left out: what they wait for is the step before.
    """
    template, graph = group.replayer.template, group.replayer.graph
    follows = np.diff(graph.pred_ptr)[: template.num_ops] > 0
    is_pass = np.isin(np.arange(template.num_ops), group.item_rows)
    is_left_out = template.op_types.is_receive | template.op_types.flags(
        lambda spec: spec.kind is OpKind.ANNOTATION
    )
    return np.flatnonzero(~is_pass & ~is_left_out[template.optype] & follows)


def others_late(case: Case) -> NDArray[np.bool_]:
    """[dp, pp], workers that start other operations than computations late, beyond chance."""
    hits = other_launches(case).counts(case)
    trials = np.zeros(case.parallelism.pp_size, np.int64)
    for group in case.groups:
        stages = group.replayer.template.stage[_other_rows(group)]
        num_steps = int(is_usual(case)[group.positions].sum())
        trials += np.bincount(stages, minlength=trials.size) * num_steps
    tried = np.maximum(np.broadcast_to(trials, hits.shape), 1)
    chance = hit_chance(lower_quantile(hits / tried, 0.5))
    log_chance = log_binomial_tail(hits, tried, chance)
    return np.asarray(log_chance + np.log(hits.size) < np.log(LIMITS.max_chance))


def held_up_by(case: Case, launches: Interruptions) -> Interruptions:
    """What late launches hold up, no operation twice.

    An operation that meets others delays all of them, by as much as it comes after the last other.
    """
    parts = [no_rows(case)]
    for number, group in enumerate(case.groups):
        replayer, graph, grid = group.replayer, group.replayer.graph, group.replayer.grid
        unit_of = np.empty(graph.num_rows, np.int64)
        unit_of[graph.unit_ops] = np.repeat(np.arange(graph.meets.size), np.diff(graph.unit_ptr))
        late = launches.where(launches.group == number)
        late_s = np.zeros(grid.start_s.shape)
        columns = (late.row, late.lane, late.dp_rank, late.excess_s)
        for row, lane, dp_rank, seconds in zip(
            *(column.tolist() for column in columns), strict=True
        ):
            unit, block = unit_of[row], replayer.peers.block
            is_met = (block == block[dp_rank]) | (graph.meets[unit] == ALL_DP_RANKS)
            if graph.meets[unit] == NO_PEERS:
                is_met = np.arange(block.size) == dp_rank
            lanes = np.flatnonzero(is_met) * grid.num_steps + lane % grid.num_steps
            members = graph.unit_ops[graph.unit_ptr[unit] : graph.unit_ptr[unit + 1]]
            ops = np.ix_(members, lanes)
            is_other = (members[:, None] != row) | (lanes != lane)
            last_s = grid.start_s[ops].max(initial=-np.inf, where=is_other)
            held_up_s = min(seconds, float(grid.start_s[row, lane] - last_s))
            late_s[ops] = np.maximum(late_s[ops], held_up_s)
        row, lane = np.nonzero(late_s)
        of_ops = (row, lane, late_s[row, lane], 0.0)
        parts.append(rows_of_group(case, number, InterruptionKind.LATE, *of_ops))
    return joined(parts)
