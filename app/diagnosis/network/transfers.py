"""The table of a window's transfers: between stages by link, among dp ranks by stage.

A link joins the workers of two stages of one replica, in both directions. A transfer is compared
with those of its type over all links of a kind (between hosts, or within one), a stage's collective
with the same one on the other stages. `Links` and `DpGroups` have the rows of one group of steps
with their expected times; `network.py` joins what is slow of all groups.

The global ranks of a job fill its hosts (or its racks) one after the other, all of one size. So the
links between hosts of unknown names follow from the size: those whose two ranks differ in
rank // size. Where the slow links are not those of any size, placement does not explain them
(`is_no_placement`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.diagnosis.evidence.outliers import MAX_MEDIAN_VALUES, sampled_values
from app.diagnosis.features import Features
from app.diagnosis.finding import Hosts
from app.diagnosis.network.probe import collectives_of, slowdown_of_common_end
from app.diagnosis.statistics.robust import lower_quantile, quantile_of, quantiles
from app.engine.kernels import in_parallel, kernel
from app.engine.medians import medians_of_known
from app.trace.ops import Axis, OpKind
from app.trace.window import Floats, Ints

StagePair = tuple[int, int]  # two stages, the lower one first

# Kinds of links and of dp groups: between hosts, within one, unknown.
BETWEEN_HOSTS, WITHIN_HOST, UNKNOWN_PLACE, NUM_PLACES = 0, 1, 2, 3


@dataclass(frozen=True, slots=True)
class TransferLimits:
    """From when on transfers and links are slow. All were chosen on made jobs."""

    # A transfer is slow from so many times the expected time, and far slower from so many: healthy
    # noise reaches 3 times the median.
    slow_ratio: float = 1.25
    far_ratio: float = 3.5
    # Links between hosts are of one kind: where the faster ones are a group of their own, apart
    # from the rest by this ratio, most links are slow and the faster ones show the expected time.
    min_gap_between: float = 1.5
    # The same for links within a host, which may cross its sockets or not.
    min_gap_within: float = 2.5
    # What has nothing of its kind to be compared with is as slow as a link if their ratios differ
    # by less than this factor.
    max_as_slow: float = 1.5
    # What has nothing to be compared with is compared with this quantile of its own steps, and
    # shifts if the second one is far slower.
    fast_steps: float = 0.25
    slow_steps: float = 0.85
    # So few links of a kind are compared with their own faster transfers.
    max_few_links: int = 3


LIMITS = TransferLimits()
# Rows by which the typical transfer of a step is judged.
_MAX_SAMPLED = 32
# GPUs of a host, of a board within one, of a rack with one fast network.
_HOST_SIZES = (1, 2, 4, 8, 16, 32, 64, 72)


def link_places(host: Ints, pairs: Ints) -> Ints:
    """[links, dp], the kind of each link `pairs` [links, 2]; `host` [dp, pp], -1 where unknown."""
    one, other = host[:, pairs[:, 0]].T, host[:, pairs[:, 1]].T
    return np.where(
        (one < 0) | (other < 0), UNKNOWN_PLACE, np.where(one == other, WITHIN_HOST, BETWEEN_HOSTS)
    )


def group_places(host: Ints) -> Ints:
    """[pp], the kind of each stage's dp group; `host` [dp, pp], -1 where unknown."""
    place = np.where((host == host[0]).all(axis=0), WITHIN_HOST, BETWEEN_HOSTS)
    return np.where((host < 0).any(axis=0), UNKNOWN_PLACE, place)


@dataclass(frozen=True)
class LinkCounts:
    """Slow transfers of each link in all steps of a case; `find_links` fills in its group's.

    Shapes: [links, dp, steps] for `num` transfers and `num_slow`, those slow at either end (both
    with a last axis of 2: to the lower stage, to the higher), `num_far`, those beyond healthy
    noise, and `excess`, the sum of ratio - 1 of the slow ones. `ends_slow` [links, dp, 2] counts
    slow ends at the lower and the higher stage. The rest is [links, dp]: `place`, the kind of the
    link, as only links of a kind are compared; `is_fast`: False where the faster links are a
    minority (`min_gap_between`) and this one is not among them; `has_shift`: in part of the steps
    the typical transfer of its kind takes far longer, so the expected time is that of the faster
    steps; `is_apart`: slow links of unknown hosts that placement may explain.
    """

    num: Ints
    num_slow: Ints
    num_far: Ints
    excess: Floats
    ends_slow: Ints
    place: Ints
    is_fast: NDArray[np.bool_]
    has_shift: NDArray[np.bool_]
    is_apart: NDArray[np.bool_]


def no_counts(num_links: int, dp_size: int, num_steps: int) -> LinkCounts:
    """Counts of links without any transfer."""
    shape = num_links, dp_size, num_steps
    return LinkCounts(
        num=np.zeros((*shape, 2), np.int64),
        num_slow=np.zeros((*shape, 2), np.int64),
        num_far=np.zeros(shape, np.int64),
        excess=np.zeros(shape),
        ends_slow=np.zeros((num_links, dp_size, 2), np.int64),
        place=np.zeros(shape[:2], np.int64),
        is_fast=np.ones(shape[:2], np.bool_),
        has_shift=np.zeros(shape[:2], np.bool_),
        is_apart=np.zeros(shape[:2], np.bool_),
    )


@dataclass(frozen=True, slots=True)
class Links:
    """Transfers between stages of a group of steps.

    Shapes: [transfers] for `low` and `high`, the template's rows at the lower and the higher stage,
    and `link`, a position in the case's links; `usual_s` [transfers, dp], the expected time.
    `apart`: how many times as long as on the fastest link the typical transfer takes on the slowest
    one, of a type and kind. `is_alike`: no placement of unknown hosts explains which links are
    slow, or collectives show that all are (probe.py).
    """

    low: Ints
    high: Ints
    link: Ints
    usual_s: Floats
    apart: float
    is_alike: bool


def stage_pairs(group: Features) -> set[StagePair]:
    """The stages that exchange transfers in a group of steps."""
    stages = group.replayer.template.stage[np.stack(_ends(group))]
    return set(zip(*stages.tolist(), strict=True))


def find_links(
    group: Features, hosts: Hosts, host: Ints, pairs: Sequence[StagePair], counts: LinkCounts
) -> Links | None:
    """The links of a group of steps, filled into `counts`; None without transfers between stages.

    `host` [dp, pp] has `hosts` as numbers, -1 where unknown; `pairs` are of all links of the case.
    """
    replayer, template = group.replayer, group.replayer.template
    low, high = _ends(group)
    if not low.size:
        return None
    own_pairs, link = _distinct(template.stage[low], template.stage[high])
    here = np.array([pairs.index((one, other)) for one, other in own_pairs.tolist()])
    # Under interleaving the highest stage sends forward to the lowest: as much as others do.
    is_upwards = template.op_types.flags(
        lambda spec: bool(spec.pairs_with) or spec.name.endswith("-send")
    )[template.optype[low]]
    kinds, kind = _distinct(link, template.optype[np.where(is_upwards, low, high)])
    of_link, optype = kinds.T
    place = link_places(host, own_pairs)
    has_shift = _has_shift(group, low, high, place[link])[place]
    # Most of so few links, or most of the steps, may be slow.
    is_few = (np.bincount(place.ravel(), minlength=NUM_PLACES) <= LIMITS.max_few_links)[place]
    share = np.where(is_few | has_shift, LIMITS.fast_steps, 0.5)[of_link]
    median_s = _medians(group, low, high, kind, share)
    typical = _typical_transfers(median_s, of_link, optype)
    if (alone := _slow_alone(typical, own_pairs, place)) is not None:
        place[alone] = WITHIN_HOST
    is_unknown = bool((place == UNKNOWN_PLACE).all())
    ratio = typical / typical.min()
    is_alike = is_unknown and is_no_placement(ratio, own_pairs, replayer.grid.rank)
    compared_place = np.full_like(place, BETWEEN_HOSTS) if is_alike else place
    kind_s, is_fast_kind = _usual(median_s, optype, compared_place[of_link])
    # On one host, or on unknown ones, all links are of one kind.
    is_one_kind = is_unknown or len(set(hosts.values())) == 1
    compared = np.where((place == BETWEEN_HOSTS) | is_one_kind, typical, np.nan)
    slowdown = slowdown_of_common_end(replayer, hosts, own_pairs, compared)
    if slowdown is not None:
        is_slow_kind = np.isfinite(compared)[of_link]
        kind_s, is_fast_kind = kind_s / np.where(is_slow_kind, slowdown, 1.0), ~is_slow_kind
    counts.place[here] = place
    np.logical_and.at(counts.is_fast, here[of_link], is_fast_kind)
    counts.has_shift[here] |= has_shift
    is_apart = typical >= LIMITS.min_gap_within * typical.min()
    counts.is_apart[here] |= is_apart & (is_unknown and not is_alike)
    upwards, positions = is_upwards.astype(np.int64), group.positions
    each_way = np.bincount(2 * link + upwards, minlength=2 * here.size).reshape(-1, 1, 1, 2)
    counts.num[here[:, None], :, positions] = each_way
    own_s, usual_s, link = replayer.durations.recorded_s, kind_s[kind], here[link]
    slow, far = LIMITS.slow_ratio, LIMITS.far_ratio
    in_parallel(
        2 * low.size * own_s.shape[1],
        replayer.dp_size,
        lambda first, end: _count(
            own_s, low, high, link, upwards, usual_s, slow, far, positions, first, end,
            counts.num_slow, counts.num_far, counts.excess, counts.ends_slow,
        ),
    )  # fmt: skip
    apart = _apart(median_s, optype, place[of_link])
    return Links(low, high, link, usual_s, apart, is_alike or slowdown is not None)


def _ends(group: Features) -> tuple[Ints, Ints]:
    """Rows of both ends of paired transfers, at the lower and at the higher stage."""
    graph, template = group.replayer.graph, group.replayer.template
    is_p2p = template.op_types.flags(lambda spec: spec.kind is OpKind.P2P)
    first = graph.unit_ptr[np.flatnonzero(np.diff(graph.unit_ptr) == 2)]
    rows = graph.unit_ops[np.stack([first, first + 1])]
    rows = rows[:, (rows < template.num_ops).all(axis=0)]
    rows = rows[:, is_p2p[template.optype[rows]].all(axis=0)]
    one, other = template.stage[rows]
    rows = np.where(one < other, rows, rows[::-1])[:, one != other]
    return rows[0], rows[1]


def _distinct(one: Ints, other: Ints) -> tuple[Ints, Ints]:
    """Distinct pairs of numbers >= 0, [pairs, 2] ascending, and every input's position in them."""
    width = int(other.max()) + 1
    keys, at = np.unique(one.astype(np.int64) * width + other, return_inverse=True)
    return np.stack(np.divmod(keys, width), axis=1), at


def _medians(group: Features, low: Ints, high: Ints, kind: Ints, share: Floats) -> Floats:
    """[kinds, dp], quantiles `share` [kinds, dp] of what transfers of each kind took; sampled."""
    own_s, quantile_s = group.replayer.durations.recorded_s, np.empty(share.shape)
    for number, of_kind in enumerate(share):
        rows, lanes = sampled_values(group, np.flatnonzero(kind == number), MAX_MEDIAN_VALUES)
        took_s = np.sort(np.maximum(own_s[low[rows], lanes], own_s[high[rows], lanes]), axis=0)
        at = (of_kind * (len(took_s) - 1)).astype(np.int64)
        quantile_s[number] = took_s[at, np.arange(at.size)]
    return quantile_s


def _typical_transfers(median_s: Floats, link: Ints, optype: Ints) -> Floats:
    """[links, dp], the typical transfer of a link over that of its type's fastest, all types."""
    least_s = np.array([median_s[optype == code].min() for code in optype.tolist()])[:, None]
    ratio = np.divide(median_s, least_s, out=np.ones(median_s.shape), where=least_s > 0)
    num_types = np.bincount(link)
    total = np.zeros((num_types.size, ratio.shape[1]))
    np.add.at(total, link, ratio)
    return np.asarray(total / num_types[:, None])


def _slow_alone(typical: Floats, pairs: Ints, place: Ints) -> tuple[int, int] | None:
    """Position [links, dp] of the only link between hosts, where a slow card explains its time.

    It has no link of its kind to be compared with. Where a link within a host that shares an end
    with it is slow, and it takes as much longer, the card of that end slows both.
    """
    between, within = np.argwhere(place == BETWEEN_HOSTS), place == WITHIN_HOST
    if len(between) != 1 or not within.any():
        return None
    link, dp_rank = between[0].tolist()
    shares_end = np.isin(pairs, pairs[link]).any(axis=1)
    ratio = typical / lower_quantile(typical[within], LIMITS.fast_steps)
    beside = ratio[shares_end & within[:, dp_rank], dp_rank]
    far = beside[beside >= LIMITS.far_ratio]
    return (link, dp_rank) if _are_near(far, ratio[link, dp_rank]).any() else None


def _are_near(ratios: Floats, ratio: float) -> NDArray[np.bool_]:
    """Whether each of these ratios and another one are so near that one card explains both."""
    most = LIMITS.max_as_slow
    return np.asarray((ratios < most * ratio) & (ratio < most * ratios))


def _apart(median_s: Floats, optype: Ints, place: Ints) -> float:
    """Largest ratio of medians [kinds of link and type, dp] of links of one type and kind."""
    key = optype[:, None] * NUM_PLACES + place
    alike = [median_s[key == number] for number in np.unique(key)]
    return max(float(took_s.max() / took_s.min()) if took_s.min() > 0 else 1.0 for took_s in alike)


def _has_shift(group: Features, low: Ints, high: Ints, place: Ints) -> NDArray[np.bool_]:
    """[places], whether the typical transfer of a step takes far longer in part of the steps.

    `place` [transfers, dp] is the kind of each transfer's link.
    """
    own_s, shifts = group.replayer.durations.recorded_s, np.zeros(NUM_PLACES, np.bool_)
    for number in np.unique(place).tolist():
        rows = np.flatnonzero((place == number).any(axis=1))
        rows = rows[:: 1 + rows.size // _MAX_SAMPLED]
        took_s = np.maximum(own_s[low[rows]], own_s[high[rows]])
        of_kind_s = took_s.reshape(rows.size, -1, len(group.steps))[place[rows] == number]
        typical_s = medians_of_known(of_kind_s.T)
        fast_s = quantile_of(typical_s, LIMITS.fast_steps)
        slow_s = quantile_of(typical_s, LIMITS.slow_steps)
        shifts[number] = slow_s > LIMITS.min_gap_between * fast_s > 0
    return shifts


def _usual(median_s: Floats, optype: Ints, place: Ints) -> tuple[Floats, NDArray[np.bool_]]:
    """[kinds of link and type, dp], the lower median over links of the same type and kind.

    Also whether each is among the faster links, or these are the majority. Where hosts are unknown,
    links may be of different kinds, so a minority of faster ones shows nothing.
    """
    key = optype[:, None] * NUM_PLACES + place
    usual_s, is_fast = lower_medians(median_s, key), np.ones(place.shape, np.bool_)
    between, within = LIMITS.min_gap_between, LIMITS.min_gap_within
    for number in np.unique(key[place != UNKNOWN_PLACE]).tolist():
        alike = key == number
        in_order_s = np.sort(median_s[alike])
        middle = (in_order_s.size - 1) // 2
        gap = between if number % NUM_PLACES == BETWEEN_HOSTS else within
        apart = np.flatnonzero(in_order_s[1 : middle + 1] > gap * in_order_s[:middle])
        if apart.size:
            last_fast = int(apart[-1])
            usual_s[alike] = in_order_s[last_fast // 2]
            is_fast[alike] = median_s[alike] <= in_order_s[last_fast]
    return usual_s, is_fast


def lower_medians(values: Floats, key: Ints) -> Floats:
    """[...], the lower median over all values [...] with the same key, from 0 on."""
    flat, key = values.ravel(), key.ravel()
    order = np.lexsort((flat, key))
    first = np.flatnonzero(np.diff(key[order], prepend=-1))
    count = np.diff(first, append=key.size)
    medians = np.empty(flat.size)
    medians[order] = np.repeat(flat[order[first + (count - 1) // 2]], count)
    return medians.reshape(values.shape)


@kernel
def _count(  # type: ignore[no-untyped-def]
    own_s, low, high, link, upwards, usual_s, slow, far, positions, first, end,
    num_slow, num_far, excess, ends_slow,
):  # fmt: skip
    # Row by row, as they lie in memory.
    num_steps = positions.size
    for i in range(low.size):
        row = link[i]
        for dp_rank in range(first, end):
            least_s = usual_s[i, dp_rank]
            for step in range(num_steps):
                lane = dp_rank * num_steps + step
                low_s, high_s = own_s[low[i], lane], own_s[high[i], lane]
                took_s = max(low_s, high_s)
                if took_s > slow * least_s:
                    at = positions[step]
                    num_slow[row, dp_rank, at, upwards[i]] += 1
                    num_far[row, dp_rank, at] += took_s > far * least_s
                    excess[row, dp_rank, at] += took_s / least_s - 1 if least_s > 0 else 0.0
                    ends_slow[row, dp_rank, 0] += low_s > slow * least_s
                    ends_slow[row, dp_rank, 1] += high_s > slow * least_s


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


def find_dp_groups(
    group: Features, place: Ints, pairs: Sequence[StagePair], counts: LinkCounts
) -> DpGroups | None:
    """The dp groups of a group of steps; None without collectives among dp ranks.

    Only groups of a kind, by `place` [pp] of `group_places`, are compared. `counts` of all links of
    the case are filled in for the group.
    """
    replayer, template = group.replayer, group.replayer.template
    rows = collectives_of(replayer, Axis.DP)
    if not rows.size or replayer.dp_size == 1:
        return None
    shape, stage = (replayer.pp_size, len(group.steps)), template.stage[rows]
    own_s = replayer.durations.recorded_s[rows].reshape(rows.size, -1, shape[1])
    took_s = medians_of_known(own_s.transpose(0, 2, 1))
    of_type = template.optype[rows] * template.num_ops + template.seq_id[rows]
    usual_s = _usual_collectives(took_s, of_type * NUM_PLACES + place[stage])
    typical_s = medians_of_known(took_s)
    excess, num_slow = (
        of_steps[:, :, group.positions] for of_steps in (counts.excess, counts.num_slow)
    )
    slow = 1 + excess.sum(axis=2) / np.maximum(num_slow.sum(axis=(2, 3)), 1)
    total_typical_s = np.asarray(np.bincount(stage, typical_s, place.size), np.float64)
    is_card = _is_all_slow(total_typical_s, place, pairs, slow)
    most_s = _most_of_kind_s(usual_s, of_type, place[stage], is_card=is_card)
    usual_s = np.minimum(usual_s, most_s)
    total_s, least_s = np.zeros(shape), np.zeros(shape)
    np.add.at(total_s, stage, took_s)
    np.add.at(least_s, stage, usual_s[:, None])
    # Of many collectives some are long in every step, so a fast step has some as well.
    is_own = (np.bincount(place, minlength=NUM_PLACES) == 1)[place]
    is_own[stage[np.isfinite(most_s)]] = False
    faster_s = quantiles(total_s, LIMITS.fast_steps)[:, None]
    least_s = np.where(is_own[:, None], np.maximum(least_s, faster_s), least_s)
    pace = np.divide(total_s, least_s, out=np.ones(shape), where=least_s > 0)
    return DpGroups(rows, stage, took_s, usual_s, pace)


def _is_all_slow(total_s: Floats, place: Ints, pairs: Sequence[StagePair], slow: Floats) -> bool:
    """Whether all dp groups between hosts are slow by a card, unlike those within hosts.

    Slow links of their stages explain the time of each: one card slows both (`_slow_alone`).
    `total_s` [pp] is a stage's typical collective, `slow` [links, dp] how many times as long as
    expected slow transfers take.
    """
    within_s = total_s[place == WITHIN_HOST]
    between = np.flatnonzero(place == BETWEEN_HOSTS).tolist()
    if not between or not within_s.size or not within_s.min() > 0:
        return False
    for stage in between:
        ratio = total_s[stage] / np.median(within_s)
        is_near = _are_near(slow[[stage in pair for pair in pairs]], ratio)
        if ratio < LIMITS.min_gap_within or not is_near.any():
            return False
    return True


def _most_of_kind_s(usual_s: Floats, of_type: Ints, place: Ints, *, is_card: bool) -> Floats:
    """[collectives], the most that each may take: within a host as long as between hosts.

    Where a card slows all of those between hosts (`is_card`), these as long as within hosts.
    Infinite for groups on unknown hosts, and where there is nothing to compare with.
    """
    most_s = np.full(usual_s.size, np.inf)
    bounded, other = (BETWEEN_HOSTS, WITHIN_HOST) if is_card else (WITHIN_HOST, BETWEEN_HOSTS)
    for at in np.flatnonzero(place == bounded).tolist():
        others_s = usual_s[(of_type == of_type[at]) & (place == other)]
        if others_s.size:
            most_s[at] = others_s[0]
    return most_s


def _usual_collectives(took_s: Floats, key: Ints) -> Floats:
    """[collectives], the lower median over stages with the same key of the median over steps."""
    in_order, last = np.sort(took_s, axis=1), took_s.shape[1] - 1
    _, number, num_alike = np.unique(key, return_inverse=True, return_counts=True)
    typical_s, low_s = in_order[:, last // 2], in_order[:, last // 4]
    return lower_medians(np.where(num_alike[number] > 1, typical_s, low_s), number)


def is_no_placement(ratio: Floats, pairs: Ints, rank: Ints) -> bool:
    """Whether some links are far slower than the others, and no size of hosts explains which.

    Shapes: `ratio` [links, dp], a link's typical transfer over that of the fastest; `pairs`
    [links, 2]; global ranks `rank` [dp, pp], -1 where unknown.
    """
    is_slow: NDArray[np.bool_] = ratio >= LIMITS.min_gap_within
    if is_slow.all() or not is_slow.any() or (rank < 0).any():
        return False
    least = max(LIMITS.far_ratio, LIMITS.min_gap_within * float(ratio[~is_slow].max()))
    return bool(ratio[is_slow].min() >= least) and not is_placement(is_slow, pairs, rank)


def is_placement(is_slow: NDArray[np.bool_], pairs: Ints, rank: Ints) -> bool:
    """Whether the slow links [links, dp] are just those between hosts of some size."""
    ends = rank[:, pairs]  # [dp, links, 2]
    return any(
        bool((is_slow == (ends[..., 0] // size != ends[..., 1] // size).T).all())
        for size in _sizes(rank)
    )


def _sizes(rank: Ints) -> list[int]:
    """Usual sizes of hosts, and any that the job fills evenly."""
    known = np.unique(rank)
    world_size = int(known[-1]) + (int(np.diff(known).min()) if known.size > 1 else 1)
    even = {size for size in range(1, world_size + 1) if world_size % size == 0}
    return sorted(even.union(_HOST_SIZES))


def slow_block(is_slow: NDArray[np.bool_], pairs: Ints, rank: Ints) -> list[tuple[int, int]] | None:
    """(dp rank, stage) of the workers of the one unnamed host whose links to all others are slow.

    Hosts hold successive ranks; the smallest size that fits counts. None where no host does.

    Shapes: `is_slow` [links, dp], `pairs` [links, 2], global ranks `rank` [dp, pp].
    """
    ends = rank[:, pairs]
    for size in _sizes(rank):
        for host in np.unique(rank // size).tolist():
            inside = ends // size == host
            if (is_slow == (inside[..., 0] != inside[..., 1]).T).all():
                workers = [(dp, stage) for dp, stage in np.argwhere(rank // size == host).tolist()]
                return workers if len(workers) > 1 else None
    return None
