"""A worker's time by type of operation, compared with its peers'."""

from dataclasses import dataclass

import numpy as np

from app.engine.replays import WindowReplay
from app.engine.what_if import Replayer
from app.errors import InvalidRequest
from app.trace.window import Floats, Ints


@dataclass(frozen=True, slots=True)
class WorkerOpTimes:
    """One op type of a worker in a window: seconds of computation or transfer.

    `peers_s` are the quartiles of the peers' operations, None where it has no peer.
    """

    optype: str
    num_ops: int
    total_s: float
    median_s: float
    p95_s: float
    peers_s: tuple[float, float, float] | None


def ops_by_type(replay: WindowReplay, dp_rank: int, stage: int) -> list[WorkerOpTimes]:
    """Every op type of the worker, longest total first.

    Its peers are the other workers of the stage; with one replica, the other stages.

    Raises:
        InvalidRequest: the job has no such worker.
    """
    first = replay.groups[0]
    if dp_rank >= first.dp_size or stage >= first.pp_size:
        raise InvalidRequest(f"dp {dp_rank}, stage {stage} is no worker of this job")
    by_type: dict[str, list[tuple[Floats, Floats]]] = {}
    for group in replay.groups:
        template = group.template
        for code in np.unique(template.optype[template.stage == stage]).tolist():
            times_s = _own_and_peers(group, np.flatnonzero(template.optype == code), dp_rank, stage)
            by_type.setdefault(template.op_types.name(code), []).append(times_s)
    times = [_times_of_type(name, parts) for name, parts in by_type.items()]
    return sorted(times, key=lambda of_type: -of_type.total_s)


def _own_and_peers(group: Replayer, ops: Ints, dp_rank: int, stage: int) -> tuple[Floats, Floats]:
    """Durations of the worker's operations of a type, and of its peers'."""
    num_steps = group.grid.num_steps
    is_here = group.template.stage[ops] == stage
    here_s = group.durations.recorded_s[ops[is_here]]
    own_lanes = slice(dp_rank * num_steps, (dp_rank + 1) * num_steps)
    own_s = here_s[:, own_lanes].ravel()
    if group.dp_size > 1:
        return own_s, np.delete(here_s, own_lanes, axis=1).ravel()
    return own_s, group.durations.recorded_s[ops[~is_here]].ravel()


def _times_of_type(name: str, parts: list[tuple[Floats, Floats]]) -> WorkerOpTimes:
    own_s, peers_s = (np.concatenate(of_groups) for of_groups in zip(*parts, strict=True))
    median_s, p95_s = np.quantile(own_s, (0.5, 0.95)).tolist()
    quartiles = np.quantile(peers_s, (0.25, 0.5, 0.75)).tolist() if peers_s.size else None
    return WorkerOpTimes(
        optype=name,
        num_ops=int(own_s.size),
        total_s=float(own_s.sum()),
        median_s=median_s,
        p95_s=p95_s,
        peers_s=None if quartiles is None else (quartiles[0], quartiles[1], quartiles[2]),
    )
