"""Where does each recorded row belong in the grid?"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.engine.compiled import kernel
from app.engine.parallel import in_parallel
from app.trace.window import Floats, Ints, Trace

GOOD, STRAY, OTHER, TWICE, MISSING, NOT_FINITE = range(6)

# Rows of so many lanes are placed side by side, so that a cache line of the grid is filled at
# once although a window's rows come worker by worker.
_SIDE_BY_SIDE = 8


@dataclass(frozen=True, slots=True)
class Columns:
    """What is read: a trace's columns [rows], and what they are looked up in.

    Shapes: `steps` [steps], `simulated` and `has_chunk` [codes], `table` [stages, codes, seq ids]
    the operation or -1, `mc_of_op` [ops].
    """

    trace: Trace
    steps: Ints
    simulated: NDArray[np.bool_]
    has_chunk: NDArray[np.bool_]
    table: NDArray[np.int32]
    mc_of_op: Ints


def rows_of(
    step: Ints, dp_rank: Any, optype: Any, simulated: NDArray[np.bool_], of_step: int, of_dp: int
) -> Ints:
    """Numbers of the simulated rows of one replica's step."""
    found: Ints = _rows_of(step, dp_rank, optype, simulated, of_step, of_dp)
    return found


def place(columns: Columns, start_s: Floats, duration_s: Floats, rank: Ints) -> tuple[int, int]:
    """Fill the grid; (problem, row where it is).

    `start_s` is NaN at first. Only where the problem is `MISSING` does the row mean nothing.
    """
    first = _runs(columns.trace.step, columns.trace.dp_rank)
    like, lanes = _like_the_first(columns, first, rank.shape[0])
    op_of = np.full(first[1], -1, np.int64)
    into = (start_s, duration_s, rank)
    placed = 0
    for since, until in _ranges(~like):
        problem, row, count = _place_rows(columns, first[since], first[until], op_of, into)
        if problem != GOOD:
            return problem, row
        placed += count
    row = _place_alike(columns.trace, first[:-1][like], lanes[like], op_of, into)
    if row >= 0:
        return NOT_FINITE, row
    placed += int(like.sum() * (op_of >= 0).sum())
    return (GOOD if placed == start_s.size else MISSING), 0


def _ranges(chosen: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """First and end of each stretch of chosen ones."""
    edges = np.flatnonzero(np.diff(chosen, prepend=False, append=False))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))


def _like_the_first(columns: Columns, first: Ints, num_dp: int) -> tuple[NDArray[np.bool_], Ints]:
    """Runs of whole lanes that record what the first run does, and the lane of each run."""
    trace, rows = columns.trace, first[:-1]
    dp_rank, step = trace.dp_rank[rows].astype(np.int64), trace.step[rows]
    position = np.minimum(np.searchsorted(columns.steps, step), columns.steps.size - 1)
    lanes = dp_rank * columns.steps.size + position
    known = (dp_rank >= 0) & (dp_rank < num_dp) & (columns.steps[position] == step)
    _, inverse, counts = np.unique(lanes, return_inverse=True, return_counts=True)
    like = known & (counts[inverse] == 1)
    # The first one itself is looked up row by row; all of the others are as good as it is.
    like[0] = False
    in_parallel(
        trace.num_ops,
        rows.size,
        lambda low, high: _keep_alike(
            first, trace.stage, trace.optype, trace.seq_id, trace.mc, like, low, high
        ),
    )
    return like, lanes


def _place_alike(
    trace: Trace, rows: Ints, lanes: Ints, op_of: Ints, into: tuple[Floats, Floats, Ints]
) -> int:
    """Place runs that are like the first; -1, or a row whose times are not finite."""
    start_s, duration_s, rank = into
    num_steps = start_s.shape[1] // rank.shape[0]
    stage = trace.stage[: op_of.size]
    for p in range(rank.shape[1]):
        if (of_stage := np.flatnonzero((stage == p) & (op_of >= 0))).size:
            rank[lanes // num_steps, p] = trace.rank[rows + of_stage[-1]]
    bad = in_parallel(
        trace.num_ops,
        rows.size,
        lambda low, high: _side_by_side(
            rows[low:high], lanes[low:high], op_of, trace.start_s, trace.duration_s,
            start_s, duration_s,
        ),
    )  # fmt: skip
    return int(max(bad))


def _place_rows(
    columns: Columns, first: int, end: int, op_of: Ints, into: tuple[Floats, Floats, Ints]
) -> tuple[int, int, int]:
    """Place rows one by one: (problem, row where it is, number of rows placed)."""
    trace = columns.trace
    problem, row, placed = _one_by_one(
        trace.step, trace.dp_rank, trace.stage, trace.optype, trace.seq_id, trace.mc, trace.rank,
        trace.start_s, trace.duration_s, columns.steps, columns.simulated, columns.has_chunk,
        columns.table, columns.mc_of_op, *into, op_of, first, end,
    )  # fmt: skip
    return int(problem), int(row), int(placed)


@kernel
def _rows_of(step, dp_rank, optype, simulated, of_step, of_dp):  # type: ignore[no-untyped-def]
    found = 0
    for row in range(step.size):
        found += (step[row] == of_step) & (dp_rank[row] == of_dp)
    rows = np.empty(found, np.int64)
    found = 0
    for row in range(step.size):
        # Steps come one after the other, so that this is guessed right nearly always.
        if step[row] == of_step and dp_rank[row] == of_dp and simulated[optype[row]]:
            rows[found] = row
            found += 1
    return rows[:found]


@kernel
def _runs(step, dp_rank):  # type: ignore[no-untyped-def]
    """First row of each run of rows of one lane, and behind them the number of rows.

    More runs than a row in four is not worth following: the rows are then one run.
    """
    most = step.size // 4 + 1
    first = np.empty(most + 1, np.int64)
    found = 0
    for row in range(step.size):
        if row == 0 or dp_rank[row] != dp_rank[row - 1] or step[row] != step[row - 1]:
            if found == most:
                found = 1
                break
            first[found] = row
            found += 1
    first[found] = step.size
    return first[: found + 1]


@kernel
def _keep_alike(first, stage, optype, seq_id, mc, like, low, high):  # type: ignore[no-untyped-def]
    """Leave in `like` those runs that record the same operations in the same order."""
    num_rows = first[1] - first[0]
    for run in range(low, high):
        since = first[run]
        if not like[run] or first[run + 1] - since != num_rows:
            like[run] = False
            continue
        differences = 0
        for row in range(num_rows):
            differences |= stage[since + row] ^ stage[row]
            differences |= optype[since + row] ^ optype[row]
            differences |= seq_id[since + row] ^ seq_id[row]
            differences |= mc[since + row] ^ mc[row]
        like[run] = differences == 0


@kernel
def _one_by_one(  # type: ignore[no-untyped-def]
    step, dp_rank, stage, optype, seq_id, mc, rank_of_row, start_of_row_s, duration_of_row_s,
    steps, simulated, has_chunk, table, mc_of_op, start_s, duration_s, rank, op_of, first, end,
):  # fmt: skip
    num_steps, num_dp = steps.size, rank.shape[0]
    num_stages, num_codes, num_seq_ids = table.shape
    placed, position, last_step = 0, 0, steps[0] - 1
    for row in range(first, end):
        d, code, seq, p = dp_rank[row], optype[row], seq_id[row], stage[row]
        if not simulated[code]:
            continue
        if d < 0 or d >= num_dp or p < 0 or p >= num_stages:
            return OTHER, row, 0
        if step[row] != last_step:
            last_step = step[row]
            position = np.searchsorted(steps, last_step)
            if position == num_steps or steps[position] != last_step:
                return STRAY, row, 0
        if code >= num_codes or seq < 0 or seq >= num_seq_ids:
            return OTHER, row, 0
        op = table[p, code, seq]
        if op < 0 or (has_chunk[code] and mc[row] != mc_of_op[op]):
            return OTHER, row, 0
        if not (np.isfinite(start_of_row_s[row]) and np.isfinite(duration_of_row_s[row])):
            return NOT_FINITE, row, 0
        lane = d * num_steps + position
        if not np.isnan(start_s[op, lane]):
            return TWICE, row, 0
        start_s[op, lane], duration_s[op, lane] = start_of_row_s[row], duration_of_row_s[row]
        rank[d, p] = rank_of_row[row]
        if row < op_of.size:
            op_of[row] = op
        placed += 1
    return GOOD, 0, placed


@kernel
def _side_by_side(  # type: ignore[no-untyped-def]
    rows, lanes, op_of, start_of_row_s, duration_of_row_s, start_s, duration_s
):
    for base in range(0, rows.size, _SIDE_BY_SIDE):
        top = min(base + _SIDE_BY_SIDE, rows.size)
        for offset in range(op_of.size):
            op = op_of[offset]
            if op < 0:
                continue
            for each in range(base, top):
                row = rows[each] + offset
                began_s, took_s = start_of_row_s[row], duration_of_row_s[row]
                if not (np.isfinite(began_s) and np.isfinite(took_s)):
                    return row
                start_s[op, lanes[each]] = began_s
                duration_s[op, lanes[each]] = took_s
    return -1
