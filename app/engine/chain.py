"""A run walked backwards: which operation held up which, from the end to the beginning.

An operation ran from the moment when the last of those that it meets had arrived, and that one
came when the last of what it waited for had ended. In the recorded run an operation also waited
for what its worker computed before: a host that posts a receive after a computation makes it
wait for that, whatever the model would allow.
"""

from dataclasses import dataclass

import numpy as np

from app.engine.graph import ALL_DP_RANKS, EP_BLOCK, StepGraph
from app.engine.rules import AT_ONCE_S
from app.engine.run import Run
from app.engine.timeline.text import labels
from app.trace.window import Ints


@dataclass(frozen=True, slots=True)
class Link:
    """One operation of the chain.

    It began `gap_s` after the link before it had ended (after the step's beginning, for the
    first), at `start_s`, and then kept the chain busy for `own_s`, its computation or transfer.
    An operation that only made others wait, since it arrived last, has an `own_s` of 0 and comes
    before the one that transferred. In a simulated or ideal run every gap is 0; in a recorded one
    it is launch delay. Recorded gaps and own times may be negative where hosts' clocks disagree,
    and transfers in any run for the same reason.
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


def chain_to(run: Run, rank: Ints, op: int, dp_rank: int) -> tuple[Link, ...]:
    """The links that led to the end of an operation, in the order of time.

    `rank` [dp, pp] are the global ranks of the workers.
    """
    return tuple(reversed(_walk(_Walk(run, rank), op, dp_rank)))


def waited_for(run: Run, op: int, dp_rank: int) -> tuple[int, float] | None:
    """The operation whose end one waited for before it could begin, and when that was.

    None for one that waits for nothing. In the recorded run also for what its worker computed.
    """
    walk = _Walk(run, np.zeros((0, 0), np.int64))
    row = walk.last_before(op, dp_rank, {(op, dp_rank)})
    return None if row is None else (walk.op_of(row), walk.end_s(row, dp_rank))


def _walk(walk: "_Walk", row: int, dp_rank: int) -> list[Link]:
    """The links, last one first."""
    links: list[Link] = []
    seen: set[tuple[int, int]] = set()
    while True:
        seen.add((row, dp_rank))
        op, until_s = walk.op_of(row), walk.end_s(row, dp_rank)
        arrival, arrival_dp = walk.last_arrival(op, dp_rank)
        met_s = float(walk.run.start_s[arrival, arrival_dp])
        before = walk.last_before(arrival, arrival_dp, seen)
        gap_s = met_s - (0.0 if before is None else walk.end_s(before, arrival_dp))
        if (arrival, arrival_dp) == (op, dp_rank):
            links.append(walk.link(op, dp_rank, until_s - met_s, gap_s))
        else:
            links.append(walk.link(op, dp_rank, until_s - met_s, 0.0))
            links.append(walk.link(arrival, arrival_dp, 0.0, gap_s))
        if before is None:
            return links
        row, dp_rank = before, arrival_dp


class _Walk:
    """One run, asked for what decided when an operation could begin.

    A row is an operation, or a moment inside one.
    """

    def __init__(self, run: Run, rank: Ints) -> None:
        self.run = run
        self._rank = rank
        self._unit_of = _unit_of(run.graph)

    def op_of(self, row: int) -> int:
        """The operation that a row is, or is a moment of."""
        graph = self.run.graph
        return row if row < graph.num_ops else int(graph.milestone_of[row - graph.num_ops])

    def end_s(self, row: int, dp_rank: int) -> float:
        """When the operation has ended, or the share of it that the moment stands for."""
        graph, op = self.run.graph, self.op_of(row)
        end_s = float(self.run.end_s[op, dp_rank])
        if row == op:
            return end_s
        start_s = float(self.run.start_s[op, dp_rank])
        return start_s + float(graph.milestone_share[row - graph.num_ops]) * (end_s - start_s)

    def last_arrival(self, op: int, dp_rank: int) -> tuple[int, int]:
        """Of the operations that one meets, itself included, the one that starts last."""
        graph, unit = self.run.graph, self._unit_of[op]
        ops = graph.unit_ops[graph.unit_ptr[unit] : graph.unit_ptr[unit + 1]]
        lanes = self._lanes(int(graph.meets[unit]), dp_rank)
        starts_s = self.run.start_s[ops, lanes]
        if self.run.start_s[op, dp_rank] == starts_s.max():
            return op, dp_rank
        member, lane = np.unravel_index(starts_s.argmax(), starts_s.shape)
        return int(ops[member]), lanes.start + int(lane)

    def last_before(self, op: int, dp_rank: int, seen: set[tuple[int, int]]) -> int | None:
        """Of the rows that an operation waits for, the one that ends last.

        None of those `seen`: clocks that disagree could lead a recorded chain in a circle.
        """
        graph = self.run.graph
        rows = graph.preds[graph.pred_ptr[op] : graph.pred_ptr[op + 1]].tolist()
        if self.run.kind == "recorded":
            rows += self._computed_before(op, dp_rank)
        unseen = (row for row in rows if (row, dp_rank) not in seen)
        return max(unseen, key=lambda row: self.end_s(row, dp_rank), default=None)

    def _computed_before(self, op: int, dp_rank: int) -> list[int]:
        """The computation of the same worker that had ended last when an operation started."""
        ops = np.array(self.run.template.computes(int(self.run.template.stage[op])), np.int64)
        start_s, ended_s = self.run.start_s[ops, dp_rank], self.run.end_s[ops, dp_rank]
        now_s = self.run.start_s[op, dp_rank]
        ended = (start_s < now_s) & (ended_s <= now_s + AT_ONCE_S)
        return [int(ops[ended][ended_s[ended].argmax()])] if ended.any() else []

    def link(self, op: int, dp_rank: int, own_s: float, gap_s: float) -> Link:
        """The operation as a link of the chain."""
        template = self.run.template
        spec = template.op_types.by_code[int(template.optype[op])]
        stage, known_by = int(template.stage[op]), labels(template, op)
        return Link(
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


def _unit_of(graph: StepGraph) -> Ints:
    """[rows], the unit that each row belongs to."""
    unit_of = np.empty(graph.num_rows, np.int64)
    unit_of[graph.unit_ops] = np.repeat(np.arange(graph.meets.size), np.diff(graph.unit_ptr))
    return unit_of
