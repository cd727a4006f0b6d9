"""Critical path of a step: the chain of operations that decided how long it took.

A run is walked backwards: from an operation to the last arrival among its peers, and from there to
the last end among its predecessors. In the recorded run an operation also waits for the previous
computation of its worker, since a host may post a receive only after a computation.
"""

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from app.engine.graph import ALL_DP_RANKS, EP_BLOCK
from app.engine.replays import WindowReplay
from app.engine.template import AT_ONCE_S
from app.engine.timeline.step_run import RunKind, StepRun, op_labels, play_step
from app.trace.window import Ints
from app.work_budget import checkpoint


@dataclass(frozen=True, slots=True)
class PathLink:
    """One operation of the chain.

    It began at `start_s`, `gap_s` after the end of the previous link (the first: after the step's
    begin), and took `own_s` of computation or transfer. A last arrival that only made others wait
    has an `own_s` of 0 and precedes the operation that transferred. A gap is launch delay in the
    recorded run, and 0 in simulated and ideal runs. Recorded gaps and all transfers may be
    negative if hosts' clocks disagree.
    """

    optype: str
    group: str  # what a reader calls the op type
    dp_rank: int
    stage: int
    rank: int
    seq_id: int
    microbatch: int | None
    chunk: int | None
    start_s: float
    own_s: float
    gap_s: float

    @property
    def worker(self) -> tuple[int, int, int]:
        """Its dp rank, stage and global rank."""
        return self.dp_rank, self.stage, self.rank


def path_to(run: StepRun, rank: Ints, op: int, dp_rank: int) -> tuple[PathLink, ...]:
    """The links that led to the end of an operation, in order of time.

    `rank` [dp, pp] are the global ranks of the workers.
    """
    return tuple(reversed(_Walk(run, rank).links_back_from(op, dp_rank)))


def waited_for(run: StepRun, op: int, dp_rank: int) -> tuple[int, float] | None:
    """The predecessor that ended last before an operation could begin, and its end.

    None without predecessors. The recorded run includes the worker's previous computation.
    """
    walk = _Walk(run, np.zeros((0, 0), np.int64))
    row = walk.last_before(op, dp_rank, {(op, dp_rank)})
    return None if row is None else (walk.op_of(row), walk.end_s(row, dp_rank))


class _Walk:
    """One run, walked backwards. A row is an operation or a milestone."""

    def __init__(self, run: StepRun, rank: Ints) -> None:
        self.run = run
        self._rank = rank
        # [rows], the unit that each row belongs to.
        self._unit_of = np.empty(run.graph.num_rows, np.int64)
        sizes = np.diff(run.graph.unit_ptr)
        self._unit_of[run.graph.unit_ops] = np.repeat(np.arange(sizes.size), sizes)

    def links_back_from(self, row: int, dp_rank: int) -> list[PathLink]:
        """The links, last one first."""
        links: list[PathLink] = []
        seen: set[tuple[int, int]] = set()
        while True:
            checkpoint()
            seen.add((row, dp_rank))
            op, until_s = self.op_of(row), self.end_s(row, dp_rank)
            arrival, arrival_dp = self._last_arrival(op, dp_rank)
            met_s = float(self.run.start_s[arrival, arrival_dp])
            before = self.last_before(arrival, arrival_dp, seen)
            if row != op and self.run.kind != "recorded":
                # The operation may have waited after this moment as well.
                before = self.last_before(row, dp_rank, seen)
                met_s = 0.0 if before is None else self.end_s(before, dp_rank)
            awaited = None if before is None else self._awaited(before)
            if awaited is not None:
                # It waited in its midst: what is left of it follows what it waited for.
                met_s, before = self.end_s(awaited, arrival_dp), awaited
            gap_s = met_s - (0.0 if before is None else self.end_s(before, arrival_dp))
            if (arrival, arrival_dp) == (op, dp_rank):
                links.append(self._link(op, dp_rank, until_s - met_s, gap_s))
            else:
                links.append(self._link(op, dp_rank, until_s - met_s, 0.0))
                links.append(self._link(arrival, arrival_dp, 0.0, gap_s))
            if before is None:
                return links
            row, dp_rank = before, arrival_dp

    def op_of(self, row: int) -> int:
        """The operation of a row: itself, or that of a milestone."""
        graph = self.run.graph
        return row if row < graph.num_ops else int(graph.milestone_of[row - graph.num_ops])

    def end_s(self, row: int, dp_rank: int) -> float:
        """End of an operation, or the moment of a milestone."""
        num_ops = self.run.graph.num_ops
        if row < num_ops:
            return float(self.run.end_s[row, dp_rank])
        return float(self.run.moment_s[row - num_ops, dp_rank])

    def _is_begin(self, row: int) -> bool:
        graph = self.run.graph
        return row >= graph.num_ops and graph.milestone_share[row - graph.num_ops] == 0

    def _awaited(self, row: int) -> int | None:
        """What an operation waits for by this row, if it is part of a resumption."""
        graph = self.run.graph
        if row < graph.num_ops or graph.milestone_share[row - graph.num_ops] >= 0:
            return None
        return int(graph.preds[graph.pred_ptr[row]])

    def _last_arrival(self, op: int, dp_rank: int) -> tuple[int, int]:
        """The peer of an operation, itself included, that starts last."""
        graph, unit = self.run.graph, self._unit_of[op]
        ops = graph.unit_ops[graph.unit_ptr[unit] : graph.unit_ptr[unit + 1]]
        lanes = self._lanes(int(graph.meets[unit]), dp_rank)
        starts_s = self.run.start_s[ops, lanes]
        if self.run.start_s[op, dp_rank] == starts_s.max():
            return op, dp_rank
        member, lane = np.unravel_index(starts_s.argmax(), starts_s.shape)
        return int(ops[member]), lanes.start + int(lane)

    def last_before(self, op: int, dp_rank: int, seen: set[tuple[int, int]]) -> int | None:
        """The predecessor that ends last, except those in `seen`.

        If clocks disagree, a recorded chain could otherwise run in a circle.
        """
        graph = self.run.graph
        rows = graph.preds[graph.pred_ptr[op] : graph.pred_ptr[op + 1]].tolist()
        if self.run.kind == "recorded":
            rows += self._computed_before(op, dp_rank)
        # A row of no time, which waits for nothing, is the step's begin.
        unseen = (row for row in rows if (row, dp_rank) not in seen and not self._is_begin(row))
        return max(unseen, key=lambda row: self.end_s(row, dp_rank), default=None)

    def _computed_before(self, op: int, dp_rank: int) -> list[int]:
        """The worker's last computation that ended before an operation started."""
        ops = np.array(self.run.template.computes[int(self.run.template.stage[op])], np.int64)
        start_s, ended_s = self.run.start_s[ops, dp_rank], self.run.end_s[ops, dp_rank]
        now_s = self.run.start_s[op, dp_rank]
        ended = (start_s < now_s) & (ended_s <= now_s + AT_ONCE_S)
        return [int(ops[ended][ended_s[ended].argmax()])] if ended.any() else []

    def _link(self, op: int, dp_rank: int, own_s: float, gap_s: float) -> PathLink:
        """The operation as a link of the chain."""
        template = self.run.template
        spec = template.op_types.by_code[int(template.optype[op])]
        stage, known_by = int(template.stage[op]), op_labels(template, op)
        return PathLink(
            optype=spec.name,
            group=spec.group,
            dp_rank=dp_rank,
            stage=stage,
            rank=int(self._rank[dp_rank, stage]),
            seq_id=known_by["seq_id"],
            microbatch=known_by.get("microbatch"),
            chunk=known_by.get("chunk"),
            start_s=float(self.run.start_s[op, dp_rank]),
            own_s=own_s,
            gap_s=gap_s,
        )

    def _lanes(self, meets: int, dp_rank: int) -> slice:
        if meets == ALL_DP_RANKS:
            return slice(0, self.run.start_s.shape[1])
        if meets == EP_BLOCK:
            size = self.run.template.parallelism.ep_size
            first = dp_rank // size * size
            return slice(first, first + size)
        return slice(dp_rank, dp_rank + 1)


@dataclass(frozen=True)
class CriticalPath:
    """The chain in order of time.

    Own times and gaps sum up to `length_s`, from the step's begin to its last optimizer's end.
    """

    step: int
    kind: RunKind
    length_s: float
    links: tuple[PathLink, ...]

    @cached_property
    def group_shares(self) -> dict[str, float]:
        """Share of the length in operations of each type, largest first; without gaps."""
        return self._shares([(link.group, link.own_s) for link in self.links])

    @cached_property
    def worker_shares(self) -> dict[tuple[int, int, int], float]:
        """Share of the length on each worker, including gaps, largest first; the sum is 1.

        Keys: dp rank, stage and global rank.
        """
        return self._shares([(link.worker, link.own_s + link.gap_s) for link in self.links])

    @cached_property
    def waiting_share(self) -> float:
        """Share of the length in gaps; with the shares by type, the sum is 1."""
        return self._share(sum(link.gap_s for link in self.links))

    def _shares(self, parts: list[tuple[Any, float]]) -> dict[Any, float]:
        seconds: dict[Any, float] = defaultdict(float)
        for key, part_s in parts:
            seconds[key] += part_s
        largest_first = sorted(seconds.items(), key=lambda item: -item[1])
        return {key: self._share(part_s) for key, part_s in largest_first}

    def _share(self, part_s: float) -> float:
        return part_s / self.length_s if self.length_s else 0.0


def critical_path(replay: WindowReplay, step: int, kind: RunKind) -> CriticalPath:
    """The chain of operations that decided how long a step took.

    Raises:
        InvalidRequest: the window does not have the step, or it cannot be replayed.
    """
    replayer = replay.of_step(step)
    return path_of_run(play_step(replayer, step, kind), replayer.grid.rank)


def path_of_run(run: StepRun, rank: Ints) -> CriticalPath:
    """The chain of one run; `rank` [dp, pp] are the global ranks of the workers."""
    ends_s = np.where(run.graph.is_last[: run.graph.num_ops, None], run.end_s, -np.inf)
    op, dp_rank = (int(place) for place in np.unravel_index(ends_s.argmax(), ends_s.shape))
    length_s = float(ends_s[op, dp_rank])
    return CriticalPath(run.step, run.kind, length_s, path_to(run, rank, op, dp_rank))


def as_json(path: CriticalPath) -> dict[str, Any]:
    """The chain as `paceline critical-path --json` writes it and the API answers it."""
    return {
        "step": path.step,
        "run": path.kind,
        "length_s": path.length_s,
        "shares": {
            "by_optype": path.group_shares,
            "waiting": path.waiting_share,
            "by_worker": [
                {"dp_rank": dp_rank, "stage": stage, "rank": rank, "share": share}
                for (dp_rank, stage, rank), share in path.worker_shares.items()
            ],
        },
        "links": [
            {name: getattr(link, name) for name in PathLink.__slots__ if name != "group"}
            for link in path.links
        ],
    }
