"""Balances micro-batches over dp ranks: longest first, each to the rank with the least work.

The cost of a micro-batch comes from a fit over the job's own micro-batches (`fit_costs`), or is
its measured relative duration where lengths are not known. Every dp rank keeps the same number of
micro-batches: data-parallel frameworks need that, as gradients are averaged over equal counts.
"""

import heapq
from dataclasses import dataclass

import numpy as np

from app.errors import InvalidRequest
from app.trace.window import Floats, Ints

# Tokens that vary less than this share of their mean cannot be separated from the fixed part.
_MIN_TOKEN_VARIATION = 0.02


@dataclass(frozen=True, slots=True)
class CostModel:
    """Seconds of a micro-batch: fixed + per_token x tokens + per_square x sum of squared lengths.

    `per_token_s` is 0 where it could not be separated from the fixed part. `r_squared` is the share
    of the durations' variance that the fit explains.
    """

    fixed_s: float
    per_token_s: float
    per_square_s: float
    r_squared: float

    def seconds(self, tokens: Ints | Floats, seq_len_sq: Ints | Floats) -> Floats:
        """Seconds of each micro-batch, in the shape of the arguments."""
        return np.asarray(
            self.fixed_s
            + self.per_token_s * np.asarray(tokens, np.float64)
            + self.per_square_s * np.asarray(seq_len_sq, np.float64)
        )


def fit_costs(tokens: Ints | None, seq_len_sq: Ints, seconds: Floats) -> CostModel | None:
    """Least squares over micro-batches, [micro-batches] each, with no negative coefficient.

    `tokens` is None where they are not known. None where squared lengths do not vary, or do not
    make a micro-batch longer.
    """
    squares = np.asarray(seq_len_sq, np.float64)
    columns = {"per_square_s": squares}
    if tokens is not None and _varies(np.asarray(tokens, np.float64)):
        columns["per_token_s"] = np.asarray(tokens, np.float64)
    columns["fixed_s"] = np.ones(squares.size)
    if squares.size <= len(columns) or not _varies(squares):
        return None
    model = _non_negative_fit(columns, np.asarray(seconds, np.float64))
    return model if model.per_square_s > 0 else None


def _varies(values: Floats) -> bool:
    return bool(values.std() > _MIN_TOKEN_VARIATION * values.mean())


def _non_negative_fit(columns: dict[str, Floats], seconds: Floats) -> CostModel:
    """Fit; a column whose coefficient would be negative is left out and the rest fitted again."""
    remaining = dict(columns)
    while True:
        design = np.column_stack(list(remaining.values()))
        # Columns differ by ten orders of magnitude: without a scale, lstsq drops small ones.
        scale = np.abs(design).max(axis=0)
        coefficients = np.linalg.lstsq(design / scale, seconds, rcond=None)[0] / scale
        if (coefficients >= 0).all() or len(remaining) == 1:
            break
        remaining.pop(list(remaining)[int((coefficients * scale).argmin())])
    by_name = dict.fromkeys(columns, 0.0) | dict(zip(remaining, coefficients.tolist(), strict=True))
    spread = ((seconds - seconds.mean()) ** 2).sum()
    rest = ((seconds - design @ coefficients) ** 2).sum()
    return CostModel(
        fixed_s=by_name["fixed_s"],
        per_token_s=by_name.get("per_token_s", 0.0),
        per_square_s=by_name["per_square_s"],
        r_squared=float(1 - rest / spread) if spread > 0 else 0.0,
    )


def longest_first(costs: Floats, num_ranks: int, *, equal_counts: bool = True) -> Ints:
    """Dp rank of each item by LPT: the longest left goes to the rank with the least work.

    `costs` are [items], or [items, steps] for many steps at once; the answer has that shape. With
    `equal_counts` every rank gets the same number of items. Ties go to the earlier item and the
    lower rank, so that every rank of a job computes the same assignment.

    Raises:
        InvalidRequest: the items cannot be split into equal counts, or there is no rank.
    """
    by_step = np.asarray(costs, np.float64).reshape(len(costs), -1)
    num_items, num_steps = by_step.shape
    if num_ranks < 1:
        raise InvalidRequest(f"{num_ranks} dp ranks: there is at least 1")
    if equal_counts and num_items % num_ranks:
        raise InvalidRequest(
            f"{num_items} micro-batches are not the same number on each of {num_ranks} dp ranks"
        )
    most = num_items // num_ranks if equal_counts else num_items
    rank_of = np.empty(by_step.shape, np.int64)
    for step in range(num_steps):
        rank_of[:, step] = _longest_first(by_step[:, step], num_ranks, most)
    return rank_of.reshape(np.shape(costs))


def _longest_first(costs: Floats, num_ranks: int, most: int) -> Ints:
    """[items], the rank of each; a full rank leaves the heap."""
    least = [(0.0, rank) for rank in range(num_ranks)]
    order = np.argsort(-costs, kind="stable")
    ranks, count = [], [0] * num_ranks
    for cost in costs[order].tolist():
        work, rank = least[0]
        ranks.append(rank)
        count[rank] += 1
        if count[rank] < most:
            heapq.heapreplace(least, (work + cost, rank))
        else:
            heapq.heappop(least)
    rank_of = np.empty(costs.size, np.int64)
    rank_of[order] = ranks
    return rank_of


def random_order(rank_of: Ints, num_ranks: int, rng: np.random.Generator) -> Ints:
    """[ranks, items of a rank, steps], the items of each dp rank in the order of computing them.

    `rank_of` [items, steps] has equal counts. The order is random, as that of a shuffling sampler:
    computed longest first, steps of a pipeline would differ by some points.
    """
    num_items, num_steps = rank_of.shape
    order = np.argsort(rank_of + rng.random(rank_of.shape), axis=0)
    return order.reshape(num_ranks, num_items // num_ranks, num_steps)


# `longest_first` as Python to paste into a training's loader, without imports; a test runs both.
ASSIGN = '''\
def assign(lengths, dp_size):
    """Micro-batches of each dp rank; lengths[i] are the sequence lengths in micro-batch i.

    Call it on every rank with the lengths of the whole global batch, and take item `dp_rank`.
    """
    assert len(lengths) % dp_size == 0, "every dp rank has the same number of micro-batches"
    cost = [{cost} for sequences in lengths]
    ranks, work = [[] for _ in range(dp_size)], [0.0] * dp_size
    for i in sorted(range(len(cost)), key=lambda i: -cost[i]):
        room = [r for r in range(dp_size) if len(ranks[r]) < len(cost) // dp_size]
        least = min(room, key=lambda r: work[r])
        ranks[least].append(i)
        work[least] += cost[i]
    for of_rank in ranks:
        of_rank.sort()  # the order of the data set, which is random if it was shuffled
    return ranks
'''
