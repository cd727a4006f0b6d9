"""Which steps have the same structure, and which cannot be replayed since replicas differ?"""

from collections import Counter
from dataclasses import dataclass

import numpy as np

from app.engine.grid import has_chunk, is_simulated
from app.trace.ops import NUM_CODES
from app.trace.window import Ints, SkippedStep, Window


@dataclass(frozen=True, slots=True)
class Structures:
    """Steps of equal structure together, in the order of their first steps, and those refused."""

    groups: tuple[tuple[int, ...], ...]
    refused: tuple[SkippedStep, ...]


def structures(window: Window) -> Structures:
    """The window's steps, sorted out.

    The structure of a replica in a step is its set of operations by stage, type, number, and
    chunk where it has one (what-if model, section 6).
    """
    keys = _Keys(window)
    groups: dict[bytes, list[int]] = {}
    refused = []
    for step in window.steps:
        replicas = [keys.of(step, dp) for dp in range(window.job.parallelism.dp_size)]
        usual = Counter(each.tobytes() for each in replicas).most_common(1)[0][0]
        other = next((dp for dp, each in enumerate(replicas) if each.tobytes() != usual), None)
        if other is None:
            groups.setdefault(usual, []).append(step)
        else:
            reason = keys.difference(other, replicas[other], np.frombuffer(usual, np.int64))
            refused.append(SkippedStep(step, reason))
    return Structures(tuple(tuple(steps) for steps in groups.values()), tuple(refused))


class _Keys:
    """Every operation of every replica's step as one number, ascending."""

    def __init__(self, window: Window) -> None:
        trace, self._types = window.trace, window.job.op_types
        trace = trace.select(is_simulated(self._types)[trace.optype])
        self._num_seq_ids = int(trace.seq_id.max(initial=0)) + 1
        self._num_chunks = int(trace.mc.max(initial=0)) + 2
        chunk = np.where(has_chunk(self._types)[trace.optype], trace.mc, -1)
        key = trace.stage.astype(np.int64) * NUM_CODES + trace.optype
        key = (key * self._num_seq_ids + trace.seq_id) * self._num_chunks + chunk + 1
        order = np.lexsort((key, trace.dp_rank, trace.step))
        self._key, step, dp_rank = key[order], trace.step[order], trace.dp_rank[order]
        starts = np.flatnonzero(
            (np.diff(step, prepend=-1) != 0) | (np.diff(dp_rank, prepend=-1) != 0)
        )
        ends = np.append(starts[1:], step.size)
        places = zip(step[starts].tolist(), dp_rank[starts].tolist(), strict=True)
        self._rows = dict(
            zip(places, zip(starts.tolist(), ends.tolist(), strict=True), strict=True)
        )

    def of(self, step: int, dp_rank: int) -> Ints:
        """Those of one replica in one step."""
        first, end = self._rows.get((step, dp_rank), (0, 0))
        return self._key[first:end]

    def difference(self, dp_rank: int, mine: Ints, usual: Ints) -> str:
        """What a replica has that the others have not, or the other way round, in words."""
        extra, lacking = np.setdiff1d(mine, usual), np.setdiff1d(usual, mine)
        words = (
            "has not, as most others have," if lacking.size else "has, and most others have not,"
        )
        if not (extra.size or lacking.size):
            return f"dp rank {dp_rank} has some operation more than once"
        named = self._describe(int((lacking if lacking.size else extra)[0]))
        return (
            f"dp rank {dp_rank} {words} {named}: replicas of different structure "
            "cannot be replayed together"
        )

    def _describe(self, key: int) -> str:
        key, chunk = divmod(key, self._num_chunks)
        key, seq_id = divmod(key, self._num_seq_ids)
        stage, code = divmod(key, NUM_CODES)
        of_chunk = f" (chunk {chunk - 1})" if chunk else ""
        return f"{self._types.name(code)} {seq_id}{of_chunk} on stage {stage}"
