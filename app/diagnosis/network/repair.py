"""What would transfers and collectives take without slow links, cards or dp groups?

Three kinds of operations are blamed on a suspect: transfers of its links, collectives of its dp
groups, and the collectives among stages that its card takes part in (embedding gradients of the
first and last stage, the norm for clipping). The last have no peers of their own in most jobs; they
are compared with steps that do not show the suspect, then with other dp ranks, and where there is
neither, a card that takes r times as long for its transfers does so for these, too.

Where receives are posted late, a slow transfer holds up a stage that the replay, which posts
receives as early as the model allows, leaves free: `late_posts` puts these delays back.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from app.diagnosis.evidence.outliers import launch_delays_s
from app.diagnosis.features import Features
from app.diagnosis.network import transfers
from app.diagnosis.network.probe import collectives_of, slowdown_of_all, small_s
from app.diagnosis.network.suspects import NetworkSuspect, any_links
from app.diagnosis.network.transfers import BETWEEN_HOSTS, DpGroups, Links, group_places
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

Flags = NDArray[np.bool_]
Suspects = Sequence[NetworkSuspect]


def slow_transfers(suspects: Suspects) -> BlamedByGroup:
    """The slow operations of these suspects, with the expected time."""
    by_group, net = {}, suspects[0].network
    for group, links, collectives in zip(net.case.groups, net.links, net.dp_groups, strict=True):
        parts = [_of_links(group, links, suspects)] if links is not None else []
        if collectives is not None:
            parts.append(_of_groups(group, collectives, suspects))
            parts += [_of_carried(group, collectives, suspect) for suspect in suspects]
        parts += [_of_shared(group, rows, suspects) for rows in _shared_collectives(group.replayer)]
        if parts:
            columns = zip(*((part.row, part.lane, part.seconds) for part in parts), strict=True)
            by_group[group.steps] = BlamedOps(*(np.concatenate(column) for column in columns))
    return by_group


def late_posts(suspects: Suspects) -> BlamedByGroup:
    """Slow transfers of these suspects, with the seconds by which they were posted late.

    A transfer is posted when both ends are; it could have been when the predecessors of both had
    ended.
    """
    net = suspects[0].network
    return {
        group.steps: _posted_late(group, links, suspects)
        for group, links in zip(net.case.groups, net.links, strict=True)
        if links is not None
    }


def _slow_ends(group: Features, links: Links, suspects: Suspects) -> tuple[Ints, Flags, Floats]:
    """Transfers of the suspects' links.

    Rows of their ends [2, transfers], whether these are slow [2, transfers, lanes], and the
    expected seconds [transfers, lanes].
    """
    blamed = any_links(suspects)[links.link]
    at = np.flatnonzero(blamed.any(axis=1))
    ends, num_steps = np.stack([links.low[at], links.high[at]]), len(group.steps)
    counted = blamed[at][:, :, None] & ~suspects[0].network.is_warm_up[group.positions]
    usual_s = np.repeat(links.usual_s[at], num_steps, axis=1)
    is_slow = group.replayer.durations.recorded_s[ends] > transfers.LIMITS.slow_ratio * usual_s
    return ends, counted.reshape(usual_s.shape) & is_slow, usual_s


def _of_links(group: Features, links: Links, suspects: Suspects) -> BlamedOps:
    ends, is_slow, usual_s = _slow_ends(group, links, suspects)
    end, at, lane = np.nonzero(is_slow)
    return BlamedOps(ends[end, at], lane, usual_s[at, lane])


def _posted_late(group: Features, links: Links, suspects: Suspects) -> BlamedOps:
    ends, is_slow, _ = _slow_ends(group, links, suspects)
    start_s = group.replayer.grid.start_s[ends]
    delay_s = launch_delays_s(group.replayer, ends.ravel()).reshape(start_s.shape)
    late_s = start_s.max(axis=0) - (start_s - delay_s).max(axis=0)
    at, lane = np.nonzero(is_slow.any(axis=0) & (late_s > 0))
    return BlamedOps(ends[:, at].ravel(), np.tile(lane, 2), np.tile(late_s[at, lane], 2))


def _longer(group: Features, rows: Ints, is_blamed: Flags, usual_s: Floats) -> BlamedOps:
    """Blamed operations [rows, dp, steps] that take longer than usual; both may be broadcast."""
    num_steps = len(group.steps)
    own_s = group.replayer.durations.recorded_s[rows]
    own_s = own_s.reshape(rows.size, group.replayer.dp_size, num_steps)
    row, dp_rank, step = np.nonzero(is_blamed & (own_s > usual_s))
    seconds = np.broadcast_to(usual_s, own_s.shape)[row, dp_rank, step]
    return BlamedOps(rows[row], dp_rank * num_steps + step, seconds)


def _of_groups(group: Features, collectives: DpGroups, suspects: Suspects) -> BlamedOps:
    blamed = np.any([suspect.groups for suspect in suspects], axis=0)[:, group.positions]
    is_blamed = blamed[collectives.stage]
    at = np.flatnonzero(is_blamed.any(axis=1))
    usual_s = collectives.usual_s[at][:, None, None]
    return _longer(group, collectives.rows[at], is_blamed[at][:, None], usual_s)


def _of_carried(group: Features, collectives: DpGroups, suspect: NetworkSuspect) -> BlamedOps:
    """Collectives of dp groups that a slow host carries, where there are no others.

    All dp groups between hosts join it, so that none shows the expected time. If the collective of
    all workers is as slow as the host's transfers, all that it carries is.
    """
    replayer, case = group.replayer, suspect.network.case
    hosts, slowdown = case.replay.window.hosts, slowdown_of_all(replayer)
    slow_hosts = {culprit.host for culprit in suspect.culprits if culprit.dp_rank is None}
    is_across = np.equal(group_places(case.host_numbers), BETWEEN_HOSTS)
    carried = {stage for (_, stage), host in hosts.items() if host in slow_hosts}
    all_carried = carried.issuperset(np.flatnonzero(is_across).tolist())
    most = transfers.LIMITS.max_as_slow
    is_as_slow = slowdown is not None and 1 / most < slowdown / suspect.ratio < most
    is_carried = suspect.has_links and all_carried and is_as_slow
    is_unknown = is_across & ~suspect.groups.any(axis=1) & is_carried
    rows = collectives.rows[is_unknown[collectives.stage]]
    shape = rows.size, replayer.dp_size, len(group.steps)
    own_s = replayer.durations.recorded_s[rows].reshape(shape)
    return _longer(group, rows, suspect.shows_in[group.positions], own_s / suspect.ratio)


def _shared_collectives(replayer: Replayer) -> list[Ints]:
    """Rows of each collective among stages, one for every stage that takes part."""
    template, rows = replayer.template, collectives_of(replayer, Axis.STAGES, Axis.DP_AND_STAGES)
    number = template.optype[rows] * template.num_ops + template.seq_id[rows]
    return [rows[number == key] for key in np.unique(number).tolist()]


def _of_shared(group: Features, rows: Ints, suspects: Suspects) -> BlamedOps:
    replayer, is_warm_up = group.replayer, suspects[0].network.is_warm_up[group.positions]
    own_s = replayer.durations.recorded_s[rows].reshape(rows.size, -1, len(group.steps))
    took_s = np.median(own_s, axis=0)
    is_hit = _takes_part(replayer, rows, suspects)
    with_links = [suspect for suspect in suspects if suspect.has_links]
    usual_s = _usual_shared_s(group, took_s, is_hit, with_links)
    if usual_s is None:
        usual_s, is_hit = took_s, np.zeros_like(is_hit)
    is_slow = is_hit[:, None] & ~is_warm_up & (took_s > transfers.LIMITS.slow_ratio * usual_s)
    return _longer(group, rows, is_slow, usual_s)


def _takes_part(replayer: Replayer, rows: Ints, suspects: Suspects) -> Flags:
    """[dp], whether a worker of the suspects' slow links is a member of each replica's."""
    template = replayer.template
    stages, axis = set(template.stage[rows].tolist()), template.op_types.by_code
    members = np.zeros(replayer.dp_size, np.bool_)
    for suspect in suspects:
        if suspect.has_links:
            members[[dp_rank for dp_rank, stage in suspect.workers if stage in stages]] = True
    if members.any() and axis[template.optype[rows[0]]].axis is Axis.DP_AND_STAGES:
        members[:] = True
    return members


def _usual_shared_s(
    group: Features, took_s: Floats, is_hit: Flags, suspects: Suspects
) -> Floats | None:
    """[dp, steps or 1], the expected time of a collective among stages; None if it is as ever.

    `suspects` are those with slow links.
    """
    if not is_hit.any():
        return None
    counted = ~suspects[0].network.is_warm_up[group.positions]
    shows = np.any([suspect.shows_in for suspect in suspects], axis=0)[group.positions]
    shown, others = counted & shows, counted & ~shows
    if not shown.any():
        return None
    if others.sum() >= MIN_OTHER_STEPS:
        usual_s = np.median(took_s[:, others], axis=1, keepdims=True)
        ratio = max(suspect.ratio for suspect in suspects)
        is_slow = took_s > max(transfers.LIMITS.slow_ratio, MIN_BURST_SHARE * ratio) * usual_s
        share, else_share = (is_slow[is_hit][:, at].mean() for at in (shown, others))
        return usual_s if share >= max(MIN_SLOW_SHARE, MIN_TIMES_OFTEN * else_share) else None
    if not is_hit.all():
        return np.full((is_hit.size, 1), np.median(took_s[~is_hit]))
    ratios = [suspect.ratio for suspect in suspects if _is_card(group.replayer, suspect)]
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
