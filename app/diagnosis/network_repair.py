"""What would transfers and collectives take without slow links, cards or dp groups?

Three kinds of operations are blamed on a suspect: transfers of its links, collectives of its dp
groups, and the collectives among stages that its card takes part in (embedding gradients of the
first and last stage, the norm for clipping). The last have no peers of their own in most jobs; they
are compared with steps that do not show the suspect, then with other dp ranks, and where there is
neither, a card that takes r times as long for its transfers does so for these, too.

Where receives are posted late, a slow transfer holds up a stage that the replay, which posts
receives as early as the model allows, leaves free: `late_posts` puts these delays back.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.diagnosis.case import Case
from app.diagnosis.evidence.features import Features
from app.diagnosis.evidence.links import (
    GROUP_BETWEEN,
    MAX_AS_SLOW,
    SLOW_RATIO,
    DpGroups,
    Links,
    spans_hosts,
)
from app.diagnosis.evidence.network_probe import collectives_of, slowdown_of_all, small_s
from app.diagnosis.evidence.network_suspects import NetworkSuspect
from app.diagnosis.evidence.outliers import launch_delays_s
from app.diagnosis.repair import BlamedByGroup, BlamedOps
from app.engine.what_if import Replayer
from app.trace.ops import Axis
from app.trace.window import Floats, Ints

# Steps that do not show the suspect: so many show what a collective takes without it.
MIN_OTHER_STEPS = 3
# Where bursts come and go within steps, a collective is as slow as the suspect's transfers, or this
# part of it, in this share of the steps that show the suspect, and so many times as often as in the
# others. Single ones are slow by chance.
MIN_BURST_SHARE = 0.25
MIN_SLOW_SHARE, MIN_TIMES_OFTEN = 0.1, 3.0
# A collective of all workers shows a pair's card if its slowdown is this share of the pair's.
MIN_CARD_SHARE = 0.5

_Blamed = tuple[Ints, Ints, Floats]  # rows of the template, lanes, seconds


def slow_transfers(case: Case, found: list[NetworkSuspect]) -> BlamedByGroup:
    """The slow operations of these suspects, with the expected time."""
    by_group = {}
    for group, links, groups in zip(case.groups, case.links, case.dp_groups, strict=True):
        parts = [_of_links(group, links, found)] if links is not None else []
        if groups is not None:
            parts.append(_of_groups(group, groups, found))
            parts += [_of_carried(group, groups, each) for each in found]
        parts += [_of_shared(group, each, found) for each in _shared_collectives(group.replayer)]
        if parts:
            by_group[group.steps] = _joined(parts)
    return by_group


def late_posts(case: Case, found: list[NetworkSuspect]) -> BlamedByGroup:
    """Slow transfers of these suspects, with the seconds by which they were posted late.

    A transfer is posted when both ends are; it could have been when the predecessors of both had
    ended.
    """
    by_group = {}
    for group, links in zip(case.groups, case.links, strict=True):
        if links is not None:
            by_group[group.steps] = _joined([_posted_late(group, links, found)])
    return by_group


def _joined(parts: list[_Blamed]) -> BlamedOps:
    return BlamedOps(*(np.concatenate(each) for each in zip(*parts, strict=True)))


@dataclass(frozen=True, slots=True)
class _SlowEnds:
    """Slow transfers of suspects in a group of steps.

    Shapes: [slow transfers] for `at`, the position in `Links`, `lane`, `is_slow` [2, ...] (which of
    its ends are slow) and `usual_s`.
    """

    at: Ints
    lane: Ints
    is_slow: NDArray[np.bool_]
    usual_s: Floats


def _slow_ends(group: Features, links: Links, found: list[NetworkSuspect]) -> _SlowEnds:
    network = found[0].network
    blamed = np.any([each.links for each in found], axis=0)
    mine = np.array([network.pairs.index(pair) for pair in links.pairs])
    at, dp_rank = np.nonzero(blamed[mine][links.link])
    num_steps = len(group.steps)
    counted = np.flatnonzero(~network.is_warm_up[group.positions])
    own_s = group.replayer.durations.recorded_s
    lane = (dp_rank[:, None] * num_steps + counted).ravel()
    usual_s = np.repeat(links.usual_s[at, dp_rank], counted.size)
    at = np.repeat(at, counted.size)
    is_slow = np.stack([own_s[end[at], lane] > SLOW_RATIO * usual_s for end in _ends(links)])
    any_slow = is_slow.any(axis=0)
    return _SlowEnds(at[any_slow], lane[any_slow], is_slow[:, any_slow], usual_s[any_slow])


def _ends(links: Links) -> tuple[Ints, Ints]:
    return links.low, links.high


def _of_links(group: Features, links: Links, found: list[NetworkSuspect]) -> _Blamed:
    slow = _slow_ends(group, links, found)
    parts = [
        (end[slow.at[is_slow]], slow.lane[is_slow], slow.usual_s[is_slow])
        for end, is_slow in zip(_ends(links), slow.is_slow, strict=True)
    ]
    row, lane, usual_s = (np.concatenate(each) for each in zip(*parts, strict=True))
    return row, lane, usual_s


def _posted_late(group: Features, links: Links, found: list[NetworkSuspect]) -> _Blamed:
    slow, start_s = _slow_ends(group, links, found), group.replayer.grid.start_s
    rows = np.unique(np.concatenate([end[slow.at] for end in _ends(links)]))
    delay_s = launch_delays_s(group.replayer, rows)
    begun_s, ready_s = np.full((2, slow.at.size), -np.inf)
    for end in _ends(links):
        row = end[slow.at]
        its_start_s = start_s[row, slow.lane]
        begun_s = np.maximum(begun_s, its_start_s)
        ready_s = np.maximum(ready_s, its_start_s - delay_s[np.searchsorted(rows, row), slow.lane])
    late_s = begun_s - ready_s
    is_late = late_s > 0
    row = np.concatenate([end[slow.at[is_late]] for end in _ends(links)])
    return row, np.tile(slow.lane[is_late], 2), np.tile(late_s[is_late], 2)


def _of_groups(group: Features, groups: DpGroups, found: list[NetworkSuspect]) -> _Blamed:
    blamed = np.any([each.groups for each in found], axis=0)[:, group.positions]
    at, step = np.nonzero(blamed[groups.stage])
    dp_size, num_steps = group.replayer.dp_size, len(group.steps)
    lane = (np.arange(dp_size)[:, None] * num_steps + step).ravel()
    row, usual_s = np.tile(groups.rows[at], dp_size), np.tile(groups.usual_s[at], dp_size)
    own_s = group.replayer.durations.recorded_s[row, lane]
    slow = own_s > usual_s
    return row[slow], lane[slow], usual_s[slow]


def _of_carried(group: Features, groups: DpGroups, suspect: NetworkSuspect) -> _Blamed:
    """Collectives of dp groups that a slow host carries, where there are no others.

    All dp groups between hosts join it, so that none shows the expected time. If the collective of
    all workers is as slow as the host's transfers, all that it carries is.
    """
    replayer, case = group.replayer, suspect.network.case
    hosts, slowdown = case.replay.window.hosts, slowdown_of_all(replayer)
    slow_hosts = {each.host for each in suspect.culprits if each.dp_rank is None}
    spans = np.equal(spans_hosts(hosts, case.parallelism), GROUP_BETWEEN)
    carried = np.zeros_like(spans)
    carried[[stage for (_, stage), host in hosts.items() if host in slow_hosts]] = True
    known = np.asarray(suspect.groups.any(axis=1))
    rows = groups.rows[(spans & ~known)[groups.stage]]
    empty = np.zeros(0, np.int64)
    if slowdown is None or not rows.size or (spans & ~carried).any() or not suspect.links.any():
        return empty, empty, np.zeros(0)
    if not 1 / MAX_AS_SLOW < slowdown / suspect.ratio < MAX_AS_SLOW:
        return empty, empty, np.zeros(0)
    shown = np.flatnonzero(suspect.shows_in[group.positions])
    lane = (np.arange(replayer.dp_size)[:, None] * len(group.steps) + shown).ravel()
    row, lane = np.repeat(rows, lane.size), np.tile(lane, rows.size)
    return row, lane, replayer.durations.recorded_s[row, lane] / suspect.ratio


def _shared_collectives(replayer: Replayer) -> list[Ints]:
    """Rows of each collective among stages, one for every stage that takes part."""
    template, rows = replayer.template, collectives_of(replayer, Axis.STAGES, Axis.DP_AND_STAGES)
    number = template.optype[rows] * template.num_ops + template.seq_id[rows]
    return [rows[number == each] for each in np.unique(number).tolist()]


def _of_shared(group: Features, rows: Ints, found: list[NetworkSuspect]) -> _Blamed:
    replayer, num_steps = group.replayer, len(group.steps)
    own_s = replayer.durations.recorded_s[rows].reshape(rows.size, -1, num_steps)
    took_s = np.median(own_s, axis=0)
    is_hit = _takes_part(replayer, rows, found)
    usual_s = _usual_shared_s(group, took_s, is_hit, found)
    if usual_s is None:
        empty = np.zeros(0, np.int64)
        return empty, empty, np.zeros(0)
    counted = ~found[0].network.is_warm_up[group.positions]
    is_slow = is_hit[:, None] & counted & (took_s > SLOW_RATIO * usual_s)
    member, dp_rank, step = np.nonzero(is_slow & (own_s > usual_s))
    usual_s = np.broadcast_to(usual_s, took_s.shape)
    return rows[member], dp_rank * num_steps + step, usual_s[dp_rank, step]


def _takes_part(replayer: Replayer, rows: Ints, found: list[NetworkSuspect]) -> NDArray[np.bool_]:
    """[dp], whether a worker of the suspects' slow links is a member of each replica's."""
    template = replayer.template
    stages, axis = set(template.stage[rows].tolist()), template.op_types.by_code
    members = np.zeros(replayer.dp_size, np.bool_)
    for each in found:
        if each.links.any():
            members[[dp_rank for dp_rank, stage in each.workers if stage in stages]] = True
    if members.any() and axis[template.optype[rows[0]]].axis is Axis.DP_AND_STAGES:
        members[:] = True
    return members


def _usual_shared_s(
    group: Features, took_s: Floats, is_hit: NDArray[np.bool_], found: list[NetworkSuspect]
) -> Floats | None:
    """[dp, steps or 1], the expected time of a collective among stages; None if it is as ever."""
    if not is_hit.any():
        return None
    shown = np.any([each.shows_in for each in found if each.links.any()], axis=0)[group.positions]
    shown &= ~found[0].network.is_warm_up[group.positions]
    others = ~shown & ~found[0].network.is_warm_up[group.positions]
    if not shown.any():
        return None
    if others.sum() >= MIN_OTHER_STEPS:
        usual_s = np.median(took_s[:, others], axis=1, keepdims=True)
        ratio = max(each.ratio for each in found if each.links.any())
        is_slow = took_s > max(SLOW_RATIO, MIN_BURST_SHARE * ratio) * usual_s
        share, else_share = (is_slow[is_hit][:, at].mean() for at in (shown, others))
        return usual_s if share >= max(MIN_SLOW_SHARE, MIN_TIMES_OFTEN * else_share) else None
    if not is_hit.all():
        return np.full((is_hit.size, 1), np.median(took_s[~is_hit]))
    ratios = [each.ratio for each in found if each.links.any() and _is_card(group.replayer, each)]
    if not ratios:
        return None
    return np.maximum(took_s / max(ratios), np.minimum(took_s, small_s(group.replayer)))


def _is_card(replayer: Replayer, suspect: NetworkSuspect) -> bool:
    """Whether it slows all that its worker sends, not only the transfers of a pair's cable.

    The card of either end of a pair slows the collective of all workers, too, which is small.
    """
    if len(suspect.culprits) == 1:
        return True
    slowdown = slowdown_of_all(replayer)
    return slowdown is not None and slowdown >= MIN_CARD_SHARE * suspect.ratio
