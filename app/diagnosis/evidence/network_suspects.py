"""Who slows transfers: a pair, a worker's network card, a host, or a dp group as a whole?

`network_suspects` names the culprits of the slow links and dp groups of `NetworkTransfers`,
`drop_minor_suspects` leaves out those that lose little beside the worst one.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.diagnosis.case import Case
from app.diagnosis.evidence.link_topology import slow_block
from app.diagnosis.evidence.links import SLOW_RATIO, spans_hosts
from app.diagnosis.evidence.network import MIN_SLOW_SHARE, NetworkTransfers, hit_chance
from app.diagnosis.finding import MIN_SHARE_OF_HOST, Worker, worker_culprit
from app.diagnosis.statistics.persistence import MIN_HIT_SHARE, best_stretch
from app.diagnosis.statistics.robust import log_binomial_tail, quantile_of
from app.engine.medians import median_of
from app.result.finding import Culprit
from app.trace.window import Floats, Ints

# A dp group is explained by slow links that show in so many, and this share, of its slow steps.
MIN_EXPLAINED_STEPS, MIN_EXPLAINED = 2, 0.2
# Bursts of a network card that last until the end of so many steps slow its dp group in one.
MIN_SPARED_STEPS = 2
# A worker's other links have bursts if so much of the pair's share of their transfers is slow.
MIN_SHARE_ELSEWHERE = 0.1
# Workers of one block (a host) are slow by the same cause, so that their ratios are this near.
MAX_RATIO_APART = 1.5
# A link is slow at one end if the other end has at most this share of its slow transfers.
MAX_OTHER_END = 0.2
# A dp group is slow with a worker's links if its excess is this share of theirs.
MIN_GROUP_SHARE = 0.35
# A step shows the suspect if this share of its transfers is slow, so many times the typical share,
MIN_SHOWN_SHARE = 0.02
MIN_TIMES_TYPICAL = 5.0
# or if so many slow ones have less than this probability.
MAX_STEP_CHANCE = 0.01
# Share of steps in its stretch for a suspect to be slow all the time.
MIN_STEADY_SHARE = 0.85
# A stretch's share of slow transfers is first taken from its worst steps, then estimated again.
LEVEL_QUANTILE = 0.9
STRETCH_TURNS = 3
# A link that takes so many times as long all the time has nearly all of its transfers slow.
MIN_BURST_RATIO = 2.0
# A step so far below the stretch's share, and by no chance, is a pause between bursts.
MIN_LESS_SLOW = 0.25
# The direction with less than this of the other one's share is not slow.
MIN_OTHER_DIRECTION = 0.5


@dataclass(frozen=True, eq=False)
class NetworkSuspect:
    """One suspect of slow transfers, with its workers.

    Shapes: `links` [links, dp] and `groups` [pp, steps] are the links and dp groups that it slows.
    """

    network: NetworkTransfers
    culprits: tuple[Culprit, ...]
    workers: tuple[Worker, ...]
    links: NDArray[np.bool_]
    groups: NDArray[np.bool_]

    @cached_property
    def share(self) -> Floats:
        """[steps], share of its transfers (in the worse direction) or collectives that are slow."""
        if not self.links.any():
            return np.asarray(self.groups[self.groups.any(axis=1)].mean(axis=0))
        num = self.network.num[self.links].sum(axis=0)
        num_slow = self.network.num_slow[self.links].sum(axis=0)
        return np.asarray((num_slow / np.maximum(num, 1)).max(axis=-1))

    @cached_property
    def shows_in(self) -> NDArray[np.bool_]:
        """[steps], whether each shows the suspect."""
        return self._stretch.is_slow if self.is_steady else self._shows_bursts

    @cached_property
    def _stretch(self) -> "_SlowStretch":
        num_slow, num = self._counts
        net = self.network
        of_links = net.num_slow.sum(axis=-1)
        healthy = net.healthy_share(of_links, self.links) if self.links.any() else 0.0
        excess = net.excess[self.links].sum(axis=0) if self.links.any() else num_slow
        return _slow_stretch(num_slow, num, healthy, excess)

    @cached_property
    def _counts(self) -> tuple[Ints, Ints]:
        """[steps], slow transfers and all; of one direction, where the other one is not slow."""
        net = self.network
        if not self.links.any():
            mine = self.groups[self.groups.any(axis=1)]
            return mine.sum(axis=0), np.where(net.is_warm_up, 0, len(mine))
        num, num_slow = (each[self.links].sum(axis=0) for each in (net.num, net.num_slow))
        num[net.is_warm_up] = 0
        share = num_slow.sum(axis=0) / np.maximum(num.sum(axis=0), 1)
        used = share >= MIN_OTHER_DIRECTION * share.max()
        return num_slow[:, used].sum(axis=1), num[:, used].sum(axis=1)

    @cached_property
    def _shows_bursts(self) -> NDArray[np.bool_]:
        """[steps], whether more transfers are slow, or extreme, than on a healthy link."""
        if not self.links.any():
            return np.asarray(self.share > MIN_SHOWN_SHARE)
        net = self.network
        typical = net.healthy_share(net.num_slow.sum(axis=-1), self.links)
        num, num_slow = (each[self.links].sum(axis=0) for each in (net.num, net.num_slow))
        num_far = net.num_far[self.links].sum(axis=0)
        is_hit = self.share > max(MIN_SHOWN_SHARE, MIN_TIMES_TYPICAL * typical)
        # With many stray transfers no share is so many times the typical one: probability decides.
        is_hit |= _is_beyond_chance(num_slow, num, typical).any(axis=-1)
        usually_far = net.healthy_share(net.num_far, self.links)
        return np.asarray(is_hit | _is_beyond_chance(num_far, num.sum(axis=-1), usually_far))

    @cached_property
    def is_steady(self) -> bool:
        """Whether it is slow all the time since its onset, not in bursts."""
        stretch = self._stretch
        inside = stretch.excess[stretch.first : stretch.end]
        is_slow = stretch.is_slow[stretch.first : stretch.end]
        # What makes some transfers far longer, and others not, comes in bursts within the steps.
        is_partial = stretch.level < MIN_SLOW_SHARE and self.ratio >= MIN_BURST_RATIO
        return bool(
            not is_partial
            and is_slow.mean() >= MIN_STEADY_SHARE
            and inside.sum() >= MIN_SHARE_OF_HOST * stretch.excess.sum()
        )

    @cached_property
    def ratio(self) -> float:
        """Duration of its slow transfers over the expected one."""
        if self.links.any():
            return _ratio(self.network, self.links)
        return float(self.network.group_pace[self.groups].mean())


@dataclass(frozen=True, slots=True)
class _SlowStretch:
    """The steps `first` to `end`, excluded, in which a suspect is slow most likely.

    `level` is its share of slow transfers. `is_slow` [steps]: steps of the stretch that are as slow
    as it is; `excess` [steps]: by how much its transfers take longer.
    """

    first: int
    end: int
    level: float
    is_slow: NDArray[np.bool_]
    excess: Floats


def _slow_stretch(num_slow: Ints, num: Ints, healthy: float, excess: NDArray[Any]) -> _SlowStretch:
    """The stretch with the largest likelihood of one share of slow transfers, and its steps.

    Outside of the stretch the share is the healthy one. Whether a suspect is slow all the time is
    judged inside, so that healthy steps before the onset do not count.

    Args:
        num_slow: [steps], slow transfers.
        num: [steps], all transfers.
        healthy: share of slow transfers on a healthy link.
        excess: [steps], by how much the transfers take longer.
    """
    share = num_slow / np.maximum(num, 1)
    healthy = min(max(healthy, MIN_SHOWN_SHARE), 0.5)
    level = quantile_of(share, LEVEL_QUANTILE)
    first, end, gain = 0, share.size, np.zeros(share.size)
    for _ in range(STRETCH_TURNS):
        level = min(max(level, healthy + MIN_SHOWN_SHARE), 1 - MIN_SHOWN_SHARE)
        gain = num_slow * np.log(level / healthy)
        gain += (num - num_slow) * np.log((1 - level) / (1 - healthy))
        first, end = best_stretch(gain)
        level = float(num_slow[first:end].sum() / max(1, int(num[first:end].sum())))
    is_slow = np.zeros(share.size, np.bool_)
    is_slow[first:end] = ~_is_quiet(num_slow, num, gain, level)[first:end]
    return _SlowStretch(first, end, level, is_slow, np.asarray(excess, np.float64))


def _is_quiet(num_slow: Ints, num: Ints, gain: Floats, level: float) -> NDArray[np.bool_]:
    """[steps], whether each is a healthy one, or less slow than chance allows at this level."""
    share, missed = num_slow / np.maximum(num, 1), min(max(1 - level, MIN_SHOWN_SHARE), 0.99)
    log_chance = log_binomial_tail(num - num_slow, np.maximum(num, 1), missed)
    is_less = (share < level - MIN_LESS_SLOW) & (log_chance < np.log(MAX_STEP_CHANCE))
    return np.asarray(((gain < 0) | is_less) & (num > 0))


def network_suspects(network: NetworkTransfers) -> list[NetworkSuspect]:
    """Suspects for all slow links and dp groups, each in one suspect."""
    left = network.is_slow.copy()
    groups_left = network.is_group_slow.copy()
    found: list[NetworkSuspect] = []
    for finder in (_one_ended, _hosts, _blocks, _workers, _pairs) if left.any() else ():
        for culprits, workers, links in finder(network, left):
            groups = _shared_groups(network, links, workers)
            if finder is _hosts:
                groups |= _groups_of_host(network, links, workers[0])
            if finder is _pairs:
                groups[:] = False
            suspect = NetworkSuspect(network, culprits, workers, links, groups)
            suspect = suspect if suspect.is_steady else _with_one_end(suspect)
            found.append(suspect)
            left &= ~suspect.links
            # Stray links that show in few steps do not explain a group that is slow in many.
            explained = (groups & suspect.shows_in).sum(axis=1)
            enough = np.maximum(MIN_EXPLAINED_STEPS, MIN_EXPLAINED * groups_left.sum(axis=1))
            groups_left[explained >= enough] = False
    found = _as_blocks(_with_own_groups(found))
    is_unclear = network.is_group_unclear
    for stage in np.flatnonzero(groups_left.any(axis=1) & ~is_unclear).tolist():
        mine = np.zeros_like(groups_left)
        mine[stage] = groups_left[stage]
        members = tuple((dp, stage) for dp in range(network.case.parallelism.dp_size))
        none = np.zeros_like(left)
        found.append(NetworkSuspect(network, (Culprit(stage=stage),), members, none, mine))
    return found


def _with_own_groups(found: list[NetworkSuspect]) -> list[NetworkSuspect]:
    """The suspects, each dp group with the one whose links lose most: it has one slow member."""
    by_loss = sorted(found, key=lambda each: -float(each.network.excess[each.links].sum()))
    taken: set[int] = set()
    own = {}
    for each in by_loss:
        groups = each.groups.copy()
        groups[sorted(taken)] = False
        taken |= set(np.flatnonzero(groups.any(axis=1)).tolist())
        is_own = (groups == each.groups).all()
        own[id(each)] = each if is_own else replace(each, groups=groups)
    return [own[id(each)] for each in found]


def _as_blocks(found: list[NetworkSuspect]) -> list[NetworkSuspect]:
    """The suspects, those of neighbouring ranks joined where hosts are unknown.

    One host, or the network of one stage, is likelier than several workers by themselves.
    """
    if not found or found[0].network.case.replay.window.hosts:
        return found
    alike: dict[tuple[int | None, ...], list[NetworkSuspect]] = {}
    for each in found:
        alike.setdefault(tuple(culprit.stage for culprit in each.culprits), []).append(each)
    return [each for of_stages in alike.values() for each in _joined_block(of_stages)]


def _joined_block(alike: list[NetworkSuspect]) -> list[NetworkSuspect]:
    """Suspects of the same stages as one, if they are of successive dp ranks and as slow."""
    ranks = sorted({dp_rank for each in alike for dp_rank, _ in each.workers})
    ratios = [each.ratio for each in alike]
    is_one = len(alike) == len(ranks) > 1 and np.ptp(ranks) == len(ranks) - 1
    if not is_one or max(ratios) > MAX_RATIO_APART * min(ratios):
        return alike
    first = alike[0]
    if len(ranks) == first.network.case.parallelism.dp_size:
        culprits = tuple(Culprit(stage=each.stage) for each in first.culprits)
    else:
        culprits = tuple(culprit for each in alike for culprit in each.culprits)
    workers = tuple(worker for each in alike for worker in each.workers)
    links, groups = (
        np.any([getattr(each, name) for each in alike], axis=0) for name in ("links", "groups")
    )
    return [NetworkSuspect(first.network, culprits, workers, links, groups)]


def _with_one_end(pair: NetworkSuspect) -> NetworkSuspect:
    """Blames one end of a pair with bursts, which come from network cards rather than cables.

    The end whose other links are slow in the same steps too, else the end without other links,
    unless bursts that went on at the end of a step left its dp group as fast as ever.
    """
    network = pair.network
    if len(pair.culprits) != 2:
        return pair
    links = pair.links.copy()
    ends = [worker for worker in pair.workers if _bursts_elsewhere(pair, worker)]
    if len(ends) == 1:
        links[_touching(network, ends[0][1]), ends[0][0]] = True
    elif not ends:
        spared = _at_the_end(pair) & pair.shows_in & ~network.is_warm_up
        ends = [
            worker
            for worker in pair.workers
            if len(_touching(network, worker[1])) == 1
            and (spared & ~_shared_groups(network, pair.links, (worker,))[worker[1]]).sum()
            < MIN_SPARED_STEPS
        ]
    if len(ends) != 1:
        return pair
    culprits = (_culprit(network, ends[0]),)
    return replace(pair, culprits=culprits, workers=(ends[0],), links=links)


def _at_the_end(pair: NetworkSuspect) -> NDArray[np.bool_]:
    """[steps], whether the last transfer of the pair's link is slow; False without dp groups."""
    case, found = pair.network.case, np.zeros(pair.groups.shape[1], np.bool_)
    ((link, dp_rank),) = np.argwhere(pair.links).tolist()
    for group, each, collectives in zip(case.groups, case.links, case.dp_groups, strict=True):
        if each is None or collectives is None:
            continue
        at = np.flatnonzero(each.link == each.pairs.index(pair.network.pairs[link]))
        steps = np.arange(len(group.steps))
        lane = dp_rank * steps.size + steps
        start_s, own_s = group.replayer.grid.start_s, group.replayer.durations.recorded_s
        last = at[start_s[each.low[at]][:, lane].argmax(axis=0)]
        took_s = np.maximum(own_s[each.low[last], lane], own_s[each.high[last], lane])
        found[group.positions] = took_s > SLOW_RATIO * each.usual_s[last, dp_rank]
    return found


def _bursts_elsewhere(pair: NetworkSuspect, worker: Worker) -> bool:
    """Whether all other links of a worker of a pair are slower in the pair's steps than else."""
    net, dp_rank = pair.network, worker[0]
    shown = pair.shows_in & ~net.is_warm_up
    others = [link for link in _touching(net, worker[1]) if not pair.links[link, dp_rank]]
    if not others or not shown.any() or shown.all():
        return False
    num, num_slow = (each[others, dp_rank].sum(axis=-1) for each in (net.num, net.num_slow))
    else_share = num_slow[:, ~shown].sum(axis=1) / np.maximum(num[:, ~shown].sum(axis=1), 1)
    here_share = num_slow[:, shown].sum(axis=1) / np.maximum(num[:, shown].sum(axis=1), 1)
    if (here_share < MIN_SHARE_ELSEWHERE * float(pair.share[shown].mean())).any():
        return False
    return all(
        _is_beyond_chance(num_slow[at, shown].sum(), num[at, shown].sum(), float(share))
        for at, share in enumerate(else_share)
    )


_Blame = tuple[tuple[Culprit, ...], tuple[Worker, ...], NDArray[np.bool_]]


def _one_ended(network: NetworkTransfers, left: NDArray[np.bool_]) -> Iterator[_Blame]:
    """Workers whose own ends of transfers are slow, and the other ends are not."""
    ends = network.ends_slow
    one = left & (ends.min(axis=2) <= MAX_OTHER_END * ends.max(axis=2))
    by_worker: dict[Worker, list[int]] = {}
    for link, dp_rank in np.argwhere(one).tolist():
        stage = network.pairs[link][int(ends[link, dp_rank].argmax())]
        by_worker.setdefault((dp_rank, stage), []).append(link)
    for worker, of_links in by_worker.items():
        others = [link for (dp, _), each in by_worker.items() if dp == worker[0] for link in each]
        if len(others) > len(of_links) and _shared_end(network, left, worker[0], others):
            continue
        links = np.zeros_like(left)
        links[of_links, worker[0]] = True
        yield (_culprit(network, worker),), (worker,), links


def _shared_end(
    network: NetworkTransfers, left: NDArray[np.bool_], dp_rank: int, links: list[int]
) -> bool:
    """Whether one worker has all of these links, and all of its links are slow.

    Slow ends at both neighbours are then its own fault: one culprit is likelier than two.
    """
    shared = set.intersection(*(set(network.pairs[link]) for link in links))
    return any(left[_touching(network, stage), dp_rank].all() for stage in shared)


def _hosts(network: NetworkTransfers, left: NDArray[np.bool_]) -> Iterator[_Blame]:
    """Hosts with nearly all links to other hosts slow, on two or more of their workers."""
    hosts = network.case.replay.window.hosts
    touched = {
        host
        for link, dp_rank in np.argwhere(left).tolist()
        for stage in network.pairs[link]
        if (host := hosts.get((dp_rank, stage))) is not None
    }
    found = []
    for host in sorted(touched):
        workers = [worker for worker, name in hosts.items() if name == host]
        links = np.zeros_like(left)
        for dp_rank, stage in workers:
            for link in _touching(network, stage):
                low, high = network.pairs[link]
                peer = high if stage == low else low
                links[link, dp_rank] = hosts.get((dp_rank, peer)) != host
        slow = links & left
        hit = tuple(
            worker for worker in workers if slow[_touching(network, worker[1]), worker[0]].any()
        )
        if len(hit) >= 2 and slow.sum() >= max(2, MIN_SHARE_OF_HOST * links.sum()):
            found.append((int(slow.sum()), host, hit, slow))
    # Of two hosts with the same slow links, the one with a slow dp group; else it is unknown.
    shares = [_is_shared_outside(network, slow, hit) for _, _, hit, slow in found]
    found = [
        mine
        for mine, share in zip(found, shares, strict=True)
        if not any(
            mine is not other and (mine[3] == other[3]).all() and others_share >= share
            for other, others_share in zip(found, shares, strict=True)
        )
    ]
    # The host with most slow links first: the neighbours share its links.
    for _, host, hit, slow in sorted(found, key=lambda each: (-each[0], each[1])):
        if (slow & left).sum() >= max(2, MIN_SHARE_OF_HOST * slow.sum()):
            yield (network.case.with_rank(Culprit(host=host)),), hit, slow


def _blocks(network: NetworkTransfers, left: NDArray[np.bool_]) -> Iterator[_Blame]:
    """Workers of a host of unknown name whose links to others are all slow, and no others are.

    With links of two stages only, either end may be the reason.
    """
    if network.case.replay.window.hosts or left.any(axis=1).sum() < 2:
        return
    workers = slow_block(left, np.array(network.pairs), network.rank)
    if workers is None:
        return
    stages = {stage for _, stage in workers}
    is_stage = len(workers) == network.case.parallelism.dp_size and len(stages) == 1
    culprits = (
        (Culprit(stage=workers[0][1]),)
        if is_stage
        else tuple(_culprit(network, worker) for worker in workers)
    )
    yield culprits, tuple(workers), left.copy()


def _groups_of_host(
    network: NetworkTransfers, links: NDArray[np.bool_], worker: Worker
) -> NDArray[np.bool_]:
    """[pp, steps], slow dp groups that join the worker's host with others.

    Also those of workers with no link to another host.
    """
    case = network.case
    hosts, spans = case.replay.window.hosts, spans_hosts(case.replay.window.hosts, case.parallelism)
    mine = tuple(
        each for each, name in hosts.items() if name == hosts[worker] and spans[each[1]] == 1
    )
    return _shared_groups(network, links, mine)


def _is_shared_outside(
    network: NetworkTransfers, links: NDArray[np.bool_], workers: tuple[Worker, ...]
) -> bool:
    """Whether a dp group of these workers on several hosts is slow in most steps of the links."""
    groups = _shared_groups(network, links, workers)
    is_hit = (network.num_slow[links] > 0).any(axis=(0, 2))
    shares = groups[:, is_hit].mean(axis=1)
    spans = spans_hosts(network.case.replay.window.hosts, network.case.parallelism) == 1
    return bool((shares[spans] > MIN_HIT_SHARE).any())


def _workers(network: NetworkTransfers, left: NDArray[np.bool_]) -> Iterator[_Blame]:
    """Workers with all links slow: two or more links, or one and a slow dp group.

    Workers whose dp group is slow with the links most often come first, as they are the likelier
    culprits among neighbours.
    """
    able: list[tuple[int, int, Worker]] = []
    for worker in _at_ends_of(network, left):
        touching = _touching(network, worker[1])
        links = np.zeros_like(left)
        links[touching, worker[0]] = True
        if not left[links].all():
            continue
        num_shared = int(_shared_groups(network, links, (worker,)).sum())
        if len(touching) >= 2 or num_shared:
            able.append((-num_shared, -len(touching), worker))
    for _, _, worker in sorted(able):
        links = np.zeros_like(left)
        links[_touching(network, worker[1]), worker[0]] = True
        if left[links].all():
            yield (_culprit(network, worker),), (worker,), links


def _pairs(network: NetworkTransfers, left: NDArray[np.bool_]) -> Iterator[_Blame]:
    """The remaining links: either end may be the culprit."""
    for link, dp_rank in np.argwhere(left).tolist():
        links = np.zeros_like(left)
        links[link, dp_rank] = True
        ends = tuple((dp_rank, stage) for stage in network.pairs[link])
        yield tuple(_culprit(network, end) for end in ends), ends, links


def _at_ends_of(network: NetworkTransfers, left: NDArray[np.bool_]) -> list[Worker]:
    """Workers with a slow link, ascending."""
    places = np.argwhere(left).tolist()
    return sorted({(dp_rank, stage) for link, dp_rank in places for stage in network.pairs[link]})


def _touching(network: NetworkTransfers, stage: int) -> list[int]:
    """Links of a stage in its replica."""
    return [link for link, pair in enumerate(network.pairs) if stage in pair]


def _shared_groups(
    network: NetworkTransfers, links: NDArray[np.bool_], workers: tuple[Worker, ...]
) -> NDArray[np.bool_]:
    """[pp, steps], dp groups of these workers in steps where they are slow with the links."""
    found = np.zeros_like(network.is_group_slow)
    if not links.any():
        return found
    limit = max(SLOW_RATIO, 1 + MIN_GROUP_SHARE * (_ratio(network, links) - 1))
    is_hit = (network.num_slow[links] > 0).any(axis=(0, 2))
    for stage in {stage for _, stage in workers}:
        found[stage] = (network.group_pace[stage] > limit) & is_hit
        # A burst may end before the collectives, but in steps without bursts they are as usual.
        if not is_hit.all() and (network.group_pace[stage][~is_hit] > limit).mean() > 0.5:
            found[stage] = False
    return found


def _is_beyond_chance(hits: Ints, trials: Ints, typical_share: float) -> NDArray[np.bool_]:
    """Whether each has more hits than chance allows."""
    log_chance = log_binomial_tail(hits, np.maximum(trials, 1), hit_chance(typical_share))
    return np.asarray(log_chance < np.log(MAX_STEP_CHANCE))


def _ratio(network: NetworkTransfers, links: NDArray[np.bool_]) -> float:
    num_slow = network.num_slow[links].sum()
    return float(1 + network.excess[links].sum() / max(1, num_slow))


def _culprit(network: NetworkTransfers, worker: Worker) -> Culprit:
    return network.case.with_rank(worker_culprit(worker, network.case.replay.window.hosts))


# Above this share of slow links, one culprit is believed and several are not.
MAX_SLOW_LINKS = 0.5


def is_network_wide(found: list[NetworkSuspect]) -> bool:
    """Whether most links are slow and no one worker or host explains them."""
    links = [each.links for each in found if each.links.any()]
    return len(links) > 1 and bool(np.any(links, axis=0).mean() > MAX_SLOW_LINKS)


def common_hosts(found: list[NetworkSuspect]) -> tuple[str, str] | None:
    """The two hosts that all of several slow links join; None where there are others.

    Which of the two has the slow network is then unknown, unless a single suspect has them all.
    """
    if len(found) < 2:
        return None
    links = np.any([each.links for each in found], axis=0)
    if links.sum() < 2:
        return None
    net = found[0].network
    hosts = net.case.replay.window.hosts
    joined = {
        frozenset(hosts.get((dp_rank, stage)) for stage in net.pairs[link])
        for link, dp_rank in np.argwhere(links).tolist()
    }
    both = sorted(str(host) for host in joined.pop() if host is not None)
    return (both[0], both[1]) if not joined and len(both) == 2 else None


# A dp group that loses less than this share of the worst suspect's loss is dropped.
MIN_LOSS_SHARE = 0.1


def drop_minor_suspects(case: Case, found: list[NetworkSuspect]) -> list[NetworkSuspect]:
    """The suspects, worst first, without dp groups that lose little beside the worst one."""
    lost = {id(each): _lost_s(case, each) for each in found}
    found = sorted(found, key=lambda each: -lost[id(each)])
    least_s = MIN_LOSS_SHARE * lost[id(found[0])]
    return [each for each in found if each.links.any() or lost[id(each)] >= least_s]


def _lost_s(case: Case, suspect: NetworkSuspect) -> float:
    """Estimated seconds that its slow transfers take too long."""
    net, lost_s = suspect.network, 0.0
    usual_s = [median_of(links.usual_s) for links in case.links if links is not None]
    if usual_s:
        lost_s += float(net.excess[suspect.links].sum()) * median_of(np.array(usual_s))
    for group, each in zip(case.groups, case.dp_groups, strict=True):
        if each is not None:
            at = group.positions
            stage_s = np.bincount(each.stage, each.usual_s, minlength=net.group_pace.shape[0])
            over = np.where(suspect.groups[:, at], net.group_pace[:, at] - 1, 0.0)
            lost_s += float((over * stage_s[:, None]).sum())
    return lost_s
