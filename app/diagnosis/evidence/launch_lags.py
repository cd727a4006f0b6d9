"""Who was behind in a long computation: recorded launches tell a late host from a slow GPU.

A client on CUDA sends how long after its launch an operation began (docs/wire-format.md). A host
that is ahead of its GPU has launched the next computation before most of this one has run. One that
launches it later was itself still busy with this one, and the GPU ran at the host's pace.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from app.diagnosis.case import Case, evidence
from app.diagnosis.finding import Worker
from app.trace.ops import OpKind
from app.trace.window import S_PER_NS, Floats, Ints, Trace


@dataclass(frozen=True, slots=True)
class LaunchLagLimits:
    """When a host is taken to be what its computations wait for."""

    # The next computation was launched after this part of a computation had run. Chosen: hosts that
    # are ahead launch before it begins, a host that sleeps within it near its end.
    min_part: float = 0.5
    # Chosen: most of its own computations, and few of its peers'. Where theirs are, too, the script
    # waits for the GPU (it reads a loss), or all hosts are slow, and launches tell nothing.
    min_share: float = 0.5
    max_share_of_peers: float = 0.2


LIMITS = LaunchLagLimits()


def is_held_up_by_host(case: Case, worker: Worker, optype: str) -> bool | None:
    """Whether a worker's computations of a type run at its host's pace, and its peers' do not.

    None where the record does not say: without launches, or where the peers' hosts are no faster.
    """
    shares = late_launch_shares(case)
    code = case.replay.window.job.op_types.codes.get(optype)
    if shares is None or code not in shares:
        return None
    dp_rank, stage = worker
    of_stage = shares[code][:, stage]
    peers = np.delete(of_stage, dp_rank)
    known = peers[~np.isnan(peers)]
    if np.isnan(of_stage[dp_rank]) or not known.size:
        return None
    if np.median(known) > LIMITS.max_share_of_peers:
        return None
    return bool(of_stage[dp_rank] >= LIMITS.min_share)


def sets_pace(case: Case, worker: Worker, optypes: Sequence[str]) -> bool | None:
    """Whether the host sets the pace in any of these types; False: the GPU does in all of them.

    None where the record does not say.
    """
    of_types = [is_held_up_by_host(case, worker, optype) for optype in optypes]
    return True if True in of_types else None if None in of_types or not of_types else False


@evidence
def late_launch_shares(case: Case) -> dict[int, Floats] | None:
    """{type: [dp, pp]}, share of a worker's computations whose successor was launched late in them.

    NaN where not known; None without any launch.
    """
    window, sizes = case.replay.window, case.parallelism
    trace = window.trace
    if trace.launch_lag_us is None:
        return None
    computes = window.job.op_types.flags(lambda spec: spec.kind is OpKind.COMPUTE)
    rows = _in_order(trace, np.flatnonzero(computes[trace.optype]))
    now, after = rows[:-1], rows[1:]
    is_next = (
        (trace.dp_rank[now] == trace.dp_rank[after])
        & (trace.stage[now] == trace.stage[after])
        & (trace.step[now] == trace.step[after])
    )
    now, after = now[is_next], after[is_next]
    lag_us = trace.launch_lag_us[after]
    launched_s = trace.start_s[after] - lag_us * 1000 * S_PER_NS
    is_late = launched_s >= trace.start_s[now] + LIMITS.min_part * trace.duration_s[now]
    is_known = lag_us >= 0
    place = trace.dp_rank * sizes.pp_size + trace.stage
    shares: dict[int, Floats] = {}
    for code in np.unique(trace.optype[now]).tolist():
        of_type = is_known & (trace.optype[now] == code)
        counts, num_late = (
            np.bincount(place[now[chosen]], minlength=sizes.num_workers)
            for chosen in (of_type, of_type & is_late)
        )
        share = np.divide(num_late, counts, out=np.full(counts.size, np.nan), where=counts > 0)
        shares[code] = share.reshape(sizes.dp_size, sizes.pp_size)
    return shares


def _in_order(trace: Trace, rows: Ints) -> Ints:
    """The rows worker by worker, step by step, by start."""
    keys = (trace.start_s[rows], trace.step[rows], trace.stage[rows], trace.dp_rank[rows])
    return np.asarray(rows[np.lexsort(keys)])
