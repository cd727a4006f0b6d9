"""Whose part of the network is slow: a pair's, a worker's, a host's, a dp group's?"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from app.diagnosis.comings import HALF, stretch
from app.diagnosis.finding import Culprit
from app.diagnosis.grouping import NEARLY_ALL, Worker, of_worker
from app.diagnosis.links import SLOW
from app.diagnosis.network import WHOLE, Network, chance
from app.diagnosis.tails import log_at_least
from app.trace.window import Floats, Ints

# Where one end has at most so many of the slow transfers of the other, they are that one's own.
ONE_END = 0.2
# A worker's whole card is slow if its dp group is by so much of what its pairs are.
SHARED = 0.35
# A step shows anything if so many of its transfers are slow, and more than is typical.
SOME = 0.02
TIMES_TYPICAL = 5.0
# Or if so many are less likely than this.
STEP_BY_CHANCE = 0.01
# Of the steps in which it is mostly slow, for it to be slow all the time.
ALL_THE_TIME = 0.85


@dataclass(frozen=True)
class Trouble:
    """One culprit of slow transfers, with the workers that are meant.

    Shapes: `links` [links, dp] and `groups` [pp, steps], of dp groups, that are slow through it.
    """

    network: Network
    culprits: tuple[Culprit, ...]
    workers: tuple[Worker, ...]
    links: NDArray[np.bool_]
    groups: NDArray[np.bool_]

    @property
    def share(self) -> Floats:
        """[steps], of its transfers between stages, or of its collectives, that are slow.

        Of the direction that is worse: the other one may be well.
        """
        if not self.links.any():
            return np.asarray(self.groups[self.groups.any(axis=1)].mean(axis=0))
        num = self.network.num[self.links].sum(axis=0)
        num_slow = self.network.num_slow[self.links].sum(axis=0)
        return np.asarray((num_slow / np.maximum(num, 1)).max(axis=-1))

    @property
    def is_hit(self) -> NDArray[np.bool_]:
        """[steps], whether each shows it."""
        share = self.share
        if not self.is_steady:
            return self._shows_bursts
        first, end = stretch(share)
        is_hit = np.zeros(share.size, np.bool_)
        is_hit[first:end] = share[first:end] >= HALF
        return is_hit

    @property
    def _shows_bursts(self) -> NDArray[np.bool_]:
        """[steps], by more slow transfers than is typical, or by ones beyond any tail."""
        if not self.links.any():
            return np.asarray(self.share > SOME)
        net = self.network
        typical = net.sound_share(net.num_slow.sum(axis=-1))
        num, num_slow = (each[self.links].sum(axis=0) for each in (net.num, net.num_slow))
        num_far = net.num_far[self.links].sum(axis=0)
        is_hit = self.share > max(SOME, TIMES_TYPICAL * typical)
        # Where a tenth of all transfers stray, no share is so many times that: chance decides.
        is_hit |= _is_odd(num_slow, num, typical).any(axis=-1)
        return np.asarray(is_hit | _is_odd(num_far, num.sum(axis=-1), net.sound_share(net.num_far)))

    @property
    def is_steady(self) -> bool:
        """Whether it is slow all the time, once it has begun, or comes in bursts."""
        share = self.share
        first, end = stretch(share)
        inside = share[first:end]
        return bool(
            (inside >= WHOLE).mean() >= ALL_THE_TIME and inside.sum() >= NEARLY_ALL * share.sum()
        )

    @property
    def ratio(self) -> float:
        """What its slow transfers take over what they should."""
        if self.links.any():
            return _ratio(self.network, self.links)
        return float(self.network.group_pace[self.groups].mean())


def troubles(network: Network) -> list[Trouble]:
    """All of a case's, each slow link and dp group in one of them."""
    left = network.is_slow.copy()
    groups_left = network.is_group_slow.copy()
    found: list[Trouble] = []
    for finder in (_one_ended, _hosts, _workers, _pairs) if left.any() else ():
        for culprits, workers, links in finder(network, left):
            groups = _shared_groups(network, links, workers)
            if finder is _pairs:
                groups[:] = False
            trouble = Trouble(network, culprits, workers, links, groups)
            found.append(trouble if trouble.is_steady else _with_one_end(trouble))
            left &= ~links
            groups_left[groups.any(axis=1)] = False
    for stage in np.flatnonzero(groups_left.any(axis=1)).tolist():
        mine = np.zeros_like(groups_left)
        mine[stage] = groups_left[stage]
        members = tuple((dp, stage) for dp in range(network.case.parallelism.dp_size))
        none = np.zeros_like(left)
        found.append(Trouble(network, (Culprit(stage=stage),), members, none, mine))
    return found


def _with_one_end(pair: Trouble) -> Trouble:
    """Cards go up and down rather than lines: of a pair, the end that has no other link."""
    network = pair.network
    ends = [worker for worker in pair.workers if len(_touching(network, worker[1])) == 1]
    if len(pair.culprits) != 2 or len(ends) != 1:
        return pair
    return replace(pair, culprits=(_named(network, ends[0]),), workers=(ends[0],))


Blamed = tuple[tuple[Culprit, ...], tuple[Worker, ...], NDArray[np.bool_]]


def _one_ended(network: Network, left: NDArray[np.bool_]) -> Iterator[Blamed]:
    """Workers whose own ends of transfers are slow, and not their peers'."""
    ends = network.ends_slow
    one = left & (ends.min(axis=2) <= ONE_END * ends.max(axis=2))
    by_worker: dict[Worker, list[int]] = {}
    for link, dp_rank in np.argwhere(one).tolist():
        stage = network.pairs[link][int(ends[link, dp_rank].argmax())]
        by_worker.setdefault((dp_rank, stage), []).append(link)
    for worker, of_links in by_worker.items():
        links = np.zeros_like(left)
        links[of_links, worker[0]] = True
        yield (_named(network, worker),), (worker,), links


def _hosts(network: Network, left: NDArray[np.bool_]) -> Iterator[Blamed]:
    """Hosts nearly all of whose links to others are slow, of two or more of their workers."""
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
        if len(hit) >= 2 and slow.sum() >= max(2, NEARLY_ALL * links.sum()):
            found.append((int(slow.sum()), host, hit, slow))
    # The one with most slow links first: its neighbours have those that lead to it.
    for _, host, hit, slow in sorted(found, key=lambda each: (-each[0], each[1])):
        if (slow & left).sum() >= max(2, NEARLY_ALL * slow.sum()):
            yield (Culprit(host=host),), hit, slow


def _workers(network: Network, left: NDArray[np.bool_]) -> Iterator[Blamed]:
    """Workers all of whose links are slow, and of one link, if their dp group is slow as well.

    The ones whose dp group is slow come first: of two neighbours, both with two slow links, they
    are more likely to be the reason.
    """
    able: list[tuple[bool, int, Worker]] = []
    for worker in _at_ends_of(network, left):
        touching = _touching(network, worker[1])
        links = np.zeros_like(left)
        links[touching, worker[0]] = True
        if not left[links].all():
            continue
        shares = _shared_groups(network, links, (worker,)).any()
        if len(touching) >= 2 or shares:
            able.append((not shares, -len(touching), worker))
    for _, _, worker in sorted(able):
        links = np.zeros_like(left)
        links[_touching(network, worker[1]), worker[0]] = True
        if left[links].all():
            yield (_named(network, worker),), (worker,), links


def _pairs(network: Network, left: NDArray[np.bool_]) -> Iterator[Blamed]:
    """What is left: one cannot say which end it is."""
    for link, dp_rank in np.argwhere(left).tolist():
        links = np.zeros_like(left)
        links[link, dp_rank] = True
        ends = tuple((dp_rank, stage) for stage in network.pairs[link])
        yield tuple(_named(network, end) for end in ends), ends, links


def _at_ends_of(network: Network, left: NDArray[np.bool_]) -> list[Worker]:
    """Workers with a slow link, ascending."""
    places = np.argwhere(left).tolist()
    return sorted({(dp_rank, stage) for link, dp_rank in places for stage in network.pairs[link]})


def _touching(network: Network, stage: int) -> list[int]:
    """Links of a stage in its replica."""
    return [link for link, pair in enumerate(network.pairs) if stage in pair]


def _shared_groups(
    network: Network, links: NDArray[np.bool_], workers: tuple[Worker, ...]
) -> NDArray[np.bool_]:
    """[pp, steps], dp groups of these workers, in steps where they are as slow as the links."""
    found = np.zeros_like(network.is_group_slow)
    if not links.any():
        return found
    limit = max(SLOW, 1 + SHARED * (_ratio(network, links) - 1))
    is_hit = (network.num_slow[links] > 0).any(axis=(0, 2))
    for stage in {stage for _, stage in workers}:
        found[stage] = (network.group_pace[stage] > limit) & is_hit
        # A burst need not last until the collectives; without one they are as usual.
        if not is_hit.all() and (network.group_pace[stage][~is_hit] > limit).mean() > 0.5:
            found[stage] = False
    return found


def _is_odd(hits: Ints, trials: Ints, typical_share: float) -> NDArray[np.bool_]:
    """Whether each has more hits than chance allows."""
    log_chance = log_at_least(hits, np.maximum(trials, 1), chance(typical_share))
    return np.asarray(log_chance < np.log(STEP_BY_CHANCE))


def _ratio(network: Network, links: NDArray[np.bool_]) -> float:
    num_slow = network.num_slow[links].sum()
    return float(1 + network.excess[links].sum() / max(1, num_slow))


def _named(network: Network, worker: Worker) -> Culprit:
    return network.case.with_rank(of_worker(worker, network.case.replay.window.hosts))
