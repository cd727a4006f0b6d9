"""Recorded and expected times of transfers between stages and of collectives among dp ranks.

A link joins the workers of two stages of one replica, in both directions. A transfer is compared
with those of its type over all links of a kind (between hosts, or within one), a stage's collective
with the same one on the other stages.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.diagnosis.evidence.features import Features, ops_of
from app.diagnosis.evidence.link_topology import is_no_placement
from app.diagnosis.evidence.network_probe import slowdown_of_common_end
from app.diagnosis.evidence.outliers import MAX_MEDIAN_VALUES
from app.diagnosis.statistics.robust import quantile_of, quantiles
from app.engine.kernels import in_parallel, kernel
from app.engine.medians import kth_smallest, medians_of_known
from app.trace.job import Parallelism
from app.trace.ops import Axis, OpKind
from app.trace.window import Floats, Ints

StagePair = tuple[int, int]  # two stages, the lower one first

# A transfer is slow if it takes so many times the expected time.
SLOW_RATIO = 1.25
# Beyond healthy noise, which reaches 3 times the median.
FAR_RATIO = 3.5
# Links between hosts are of one kind: where the faster ones are a group of their own, apart from
# the rest by this ratio, most links are slow and the faster ones show the expected time.
MIN_GAP_RATIO = 1.5
# Links within a host may cross its sockets or not.
MIN_GAP_WITHIN = 2.5
# Rows by which the typical transfer of a step is judged.
MAX_SAMPLED = 32
# Kinds of links: between hosts, within one, unknown.
BETWEEN_HOSTS, WITHIN_HOST, UNKNOWN_PLACE, NUM_PLACES = 0, 1, 2, 3
# Kinds of dp groups: within a host, between hosts (`spans_hosts`).
GROUP_WITHIN, GROUP_BETWEEN = 0, 1
# What has nothing of its kind to be compared with is as slow as a link if their ratios are so near.
MAX_AS_SLOW = 1.5
# What has nothing to be compared with is compared with its own faster steps, and shifts if its
# slower ones are far slower.
FAST_STEP_QUANTILE, SLOW_STEP_QUANTILE = 0.25, 0.85
# So few links are compared with their own faster transfers.
MAX_FEW_LINKS = 3


@dataclass(frozen=True, slots=True)
class Links:
    """Transfers of a group of steps, by link.

    Shapes: `pairs` [links of a replica]; [transfers] for `low` and `high`, the template's rows at
    the lower and the higher stage, and `link`; `usual_s` [transfers, dp], the expected time. Of
    each link and step, [links, dp, steps]: `num` transfers and `num_slow`, those slow at either end
    (both with a last axis of 2: to the lower stage, to the higher), `num_far`, those beyond healthy
    noise, and `excess`, the sum of ratio - 1 of the slow ones. `ends_slow` [links, dp, 2] counts
    slow ends at the lower and the higher stage. `is_fast` [links, dp]: False where the faster links
    are a minority (`MIN_GAP_RATIO`) and this one is not among them. `has_shift` [links, dp]: in
    part of the steps the typical transfer of its kind takes far longer, so the expected time is
    that of the faster steps. `place` [links, dp]: the kind of each link. `apart`: how many times as
    long as on the fastest link the typical transfer takes on the slowest one, of a type and kind.
    `is_alike`: no placement of unknown hosts explains which links are slow, or collectives show
    that all are (network_probe.py). `is_apart` [links, dp]: slow links of unknown hosts that
    placement may explain.
    """

    pairs: tuple[StagePair, ...]
    low: Ints
    high: Ints
    link: Ints
    usual_s: Floats
    num: Ints
    num_slow: Ints
    num_far: Ints
    excess: Floats
    ends_slow: Ints
    is_fast: NDArray[np.bool_]
    has_shift: NDArray[np.bool_]
    place: Ints
    apart: float
    is_alike: bool
    is_apart: NDArray[np.bool_]


def same_host(hosts: Mapping[tuple[int, int], str], sizes: Parallelism) -> Ints:
    """[dp, pp, pp], whether two stages of a replica are on one host: 1 or 0, 2 if unknown."""
    numbers = {host: number for number, host in enumerate(sorted(set(hosts.values())))}
    host = np.full((sizes.dp_size, sizes.pp_size), -1)
    for (dp_rank, stage), name in hosts.items():
        host[dp_rank, stage] = numbers[name]
    same: Ints = (host[:, :, None] == host[:, None, :]).astype(np.int64)
    same[(host[:, :, None] < 0) | (host[:, None, :] < 0)] = 2
    return same


def find_links(group: Features, hosts: Mapping[tuple[int, int], str]) -> Links | None:
    """The links of a group of steps; None without transfers between stages.

    Args:
        group: the steps.
        hosts: host of each worker, where it is known.
    """
    replayer = group.replayer
    where = same_host(hosts, replayer.template.parallelism)
    low, high = _ends(group)
    if not low.size:
        return None
    template, own_s, num_steps = replayer.template, replayer.durations.recorded_s, len(group.steps)
    pairs, link = _distinct(template.stage[low], template.stage[high])
    # Under interleaving the highest stage sends forward to the lowest: as much as others do.
    is_upwards = _sends(group)[template.optype[low]]
    kinds, of_kind = _distinct(link, template.optype[np.where(is_upwards, low, high)])
    median_s = np.empty((len(kinds), replayer.dp_size))
    place = where[:, pairs[:, 0], pairs[:, 1]].T
    has_shift = _has_shift(own_s, low, high, place[link], num_steps)[place]
    # Most of so few links, or most of the steps, may be slow.
    is_few = (np.bincount(place.ravel(), minlength=NUM_PLACES) <= MAX_FEW_LINKS)[place]
    share = np.where(is_few | has_shift, FAST_STEP_QUANTILE, 0.5)[kinds[:, 0]]
    order, num_rows = np.argsort(of_kind, kind="stable"), np.bincount(of_kind)
    in_parallel(
        2 * low.size * own_s.shape[1],
        replayer.dp_size,
        lambda first, end: _medians(
            own_s, low[order], high[order], num_rows, num_steps, share, MAX_MEDIAN_VALUES,
            first, end, median_s,
        ),
    )  # fmt: skip
    typical = _typical_transfers(median_s, kinds, len(pairs))
    if (alone := _slow_alone(typical, pairs, place)) is not None:
        link_alone, dp_rank = alone
        place[alone] = WITHIN_HOST
        where = where.copy()
        one, other = pairs[link_alone].tolist()
        where[dp_rank, [one, other], [other, one]] = WITHIN_HOST
    is_unknown = bool((place == UNKNOWN_PLACE).all())
    is_alike = is_unknown and is_no_placement(typical / typical.min(), pairs, replayer.grid.rank)
    if is_alike:
        where = np.full_like(where, BETWEEN_HOSTS)
    kind_s, is_fast_kind = _usual(median_s, kinds, pairs, where)
    # On one host, or on unknown ones, all links are of one kind.
    is_one_kind = is_unknown or len(set(hosts.values())) == 1
    compared = np.where((place == BETWEEN_HOSTS) | is_one_kind, typical, np.nan)
    slowdown = slowdown_of_common_end(replayer, hosts, pairs, compared)
    if slowdown is not None:
        is_slow_kind = np.isfinite(compared)[kinds[:, 0]]
        kind_s, is_fast_kind = kind_s / np.where(is_slow_kind, slowdown, 1.0), ~is_slow_kind
    usual_s = kind_s[of_kind]
    is_fast = np.ones((len(pairs), replayer.dp_size), np.bool_)
    np.logical_and.at(is_fast, kinds[:, 0], is_fast_kind)
    shape = (len(pairs), replayer.dp_size, num_steps)
    num_slow, num_far = np.zeros((*shape, 2), np.int64), np.zeros(shape, np.int64)
    excess, ends_slow = np.zeros(shape), np.zeros((*shape[:2], 2), np.int64)
    upwards = is_upwards.astype(np.int64)
    in_parallel(
        2 * low.size * own_s.shape[1],
        replayer.dp_size,
        lambda first, end: _counts(
            own_s, low, high, link, upwards, usual_s, SLOW_RATIO, FAR_RATIO, num_steps, first, end,
            num_slow, num_far, excess, ends_slow,
        ),
    )  # fmt: skip
    each_way = np.bincount(2 * link + upwards, minlength=2 * len(pairs)).reshape(-1, 1, 1, 2)
    num = np.broadcast_to(each_way, (*shape, 2))
    named = tuple((int(one), int(other)) for one, other in pairs)
    return Links(
        named, low, high, link, usual_s, num, num_slow, num_far, excess, ends_slow, is_fast,
        has_shift, place, _apart(median_s, kinds, place), is_alike or slowdown is not None,
        (typical >= MIN_GAP_WITHIN * typical.min()) & (is_unknown and not is_alike),
    )  # fmt: skip


def _slow_alone(typical: Floats, pairs: Ints, place: Ints) -> tuple[int, int] | None:
    """Position [links, dp] of the only link between hosts, where a slow card explains its time.

    It has no link of its kind to be compared with. Where a link within a host that shares an end
    with it is slow, and it takes as much longer, the card of that end slows both.
    """
    between, within = np.argwhere(place == BETWEEN_HOSTS), place == WITHIN_HOST
    if len(between) != 1 or not within.any():
        return None
    link, dp_rank = between[0].tolist()
    shares_end = np.array([bool(set(pair) & set(pairs[link].tolist())) for pair in pairs.tolist()])
    ratio = typical / np.quantile(typical[within], FAST_STEP_QUANTILE, method="lower")
    beside = ratio[shares_end & within[:, dp_rank], dp_rank]
    slow = beside[beside >= FAR_RATIO]
    is_as_slow = (slow < MAX_AS_SLOW * ratio[link, dp_rank]) & (
        ratio[link, dp_rank] < MAX_AS_SLOW * slow
    )
    return (link, dp_rank) if is_as_slow.any() else None


def _typical_transfers(median_s: Floats, kinds: Ints, num_links: int) -> Floats:
    """[links, dp], the typical transfer of a link over that of its type's fastest, all types."""
    link, optype = kinds.T
    least_s = np.array([median_s[optype == each].min() for each in optype.tolist()])[:, None]
    ratio = np.divide(median_s, least_s, out=np.ones(median_s.shape), where=least_s > 0)
    total = np.zeros((num_links, median_s.shape[1]))
    np.add.at(total, link, ratio)
    return np.asarray(total / np.bincount(link, minlength=num_links)[:, None])


def _apart(median_s: Floats, kinds: Ints, place: Ints) -> float:
    """Largest ratio of medians [kinds of link and type, dp] of links of one type and kind."""
    link, optype = kinds.T
    key = optype[:, None] * NUM_PLACES + place[link]
    groups = [median_s[key == each] for each in np.unique(key)]
    return max(float(each.max() / each.min()) if each.min() > 0 else 1.0 for each in groups)


def _has_shift(own_s: Floats, low: Ints, high: Ints, place: Ints, num_steps: int) -> Any:
    """[places], whether the typical transfer of a step takes far longer in part of the steps.

    `place` [transfers, dp] is the kind of each transfer's link.
    """
    found = np.zeros(NUM_PLACES, np.bool_)
    for kind in np.unique(place).tolist():
        rows = np.flatnonzero((place == kind).any(axis=1))
        rows = rows[:: 1 + rows.size // MAX_SAMPLED]
        took_s = np.maximum(own_s[low[rows]], own_s[high[rows]])
        of_kind_s = took_s.reshape(rows.size, -1, num_steps)[place[rows] == kind]
        typical_s = medians_of_known(of_kind_s.T)
        fast_s, slow_s = (
            quantile_of(typical_s, each) for each in (FAST_STEP_QUANTILE, SLOW_STEP_QUANTILE)
        )
        found[kind] = slow_s > MIN_GAP_RATIO * fast_s > 0
    return found


def _ends(group: Features) -> tuple[Ints, Ints]:
    """Rows of both ends of paired transfers, at the lower and at the higher stage."""
    graph, template = group.replayer.graph, group.replayer.template
    is_p2p = template.op_types.flags(lambda spec: spec.kind is OpKind.P2P)
    two = np.flatnonzero(np.diff(graph.unit_ptr) == 2)
    rows = np.stack([graph.unit_ops[graph.unit_ptr[two] + end] for end in (0, 1)])
    rows = rows[:, (rows < template.num_ops).all(axis=0)]
    rows = rows[:, is_p2p[template.optype[rows]].all(axis=0)]
    rows = rows[:, template.stage[rows[0]] != template.stage[rows[1]]]
    one, other = rows
    is_low = template.stage[one] < template.stage[other]
    return np.where(is_low, one, other), np.where(is_low, other, one)


def _sends(group: Features) -> NDArray[np.bool_]:
    """[codes], whether operations of a type send."""
    return group.replayer.template.op_types.flags(
        lambda spec: bool(spec.pairs_with) or spec.name.endswith("-send")
    )


def _distinct(one: Ints, other: Ints) -> tuple[Ints, Ints]:
    """Distinct pairs of numbers >= 0, [pairs, 2] ascending, and each input's position in them."""
    width = int(other.max()) + 1
    key = one * width + other
    found = np.flatnonzero(np.bincount(key))
    at = np.empty(int(found[-1]) + 1, np.int64)
    at[found] = np.arange(found.size)
    return np.stack(np.divmod(found, width), axis=1), at[key]


def _usual(
    median_s: Floats, kinds: Ints, pairs: Ints, where: Ints
) -> tuple[Floats, NDArray[np.bool_]]:
    """[kinds of link and type, dp], the lower median over links of the same type and kind.

    Also whether each is among the faster links, or these are the majority. Where hosts are unknown,
    links may be of different kinds, so a minority of faster ones shows nothing.
    """
    link, optype = kinds.T
    place = where[:, pairs[link, 0], pairs[link, 1]].T
    key = (optype[:, None] * (int(where.max()) + 1) + place).ravel()
    values = median_s.ravel()
    usual_s, is_fast = lower_medians(values, key), np.ones(values.size, np.bool_)
    known = place.ravel() != UNKNOWN_PLACE
    for each in np.unique(key[known]).tolist():
        mine = np.flatnonzero(key == each)
        of_kind_s = np.sort(values[mine])
        middle = (mine.size - 1) // 2
        gap = MIN_GAP_RATIO if place.ravel()[mine[0]] == BETWEEN_HOSTS else MIN_GAP_WITHIN
        apart = of_kind_s[1 : middle + 1] > gap * of_kind_s[:middle]
        if apart.any():
            num_fast = int(np.flatnonzero(apart)[-1]) + 1
            usual_s[mine] = of_kind_s[(num_fast - 1) // 2]
            is_fast[mine] = values[mine] <= of_kind_s[num_fast - 1]
    return usual_s.reshape(median_s.shape), is_fast.reshape(median_s.shape)


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
    own_s, low, high, num_rows, num_steps, share, max_values, first, end, median_s
):
    values = np.empty((end - first, max_values + 1))
    begin = 0
    for kind in range(num_rows.size):
        num_values = num_rows[kind] * num_steps
        stride = (num_values + max_values - 1) // max_values
        count = 0
        for at in range(0, num_values, stride):
            row, step = begin + at // num_steps, at % num_steps
            for dp_rank in range(first, end):
                lane = dp_rank * num_steps + step
                took_s = max(own_s[low[row], lane], own_s[high[row], lane])
                values[dp_rank - first, count] = took_s
            count += 1
        begin += num_rows[kind]
        for dp_rank in range(first, end):
            at = int(share[kind, dp_rank] * (count - 1))
            median_s[kind, dp_rank] = kth_smallest(values[dp_rank - first], count, at)


@kernel
def _counts(  # type: ignore[no-untyped-def]
    own_s, low, high, link, upwards, usual_s, slow, far, num_steps, first, end,
    num_slow, num_far, excess, ends_slow,
):  # fmt: skip
    # Row by row, as they lie in memory.
    for at in range(low.size):
        of = link[at]
        for dp_rank in range(first, end):
            least_s = usual_s[at, dp_rank]
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


@dataclass(frozen=True, slots=True)
class DpGroups:
    """Collectives among dp ranks of a group of steps.

    Shapes: [collectives] for `rows` of the template, `stage` and `usual_s`, the time on the typical
    stage; `took_s` [collectives, steps], the median over members; `pace` [pp, steps], the time of
    all collectives of a stage over the usual one.
    """

    rows: Ints
    stage: Ints
    took_s: Floats
    usual_s: Floats
    pace: Floats


def spans_hosts(hosts: Mapping[tuple[int, int], str], sizes: Parallelism) -> Ints:
    """[pp], whether the dp ranks of a stage are on several hosts: 1 or 0, 2 if unknown."""
    found = np.full(sizes.pp_size, 2)
    for stage in range(sizes.pp_size):
        of_stage = [hosts.get((dp_rank, stage)) for dp_rank in range(sizes.dp_size)]
        if None not in of_stage:
            found[stage] = len(set(of_stage)) > 1
    return found


def find_dp_groups(group: Features, spans: Ints, links: Links | None) -> DpGroups | None:
    """The dp groups of a group of steps; None without collectives among dp ranks.

    Args:
        group: the steps.
        spans: [pp] of `spans_hosts`; only groups of a kind are compared.
        links: the links of these steps.
    """
    template, own_s = group.replayer.template, group.replayer.durations.recorded_s
    by_code = template.op_types.by_code
    codes = [
        code
        for code in template.present
        if by_code[code].kind is OpKind.COLLECTIVE and by_code[code].axis is Axis.DP
    ]
    rows = ops_of(template, codes)
    if not rows.size or group.replayer.dp_size == 1:
        return None
    num_steps = len(group.steps)
    took_s = medians_of_known(own_s[rows].reshape(rows.size, -1, num_steps).transpose(0, 2, 1))
    stage = template.stage[rows]
    of_type = template.optype[rows] * template.num_ops + template.seq_id[rows]
    usual_s = _usual_collectives(took_s, of_type * NUM_PLACES + spans[stage])
    typical_s = medians_of_known(took_s)
    is_card = links is not None and _is_all_slow(spans, stage, typical_s, links)
    most_s = _most_of_kind_s(usual_s, of_type, spans[stage], is_card=is_card)
    usual_s = np.minimum(usual_s, most_s)
    shape = (group.replayer.pp_size, num_steps)
    total_s, least_s = np.zeros(shape), np.zeros(shape)
    is_bounded = np.zeros(shape[0], np.bool_)
    is_bounded[stage[np.isfinite(most_s)]] = True
    np.add.at(total_s, stage, took_s)
    np.add.at(least_s, stage, usual_s[:, None])
    # Of many collectives some are long in every step, so a fast step has some as well.
    is_alone = (np.bincount(spans, minlength=NUM_PLACES) == 1)[spans]
    faster_s = quantiles(total_s, FAST_STEP_QUANTILE)[:, None]
    is_own = (is_alone & ~is_bounded)[:, None]
    least_s = np.where(is_own, np.maximum(least_s, faster_s), least_s)
    pace = np.divide(total_s, least_s, out=np.ones(shape), where=least_s > 0)
    return DpGroups(rows, stage, took_s, usual_s, pace)


def _is_all_slow(spans: Ints, stage: Ints, typical_s: Floats, links: Links) -> bool:
    """Whether all dp groups between hosts are slow by a card, unlike those within hosts.

    Slow links of their stages explain the time of each: one card slows both (`_slow_alone`).
    """
    between, within = np.flatnonzero(spans == GROUP_BETWEEN), np.flatnonzero(spans == GROUP_WITHIN)
    total_s = np.bincount(stage, typical_s, minlength=spans.size)
    if not between.size or not within.size or not total_s[within].min() > 0:
        return False
    num_slow = links.num_slow.sum(axis=(2, 3))
    slow = 1 + links.excess.sum(axis=2) / np.maximum(num_slow, 1)
    for each in between.tolist():
        ratio = total_s[each] / np.median(total_s[within])
        mine = slow[[each in pair for pair in links.pairs]]
        is_near = (ratio < MAX_AS_SLOW * mine) & (mine < MAX_AS_SLOW * ratio)
        if ratio < MIN_GAP_WITHIN or not is_near.any():
            return False
    return True


def _most_of_kind_s(usual_s: Floats, of_type: Ints, spans: Ints, *, is_card: bool) -> Floats:
    """[collectives], the most that each may take: within a host as long as between hosts.

    Where a card slows all of those between hosts (`is_card`), these as long as within hosts.
    Infinite for groups on unknown hosts, and where there is nothing to compare with.
    """
    most_s = np.full(usual_s.size, np.inf)
    mine, others = (GROUP_BETWEEN, GROUP_WITHIN) if is_card else (GROUP_WITHIN, GROUP_BETWEEN)
    for each in np.flatnonzero(spans == mine).tolist():
        others_s = usual_s[(of_type == of_type[each]) & (spans == others)]
        if others_s.size:
            most_s[each] = others_s[0]
    return most_s


def _usual_collectives(took_s: Floats, key: Ints) -> Floats:
    """[collectives], the lower median over stages with the same key of the median over steps."""
    in_order, last = np.sort(took_s, axis=1), took_s.shape[1] - 1
    _, number, num_alike = np.unique(key, return_inverse=True, return_counts=True)
    typical_s, low_s = in_order[:, last // 2], in_order[:, last // 4]
    return lower_medians(np.where(num_alike[number] > 1, typical_s, low_s), number)
