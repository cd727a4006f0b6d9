"""What slows transfers: a pair, a worker's network card, a host, or a dp group as a whole?

`network_suspects` names the culprits of the slow links and dp groups of `NetworkTransfers`,
`drop_minor_suspects` leaves out those that lose little beside the worst one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.diagnosis.case import Case, evidence
from app.diagnosis.finding import MIN_SHARE_OF_HOST, Worker, worker_culprit
from app.diagnosis.network import links as network_evidence
from app.diagnosis.network import transfers
from app.diagnosis.network.links import NetworkTransfers, network_transfers
from app.diagnosis.network.transfers import BETWEEN_HOSTS, group_places, slow_block
from app.diagnosis.statistics import persistence
from app.diagnosis.statistics.persistence import best_stretch
from app.diagnosis.statistics.robust import hit_chance, log_binomial_tail, quantile_of
from app.engine.medians import median_of
from app.result.finding import Culprit
from app.trace.window import Floats, Ints

Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class SuspectLimits:
    """Which steps and ends show the culprit of slow transfers. All were chosen on made jobs."""

    # A dp group is explained by slow links that show in so many, and this share, of its slow steps.
    min_explained_steps: int = 2
    min_explained: float = 0.2
    # Bursts of a network card that last until the end of so many steps slow its dp group in one.
    min_spared_steps: int = 2
    # A worker's other links have bursts if so much of the pair's share of their transfers is slow.
    min_share_elsewhere: float = 0.1
    # Workers of one block (a host) are slow by the same cause, so that their ratios are this near.
    max_ratio_apart: float = 1.5
    # A link is slow at one end if the other end has at most this share of its slow transfers.
    max_other_end: float = 0.2
    # A dp group is slow with a worker's links if its excess is this share of theirs.
    min_group_share: float = 0.35
    # A step shows the suspect if this share of its transfers is slow, so many times the typical
    # share,
    min_shown_share: float = 0.02
    min_times_typical: float = 5.0
    # or if so many slow ones have less than this probability: one step of 100.
    max_step_chance: float = 0.01
    # A link that takes so many times as long all the time has nearly all of its transfers slow.
    min_burst_ratio: float = 2.0
    # A step so far below the stretch's share, and by no chance, is a pause between bursts.
    min_less_slow: float = 0.25
    # The direction with less than this of the other one's share is not slow.
    min_other_direction: float = 0.5
    # Above this share of slow links, one culprit is believed and several are not.
    max_slow_links: float = 0.5
    # A dp group that loses less than this share of the worst suspect's loss is dropped.
    min_loss_share: float = 0.1


LIMITS = SuspectLimits()
# A stretch's share of slow transfers is first taken from its worst steps, then estimated again.
_LEVEL_QUANTILE = 0.9
_STRETCH_TURNS = 3


@dataclass(frozen=True, eq=False)
class NetworkSuspect:
    """A suspect of slow transfers, with its workers.

    Shapes: `links` [links, dp] and `groups` [pp, steps] are the links and dp groups that it slows.
    """

    network: NetworkTransfers
    culprits: tuple[Culprit, ...]
    workers: tuple[Worker, ...]
    links: Flags
    groups: Flags

    @cached_property
    def has_links(self) -> bool:
        """Whether it slows links, not dp groups alone."""
        return bool(self.links.any())

    @cached_property
    def _transfers(self) -> tuple[Ints, Ints]:
        """[steps, 2], transfers of its links by direction, and the slow ones."""
        num, num_slow = (
            counts[self.links].sum(axis=0) for counts in (self.network.num, self.network.num_slow)
        )
        return num, num_slow

    @cached_property
    def _slow_groups(self) -> Flags:
        """[dp groups, steps] of those that it slows in some step."""
        return np.asarray(self.groups[self.groups.any(axis=1)])

    @cached_property
    def share(self) -> Floats:
        """[steps], share of its transfers (in the worse direction) or collectives that are slow."""
        if not self.has_links:
            return np.asarray(self._slow_groups.mean(axis=0))
        num, num_slow = self._transfers
        return np.asarray((num_slow / np.maximum(num, 1)).max(axis=-1))

    @cached_property
    def shows_in(self) -> Flags:
        """[steps], whether each shows the suspect."""
        return self._stretch.is_slow if self.is_steady else self._shows_bursts

    @cached_property
    def _stretch(self) -> "_SlowStretch":
        net = self.network
        if not self.has_links:
            num_slow = self._slow_groups.sum(axis=0)
            num = np.where(net.is_warm_up, 0, len(self._slow_groups))
            return _slow_stretch(num_slow, num, 0.0, num_slow.astype(np.float64))
        num, num_slow = self._transfers
        num = np.where(net.is_warm_up[:, None], 0, num)
        share = num_slow.sum(axis=0) / np.maximum(num.sum(axis=0), 1)
        # One direction alone, where the other one is not slow.
        used = share >= LIMITS.min_other_direction * share.max()
        healthy = net.healthy_share(net.slow, self.links)
        return _slow_stretch(
            num_slow[:, used].sum(axis=1),
            num[:, used].sum(axis=1),
            healthy,
            net.excess[self.links].sum(axis=0),
        )

    @cached_property
    def _shows_bursts(self) -> Flags:
        """[steps], whether more transfers are slow, or extreme, than on a healthy link."""
        if not self.has_links:
            return np.asarray(self.share > LIMITS.min_shown_share)
        net, (num, num_slow) = self.network, self._transfers
        typical = net.healthy_share(net.slow, self.links)
        is_hit = self.share > max(LIMITS.min_shown_share, LIMITS.min_times_typical * typical)
        # With many stray transfers no share is so many times the typical one: probability decides.
        is_hit |= _is_beyond_chance(num_slow, num, typical).any(axis=-1)
        usually_far = net.healthy_share(net.num_far, self.links)
        num_far = net.num_far[self.links].sum(axis=0)
        return np.asarray(is_hit | _is_beyond_chance(num_far, num.sum(axis=-1), usually_far))

    @cached_property
    def is_steady(self) -> bool:
        """Whether it is slow all the time since its onset, not in bursts."""
        # What makes some transfers far longer, and others not, comes in bursts within the steps.
        is_partial = self._stretch.level < network_evidence.LIMITS.min_slow_share
        return self._stretch.lasts and not (is_partial and self.ratio >= LIMITS.min_burst_ratio)

    @property
    def lost(self) -> float:
        """By how much its links' transfers take longer, summed up."""
        return float(self.network.excess[self.links].sum())

    @cached_property
    def ratio(self) -> float:
        """Duration of its slow transfers over the expected one."""
        if self.has_links:
            return self.network.ratio_of(self.links)
        return float(self.network.group_pace[self.groups].mean())


class _SlowStretch(NamedTuple):
    """The steps in which a suspect is slow most likely.

    `level` is the share of slow transfers in the stretch. `is_slow` [steps]: steps of the stretch
    that are as slow as it is. `lasts`: it is slow all the time, and hardly outside of it.
    """

    level: float
    is_slow: Flags
    lasts: bool


def _slow_stretch(num_slow: Ints, num: Ints, healthy: float, excess: Floats) -> _SlowStretch:
    """The stretch with the largest likelihood of one share of slow transfers, and its steps.

    Outside of the stretch the share is the healthy one. Whether a suspect is slow all the time is
    judged inside, so that healthy steps before the onset do not count. All are by step; `excess`
    is by how much the transfers take longer.
    """
    share, least = num_slow / np.maximum(num, 1), LIMITS.min_shown_share
    healthy = min(max(healthy, least), 0.5)
    level = quantile_of(share, _LEVEL_QUANTILE)
    first, end, gain = 0, share.size, np.zeros(share.size)
    for _ in range(_STRETCH_TURNS):
        level = min(max(level, healthy + least), 1 - least)
        gain = num_slow * np.log(level / healthy)
        gain += (num - num_slow) * np.log((1 - level) / (1 - healthy))
        first, end = best_stretch(gain)
        level = float(num_slow[first:end].sum() / max(1, int(num[first:end].sum())))
    # Quiet is a healthy step, or one less slow than chance allows at this level.
    missed = min(max(1 - level, least), 0.99)
    log_chance = log_binomial_tail(num - num_slow, np.maximum(num, 1), missed)
    is_less = (share < level - LIMITS.min_less_slow) & (log_chance < np.log(LIMITS.max_step_chance))
    is_slow = ~(((gain < 0) | is_less) & (num > 0))
    is_slow[:first] = is_slow[end:] = False
    is_inside = excess[first:end].sum() >= MIN_SHARE_OF_HOST * excess.sum()
    is_steady = is_slow[first:end].mean() >= persistence.LIMITS.min_steady_share
    return _SlowStretch(level, is_slow, bool(is_steady and is_inside))


@evidence
def network_suspects(case: Case) -> list[NetworkSuspect]:
    """Suspects for all slow links and dp groups, none of which is in two suspects."""
    network = network_transfers(case)
    left, groups_left = network.is_slow.copy(), network.is_group_slow.copy()
    suspects: list[NetworkSuspect] = []
    for search in (_one_ended, _hosts, _blocks, _workers, _pairs) if left.any() else ():
        for suspect in search(network, left):
            if not suspect.is_steady:
                suspect = _with_one_end(suspect)
            suspects.append(suspect)
            left &= ~suspect.links
            # Stray links that show in few steps do not explain a group that is slow in many.
            explained = (suspect.groups & suspect.shows_in).sum(axis=1)
            enough = LIMITS.min_explained * groups_left.sum(axis=1)
            groups_left[explained >= np.maximum(LIMITS.min_explained_steps, enough)] = False
    suspects = _as_blocks(_with_own_groups(suspects))
    is_unclear, dp_ranks = network.is_group_unclear, range(case.parallelism.dp_size)
    for stage in np.flatnonzero(groups_left.any(axis=1) & ~is_unclear).tolist():
        groups = np.zeros_like(groups_left)
        groups[stage] = groups_left[stage]
        members = [(dp_rank, stage) for dp_rank in dp_ranks]
        culprits = (Culprit(stage=stage),)
        suspects.append(_suspect(network, members, np.zeros_like(left), culprits, groups))
    return suspects


def _suspect(
    network: NetworkTransfers,
    workers: Sequence[Worker],
    links: Flags,
    culprits: tuple[Culprit, ...] = (),
    groups: Flags | None = None,
) -> NetworkSuspect:
    """A suspect; by default the workers are the culprits, and their dp groups slow with them."""
    case, workers = network.case, tuple(workers)
    if not culprits:
        hosts = case.replay.window.hosts
        culprits = tuple(case.with_rank(worker_culprit(worker, hosts)) for worker in workers)
    groups = _shared_groups(network, links, workers) if groups is None else groups
    return NetworkSuspect(network, culprits, workers, links, groups)


def _with_own_groups(suspects: list[NetworkSuspect]) -> list[NetworkSuspect]:
    """The suspects; a dp group is of the one whose links lose most, as it has one slow member."""
    own: dict[NetworkSuspect, NetworkSuspect] = {}
    for suspect in sorted(suspects, key=lambda suspect: -suspect.lost):
        groups = suspect.groups.copy()
        for other in own.values():
            groups[other.groups.any(axis=1)] = False
        is_own = (groups == suspect.groups).all()
        own[suspect] = suspect if is_own else replace(suspect, groups=groups)
    return [own[suspect] for suspect in suspects]


def _as_blocks(suspects: list[NetworkSuspect]) -> list[NetworkSuspect]:
    """The suspects, those of neighbouring ranks joined where hosts are unknown.

    One host, or the network of one stage, is likelier than several workers by themselves.
    """
    if not suspects or suspects[0].network.case.replay.window.hosts:
        return suspects
    by_stages: dict[tuple[int | None, ...], list[NetworkSuspect]] = {}
    for suspect in suspects:
        stages = tuple(culprit.stage for culprit in suspect.culprits)
        by_stages.setdefault(stages, []).append(suspect)
    return [suspect for alike in by_stages.values() for suspect in _joined(alike)]


def _joined(alike: list[NetworkSuspect]) -> list[NetworkSuspect]:
    """Suspects of the same stages as one, if they are of successive dp ranks and as slow."""
    ranks = sorted({dp_rank for suspect in alike for dp_rank, _ in suspect.workers})
    ratios = [suspect.ratio for suspect in alike]
    is_one = len(alike) == len(ranks) > 1 and np.ptp(ranks) == len(ranks) - 1
    if not is_one or max(ratios) > LIMITS.max_ratio_apart * min(ratios):
        return alike
    network = alike[0].network
    culprits = tuple(culprit for suspect in alike for culprit in suspect.culprits)
    if len(ranks) == network.case.parallelism.dp_size:
        culprits = tuple(Culprit(stage=culprit.stage) for culprit in alike[0].culprits)
    workers = [worker for suspect in alike for worker in suspect.workers]
    groups = np.any([suspect.groups for suspect in alike], axis=0)
    return [_suspect(network, workers, any_links(alike), culprits, groups)]


def _with_one_end(pair: NetworkSuspect) -> NetworkSuspect:
    """Blames one end of a pair with bursts, which come from network cards rather than cables.

    The end whose other links are slow in the same steps too, else the end without other links,
    unless bursts that went on at the end of a step left its dp group as fast as ever.
    """
    network = pair.network
    if len(pair.culprits) != 2:
        return pair
    links = pair.links
    ends = [worker for worker in pair.workers if _bursts_elsewhere(pair, worker)]
    if len(ends) == 1:
        links = links | _links_of(network, ends[0])
    elif not ends:
        spared = _at_the_end(pair) & pair.shows_in & ~network.is_warm_up
        ends = [
            worker
            for worker in pair.workers
            if _links_of(network, worker).sum() == 1
            and (spared & ~_shared_groups(network, links, (worker,))[worker[1]]).sum()
            < LIMITS.min_spared_steps
        ]
    return pair if len(ends) != 1 else _suspect(network, ends, links, groups=pair.groups)


def _at_the_end(pair: NetworkSuspect) -> Flags:
    """[steps], whether the last transfer of the pair's link is slow; False without dp groups."""
    net, is_slow = pair.network, np.zeros(pair.groups.shape[1], np.bool_)
    ((link, dp_rank),) = np.argwhere(pair.links).tolist()
    for group, links, collectives in zip(net.case.groups, net.links, net.dp_groups, strict=True):
        if links is None or collectives is None:
            continue
        at, num_steps = np.flatnonzero(links.link == link), len(group.steps)
        lane = dp_rank * num_steps + np.arange(num_steps)
        start_s, own_s = group.replayer.grid.start_s, group.replayer.durations.recorded_s
        last = at[start_s[links.low[at]][:, lane].argmax(axis=0)]
        took_s = np.maximum(own_s[links.low[last], lane], own_s[links.high[last], lane])
        is_slow[group.positions] = (
            took_s > transfers.LIMITS.slow_ratio * links.usual_s[last, dp_rank]
        )
    return is_slow


def _bursts_elsewhere(pair: NetworkSuspect, worker: Worker) -> bool:
    """Whether all other links of a worker of a pair are slower in the pair's steps than else."""
    net, shown = pair.network, pair.shows_in & ~pair.network.is_warm_up
    others = _links_of(net, worker) & ~pair.links
    if not others.any() or not shown.any() or shown.all():
        return False
    (num, num_else), (num_slow, num_slow_else) = (
        (counts[others][:, shown].sum(axis=(1, 2)), counts[others][:, ~shown].sum(axis=(1, 2)))
        for counts in (net.num, net.num_slow)
    )
    here_share = num_slow / np.maximum(num, 1)
    if (here_share < LIMITS.min_share_elsewhere * float(pair.share[shown].mean())).any():
        return False
    return all(
        _is_beyond_chance(num_slow[at], num[at], float(share))
        for at, share in enumerate(num_slow_else / np.maximum(num_else, 1))
    )


def _one_ended(network: NetworkTransfers, left: Flags) -> Iterator[NetworkSuspect]:
    """Workers whose own ends of transfers are slow, and the other ends are not."""
    ends = network.ends_slow
    one_ended = left & (ends.min(axis=2) <= LIMITS.max_other_end * ends.max(axis=2))
    by_worker: dict[Worker, list[int]] = {}
    for link, dp_rank in np.argwhere(one_ended).tolist():
        stage = network.pairs[link][int(ends[link, dp_rank].argmax())]
        by_worker.setdefault((dp_rank, stage), []).append(link)
    of_replica: dict[int, list[int]] = {}
    for (dp_rank, _), own in by_worker.items():
        of_replica.setdefault(dp_rank, []).extend(own)
    for worker, own in by_worker.items():
        others = of_replica[worker[0]]
        if len(others) > len(own) and _shared_end(network, left, worker[0], others):
            continue
        links = np.zeros_like(left)
        links[own, worker[0]] = True
        yield _suspect(network, (worker,), links)


def _shared_end(network: NetworkTransfers, left: Flags, dp_rank: int, links: list[int]) -> bool:
    """Whether one worker has all of these links, and all of its links are slow.

    Slow ends at both neighbours are then its own fault: one culprit is likelier than two.
    """
    shared = set.intersection(*(set(network.pairs[link]) for link in links))
    return any(left[_links_of(network, (dp_rank, stage))].all() for stage in shared)


def _hosts(network: NetworkTransfers, left: Flags) -> Iterator[NetworkSuspect]:
    """Hosts with nearly all links to other hosts slow, on two or more of their workers."""
    case, hosts = network.case, network.case.replay.window.hosts
    is_across = np.equal(group_places(case.host_numbers), BETWEEN_HOSTS)
    host_of_ends = case.host_numbers[:, np.array(network.pairs)].transpose(1, 0, 2)
    slow_hosts = []
    for number, host in enumerate(sorted(set(hosts.values()))):
        is_inside = host_of_ends == number
        links = is_inside[..., 0] != is_inside[..., 1]
        slow, workers = links & left, [worker for worker, name in hosts.items() if name == host]
        hit = tuple(worker for worker in workers if slow[_links_of(network, worker)].any())
        if len(hit) >= 2 and slow.sum() >= max(2, MIN_SHARE_OF_HOST * links.sum()):
            # Also dp groups that join its workers without a link to another host.
            across = tuple(worker for worker in workers if is_across[worker[1]])
            groups = _shared_groups(network, slow, hit)
            # Whether a dp group on several hosts is slow in most steps of the links.
            shares = groups[is_across][:, (network.slow[slow] > 0).any(axis=0)].mean(axis=1)
            groups |= _shared_groups(network, slow, across)
            culprits = (case.with_rank(Culprit(host=host)),)
            suspect = _suspect(network, hit, slow, culprits, groups)
            has_group = bool((shares > persistence.LIMITS.min_hit_share).any())
            slow_hosts.append((suspect, has_group))
    # Of two hosts with the same slow links, the one with a slow dp group; else it is unknown.
    clear = [
        suspect
        for suspect, has_group in slow_hosts
        if not any(
            other is not suspect and (other.links == suspect.links).all() and other_has >= has_group
            for other, other_has in slow_hosts
        )
    ]
    # The host with most slow links first: the neighbours share its links.
    for suspect in sorted(clear, key=lambda suspect: -int(suspect.links.sum())):
        slow = suspect.links
        if (slow & left).sum() >= max(2, MIN_SHARE_OF_HOST * slow.sum()):
            yield suspect


def _blocks(network: NetworkTransfers, left: Flags) -> Iterator[NetworkSuspect]:
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
    culprits = (Culprit(stage=workers[0][1]),) if is_stage else ()
    yield _suspect(network, workers, left.copy(), culprits)


def _workers(network: NetworkTransfers, left: Flags) -> Iterator[NetworkSuspect]:
    """Workers with all links slow: two or more links, or one and a slow dp group.

    Workers whose dp group is slow with the links most often come first, as they are the likelier
    culprits among neighbours.
    """
    able: list[tuple[int, int, Worker]] = []
    for worker in set().union(*network.ends_of(left)):
        links = _links_of(network, worker)
        if left[links].all():
            num_shared = int(_shared_groups(network, links, (worker,)).sum())
            if links.sum() >= 2 or num_shared:
                able.append((-num_shared, -int(links.sum()), worker))
    for _, _, worker in sorted(able):
        links = _links_of(network, worker)
        if left[links].all():
            yield _suspect(network, (worker,), links)


def _pairs(network: NetworkTransfers, left: Flags) -> Iterator[NetworkSuspect]:
    """The remaining links: either end may be the culprit."""
    for link, dp_rank in np.argwhere(left).tolist():
        links = np.zeros_like(left)
        links[link, dp_rank] = True
        ends = [(dp_rank, stage) for stage in network.pairs[link]]
        yield _suspect(network, ends, links, groups=np.zeros_like(network.is_group_slow))


def _links_of(network: NetworkTransfers, worker: Worker) -> Flags:
    """[links, dp], all links of a worker."""
    links, (dp_rank, stage) = np.zeros(network.place.shape, np.bool_), worker
    links[[stage in pair for pair in network.pairs], dp_rank] = True
    return links


def _shared_groups(network: NetworkTransfers, links: Flags, workers: tuple[Worker, ...]) -> Flags:
    """[pp, steps], dp groups of these workers in steps where they are slow with the links."""
    groups = np.zeros_like(network.is_group_slow)
    if not links.any():
        return groups
    excess = LIMITS.min_group_share * (network.ratio_of(links) - 1)
    is_long = network.group_pace > max(transfers.LIMITS.slow_ratio, 1 + excess)
    is_hit = (network.slow[links] > 0).any(axis=0)
    for stage in {stage for _, stage in workers}:
        # A burst may end before the collectives, but in steps without bursts they are as usual.
        if is_hit.all() or is_long[stage, ~is_hit].mean() <= 0.5:
            groups[stage] = is_long[stage] & is_hit
    return groups


def _is_beyond_chance(hits: Ints, trials: Ints, typical_share: float) -> Flags:
    """Whether each has more hits than chance allows."""
    log_chance = log_binomial_tail(hits, np.maximum(trials, 1), hit_chance(typical_share))
    return np.asarray(log_chance < np.log(LIMITS.max_step_chance))


def any_links(suspects: Sequence[NetworkSuspect]) -> Flags:
    """[links, dp], links that any of the suspects slows."""
    return np.asarray(np.any([suspect.links for suspect in suspects], axis=0))


def is_network_wide(suspects: Sequence[NetworkSuspect]) -> bool:
    """Whether most links are slow and no one worker or host explains them."""
    num_with_links = sum(suspect.has_links for suspect in suspects)
    return num_with_links > 1 and bool(any_links(suspects).mean() > LIMITS.max_slow_links)


def common_hosts(suspects: Sequence[NetworkSuspect]) -> tuple[str, str] | None:
    """The two hosts that all of several slow links join; None where there are others.

    Which of the two has the slow network is then unknown, unless a single suspect has them all.
    """
    links, net = any_links(suspects), suspects[0].network
    if len(suspects) < 2 or links.sum() < 2:
        return None
    hosts = net.case.replay.window.hosts
    joined = {frozenset(map(hosts.get, workers)) for workers in net.ends_of(links)}
    both = sorted(str(host) for host in joined.pop() if host is not None)
    return (both[0], both[1]) if not joined and len(both) == 2 else None


def drop_minor_suspects(suspects: Sequence[NetworkSuspect]) -> list[NetworkSuspect]:
    """The suspects, worst first, without dp groups that lose little beside the worst one."""
    lost_s = {suspect: _lost_s(suspect) for suspect in suspects}
    least_s = LIMITS.min_loss_share * max(lost_s.values())
    in_order = sorted(suspects, key=lambda suspect: -lost_s[suspect])
    return [suspect for suspect in in_order if suspect.has_links or lost_s[suspect] >= least_s]


def _lost_s(suspect: NetworkSuspect) -> float:
    """Estimated seconds that its slow transfers take too long."""
    net, lost_s = suspect.network, 0.0
    usual_s = [median_of(links.usual_s) for links in net.links if links is not None]
    if usual_s:
        lost_s += suspect.lost * median_of(np.array(usual_s))
    for group, collectives in zip(net.case.groups, net.dp_groups, strict=True):
        if collectives is not None:
            at, num_stages = group.positions, len(net.group_pace)
            stage_s = np.bincount(collectives.stage, collectives.usual_s, minlength=num_stages)
            over = np.where(suspect.groups[:, at], net.group_pace[:, at] - 1, 0.0)
            lost_s += float((over * stage_s[:, None]).sum())
    return lost_s
