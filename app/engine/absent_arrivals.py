"""When did a worker without a record arrive at the collectives of its dp group?

The others seem to transfer until it has arrived. A replay with these transfers says how much later
than the last recorded member it was, and that much is not transfer: it would be counted twice.
"""

import numpy as np
from numpy.typing import NDArray

from app.engine.graph import ALL_DP_RANKS, NO_PEERS
from app.engine.grid import ABSENT
from app.engine.timeline.step_run import play_step
from app.engine.what_if import Replayer, replayer
from app.trace.window import Floats, Ints


def without_waits_for_absent(replay: Replayer) -> Replayer:
    """The steps with shorter transfers where dp ranks met an absent worker that was late.

    The same object where no worker is absent.
    """
    flags = replay.grid.imputed
    if flags is None or not (flags == ABSENT).any():
        return replay
    waited_s = np.zeros_like(replay.durations.recorded_s)
    for position, step in enumerate(replay.steps):
        is_absent = flags[:, position :: len(replay.steps)] == ABSENT
        if is_absent.any():
            start_s = play_step(replay, step, "simulated").start_s
            _wait(replay, start_s, is_absent, waited_s[:, position :: len(replay.steps)])
    if not waited_s.any():
        return replay
    own_s = np.maximum(replay.durations.recorded_s - waited_s, 0.0)
    graph = replay.graph
    own_s[graph.num_ops :] = own_s[graph.milestone_of] * graph.milestone_share[:, None]
    return replayer(replay.grid, graph, own_s)


def _wait(
    replay: Replayer, start_s: Floats, is_absent: NDArray[np.bool_], waited_s: Floats
) -> None:
    """Fill `waited_s` [rows, dp] of one step: from the last recorded arrival to an absent one's.

    Shapes: `start_s` and `is_absent` are [ops, dp]. Only where dp ranks meet.
    """
    graph = replay.graph
    for unit in np.flatnonzero(graph.meets != NO_PEERS):
        rows = graph.unit_ops[graph.unit_ptr[unit] : graph.unit_ptr[unit + 1]]
        rows = rows[rows < graph.num_ops]
        if not is_absent[rows].any():
            continue
        block = replay.peers.block * (graph.meets[unit] != ALL_DP_RANKS)
        for ranks in _ranks_by_block(block):
            absent = is_absent[np.ix_(rows, ranks)]
            if absent.any() and not absent.all():
                starts_s = start_s[np.ix_(rows, ranks)]
                late_s = starts_s[absent].max() - starts_s[~absent].max()
                waited_s[np.ix_(rows, ranks)] = max(late_s, 0.0)


def _ranks_by_block(block: Ints) -> list[Ints]:
    return [np.flatnonzero(block == each) for each in np.unique(block)]
