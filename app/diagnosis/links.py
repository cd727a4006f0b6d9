"""How long do transfers between stages take, link by link, and what should they take?

A link joins the workers of two stages of one replica; both directions go over it. Transfers are
compared with those of their type over all links of a kind: between hosts, or within one.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.diagnosis.features import Features
from app.diagnosis.outliers import MOST_VALUES
from app.diagnosis.selecting import smallest
from app.engine.compiled import kernel
from app.engine.parallel import in_parallel
from app.trace.job import Parallelism
from app.trace.ops import Kind
from app.trace.window import Floats, Ints

Pair = tuple[int, int]  # two stages, the lower one first

# A transfer that takes so many times what it should is slow.
SLOW = 1.25
# Tails of healthy noise are cut off at 3 times the median.
FAR = 3.5
# So few links are compared with their own faster transfers.
FEW = 3


@dataclass(frozen=True, slots=True)
class Links:
    """Transfers of a group of steps, by link.

    Shapes: `pairs` [links of a replica]; `low` and `high` [transfers], rows of the template at
    the lower and at the higher stage, and `link` beside them; `usual_s` [transfers, dp], what each
    should take. Of each link and step, [links, dp, steps]: `num` transfers, of which `num_slow`
    are slow at either end (both with a last axis of 2, those to the lower stage first) and
    `num_far` far beyond any tail, and `excess`, how many times too long the slow ones took in all.
    `ends_slow` [links, dp, 2] counts slow ends, those at the lower stage first.
    """

    pairs: tuple[Pair, ...]
    low: Ints
    high: Ints
    link: Ints
    usual_s: Floats
    num: Ints
    num_slow: Ints
    num_far: Ints
    excess: Floats
    ends_slow: Ints


def same_host(hosts: Mapping[tuple[int, int], str], sizes: Parallelism) -> Ints:
    """[dp, pp, pp], whether two stages of a replica run on one host: 1 or 0, 2 if not known."""
    numbers = {host: number for number, host in enumerate(sorted(set(hosts.values())))}
    host = np.full((sizes.dp_size, sizes.pp_size), -1)
    for (dp_rank, stage), name in hosts.items():
        host[dp_rank, stage] = numbers[name]
    same: Ints = (host[:, :, None] == host[:, None, :]).astype(np.int64)
    same[(host[:, :, None] < 0) | (host[:, None, :] < 0)] = 2
    return same


def links(group: Features, where: Ints) -> Links | None:
    """The links of a group of steps; None where no stages exchange anything.

    Args:
        group: the steps.
        where: [dp, pp, pp], as `same_host` says.
    """
    replayer = group.replayer
    low, high = _ends(group)
    if not low.size:
        return None
    template, own_s, num_steps = replayer.template, replayer.durations.recorded_s, len(group.steps)
    pairs, link = _distinct(template.stage[low], template.stage[high])
    kinds, of_kind = _distinct(link, template.optype[low])
    median_s = np.empty((len(kinds), replayer.dp_size))
    # Of so few links most may be slow, for a part of the time.
    share = 0.5 if len(pairs) * replayer.dp_size > FEW else 0.25
    in_parallel(
        2 * low.size * own_s.shape[1],
        replayer.dp_size,
        lambda first, end: _medians(
            own_s, low, high, of_kind, len(kinds), num_steps, share, MOST_VALUES, first, end,
            median_s,
        ),
    )  # fmt: skip
    usual_s = _usual(median_s, kinds, pairs, where)[of_kind]
    shape = (len(pairs), replayer.dp_size, num_steps)
    num_slow, num_far = np.zeros((*shape, 2), np.int64), np.zeros(shape, np.int64)
    excess, ends_slow = np.zeros(shape), np.zeros((*shape[:2], 2), np.int64)
    upwards = _sends(group)[template.optype[low]].astype(np.int64)
    in_parallel(
        2 * low.size * own_s.shape[1],
        replayer.dp_size,
        lambda first, end: _counts(
            own_s, low, high, link, upwards, usual_s, SLOW, FAR, num_steps, first, end,
            num_slow, num_far, excess, ends_slow,
        ),
    )  # fmt: skip
    each_way = np.bincount(2 * link + upwards, minlength=2 * len(pairs)).reshape(-1, 1, 1, 2)
    num = np.broadcast_to(each_way, (*shape, 2))
    named = tuple((int(one), int(other)) for one, other in pairs)
    return Links(named, low, high, link, usual_s, num, num_slow, num_far, excess, ends_slow)


def _ends(group: Features) -> tuple[Ints, Ints]:
    """Rows of transfers that meet, at the lower and at the higher stage."""
    graph, template = group.replayer.graph, group.replayer.template
    is_p2p = template.op_types.flags(lambda spec: spec.kind is Kind.P2P)
    two = np.flatnonzero(np.diff(graph.unit_ptr) == 2)
    rows = np.stack([graph.unit_ops[graph.unit_ptr[two] + end] for end in (0, 1)])
    rows = rows[:, (rows < template.num_ops).all(axis=0)]
    rows = rows[:, is_p2p[template.optype[rows]].all(axis=0)]
    rows = rows[:, template.stage[rows[0]] != template.stage[rows[1]]]
    one, other = rows
    is_low = template.stage[one] < template.stage[other]
    return np.where(is_low, one, other), np.where(is_low, other, one)


def _sends(group: Features) -> NDArray[np.bool_]:
    """[codes], whether operations of a type send; of a pair, one does."""
    return group.replayer.template.op_types.flags(
        lambda spec: bool(spec.pairs_with) or spec.name.endswith("-send")
    )


def _distinct(one: Ints, other: Ints) -> tuple[Ints, Ints]:
    """Each pair of numbers from 0 on once, [pairs, 2] ascending, and where each is among them."""
    width = int(other.max()) + 1
    found, at = np.unique(one * width + other, return_inverse=True)
    return np.stack(np.divmod(found, width), axis=1), at


def _usual(median_s: Floats, kinds: Ints, pairs: Ints, where: Ints) -> Floats:
    """[kinds of link and type, dp], the lower median over all links of the same type and place."""
    link, optype = kinds.T
    place = where[:, pairs[link, 0], pairs[link, 1]].T
    key = (optype[:, None] * (int(where.max()) + 1) + place).ravel()
    return lower_medians(median_s.ravel(), key).reshape(median_s.shape)


def lower_medians(values: Floats, key: Ints) -> Floats:
    """[values], the lower median over all values with the same key, from 0 on."""
    order = np.lexsort((values, key))
    first = np.flatnonzero(np.diff(key[order], prepend=-1))
    count = np.diff(first, append=key.size)
    found = np.empty(values.size)
    found[order] = np.repeat(values[order[first + (count - 1) // 2]], count)
    return found


@kernel
def _medians(  # type: ignore[no-untyped-def]
    own_s, low, high, of_kind, num_kinds, num_steps, share, most_values, first, end, median_s
):
    num_values = np.zeros(num_kinds, np.int64)
    for kind in of_kind:
        num_values[kind] += num_steps
    stride = (num_values + most_values - 1) // most_values
    values = np.empty((num_kinds, most_values + 1))
    seen, counts = np.empty(num_kinds, np.int64), np.empty(num_kinds, np.int64)
    for dp_rank in range(first, end):
        seen[:] = counts[:] = 0
        for at in range(low.size):
            kind = of_kind[at]
            for lane in range(dp_rank * num_steps, (dp_rank + 1) * num_steps):
                if seen[kind] % stride[kind] == 0:
                    values[kind, counts[kind]] = max(own_s[low[at], lane], own_s[high[at], lane])
                    counts[kind] += 1
                seen[kind] += 1
        for kind in range(num_kinds):
            at = int(share * (counts[kind] - 1))
            median_s[kind, dp_rank] = smallest(values[kind], counts[kind], at)


@kernel
def _counts(  # type: ignore[no-untyped-def]
    own_s, low, high, link, upwards, usual_s, slow, far, num_steps, first, end,
    num_slow, num_far, excess, ends_slow,
):  # fmt: skip
    for dp_rank in range(first, end):
        for at in range(low.size):
            of, least_s = link[at], usual_s[at, dp_rank]
            for step in range(num_steps):
                lane = dp_rank * num_steps + step
                low_s, high_s = own_s[low[at], lane], own_s[high[at], lane]
                took_s = max(low_s, high_s)
                if took_s > slow * least_s:
                    num_slow[of, dp_rank, step, upwards[at]] += 1
                    num_far[of, dp_rank, step] += took_s > far * least_s
                    excess[of, dp_rank, step] += took_s / least_s - 1 if least_s > 0 else 0.0
                    ends_slow[of, dp_rank, 0] += low_s > slow * least_s
                    ends_slow[of, dp_rank, 1] += high_s > slow * least_s
