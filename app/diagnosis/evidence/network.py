"""Which links and dp groups of a case are slow, and who is to blame: a pair, a worker, a host?

`network_transfers` joins the case's transfers, `network_suspects` names the culprits, and
`drop_minor_suspects` leaves out those that lose little beside the worst one.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from app.diagnosis.case import Case
from app.diagnosis.evidence.links import MAX_FEW_LINKS, SLOW_RATIO, StagePair, same_host
from app.diagnosis.finding import MIN_SHARE_OF_HOST, Culprit, Worker, worker_culprit
from app.diagnosis.statistics.persistence import MIN_HIT_SHARE, densest_stretch
from app.diagnosis.statistics.robust import CHANCE_MARGIN, MIN_CHANCE, log_binomial_tail
from app.trace.window import Floats, Ints

# Probability that chance makes any of all links look slow.
MAX_CHANCE = 1e-6
# Share of slow transfers that a healthy link may have.
MAX_STRAY_SHARE = 0.05
# A link is slow all the time if this share of its transfers is.
MIN_SLOW_SHARE = 0.75
# Stages differ in parameters, the end stages more as they hold embeddings: collectives above these
# ratios take longer than that explains.
MAX_INNER_STAGE_RATIO = 1.5
MAX_END_STAGE_RATIO = 2.5
# A step's collectives are slow above this ratio; the probability of one such step by chance, and of
# as many as were seen.
GROUP_SLOW_RATIO = 1.5
GROUP_CHANCE = 0.02
MAX_GROUP_CHANCE = 1e-3
# A stage's collectives are compared with its own faster steps.
FAST_STEP_QUANTILE = 0.25
# Fewer slow steps show nothing.
MIN_STEPS = 2
# The only group's slow steps are so many times further from the others than these differ among
# themselves, which is taken to be at least this share.
MIN_TIMES_APART = 3.0
MIN_DIFFERENCE = 0.1


@dataclass(frozen=True)
class NetworkTransfers:
    """All transfers of a case, of all groups together.

    Shapes: `num` and `num_slow` [links, dp, steps, 2], `num_far` and `excess`
    [links, dp, steps] and `ends_slow` [links, dp, 2] as of `Links`; `group_pace` [pp, steps],
    1.0 where there is no dp group.
    """

    case: Case
    pairs: tuple[StagePair, ...]
    num: Ints
    num_slow: Ints
    num_far: Ints
    excess: Floats
    ends_slow: Ints
    group_pace: Floats

    @cached_property
    def typical_share(self) -> float:
        """Share of slow transfers on the typical link in the usual steps.

        With few links, at least the best link's share, up to MAX_STRAY_SHARE.
        """
        num_slow = self.num_slow.sum(axis=-1)
        typical, shares = self._typical(num_slow), self._shares(num_slow)
        if not 1 < shares.size <= MAX_FEW_LINKS:
            return typical
        return max(typical, min(MAX_STRAY_SHARE, float(shares.min())))

    @cached_property
    def is_slow(self) -> NDArray[np.bool_]:
        """[links, dp], links with far more slow transfers than the typical one."""
        slow = self._is_more(self.num_slow.sum(axis=-1), self.typical_share)
        slow |= self._is_more(self.num_far, self._typical(self.num_far))
        if 1 < slow.size <= MAX_FEW_LINKS and (self.case.replay.window.hosts or slow.shape[1] > 1):
            slow |= self._is_far
        return slow & ~self._is_topology if slow.any() else slow

    def healthy_share(self, num_hits: Ints) -> float:
        """Share of hits [links, dp, steps] on the typical healthy link."""
        healthy = ~self.is_slow
        if not healthy.any():
            return self._typical(num_hits)
        hits, trials = self._of_usual_steps(num_hits)[healthy], self._trials[healthy]
        shares = np.sort(hits / np.maximum(trials, 1))
        return float(shares[(shares.size - 1) // 2])

    @property
    def is_one_workers(self) -> bool:
        """Whether all links of a kind end at one worker, which may slow all of them."""
        sizes = self.case.parallelism
        place = same_host(self.case.replay.window.hosts, sizes)
        ends: dict[int, list[set[tuple[int, int]]]] = {}
        for dp_rank in range(sizes.dp_size):
            for low, high in self.pairs:
                of_kind = ends.setdefault(int(place[dp_rank, low, high]), [])
                of_kind.append({(dp_rank, low), (dp_rank, high)})
        return any(set.intersection(*of_kind) for of_kind in ends.values())

    @property
    def _is_far(self) -> NDArray[np.bool_]:
        """[links, dp], of few links, those with far more extreme transfers than the best one."""
        return self._is_more(self.num_far, float(self._shares(self.num_far).min()))

    @cached_property
    def _trials(self) -> Ints:
        """[links, dp], transfers in the usual steps."""
        return self._of_usual_steps(self.num.sum(axis=-1))

    def _shares(self, num_hits: Ints) -> Floats:
        """[links, dp], hits as a share of the transfers in the usual steps."""
        return np.asarray(self._of_usual_steps(num_hits) / np.maximum(self._trials, 1))

    def _is_more(self, num_hits: Ints, typical_share: float) -> NDArray[np.bool_]:
        hits, trials = self._of_usual_steps(num_hits), self._trials
        if not hits.any():
            return np.zeros(hits.shape, np.bool_)
        return _is_unlikely(hits, np.maximum(trials, 1), typical_share)

    def _typical(self, num_hits: Ints) -> float:
        """Lower median of the share over links; with few links, the share in a good step."""
        hits, trials = self._of_usual_steps(num_hits), self._trials
        if not hits.size:
            return 0.0
        if hits.size <= MAX_FEW_LINKS:
            by_step = num_hits.sum(axis=(0, 1)) / np.maximum(self.num.sum(axis=(0, 1, 3)), 1)
            return float(np.quantile(by_step, FAST_STEP_QUANTILE))
        shares = np.sort(hits / np.maximum(trials, 1), axis=None)
        return float(shares[(shares.size - 1) // 2])

    @cached_property
    def is_group_slow(self) -> NDArray[np.bool_]:
        """[pp, steps], whether each dp group is slow, by its collectives alone."""
        pace = self.group_pace
        if pace.max() <= min(SLOW_RATIO, GROUP_SLOW_RATIO * pace.min()):
            return np.zeros(pace.shape, np.bool_)
        faster = np.quantile(pace, FAST_STEP_QUANTILE, axis=1, keepdims=True)
        slower: NDArray[np.bool_] = pace > GROUP_SLOW_RATIO * faster
        hits = slower.sum(axis=1)
        trials = np.full(hits.size, pace.shape[1])
        typical = np.sort(hits)[(hits.size - 1) // 2] / pace.shape[1] if hits.size > 1 else 0.0
        by_chance = min(0.5, max(CHANCE_MARGIN * typical, GROUP_CHANCE))
        more = log_binomial_tail(hits, trials, by_chance) + np.log(hits.size) < np.log(
            MAX_GROUP_CHANCE
        )
        limit = np.full(hits.size, MAX_INNER_STAGE_RATIO)
        limit[[0, -1]] = MAX_END_STAGE_RATIO
        always = np.median(pace, axis=1) >= limit
        if hits.size == 1:
            more &= self._is_bimodal(pace[0], slower[0])
        now_and_then = slower & (more & (hits >= MIN_STEPS))[:, None]
        return np.asarray(now_and_then | ((pace > SLOW_RATIO) & always[:, None]))

    @staticmethod
    def _is_bimodal(pace: Floats, slower: NDArray[np.bool_]) -> bool:
        """Whether the slow steps of the only group stand out from others that are alike.

        On busy hosts, or with tiny messages, all steps vary.
        """
        others, slow = np.sort(pace[~slower]), pace[slower]
        if not others.size or not slow.size:
            return False
        inner = others[others.size // 8 : others.size - others.size // 8]
        spread = float(inner[-1] - inner[0])
        return bool(
            np.median(slow) - inner[-1]
            > MIN_TIMES_APART * max(spread, MIN_DIFFERENCE * float(inner[0]))
        )

    def _of_usual_steps(self, counts: Ints) -> Ints:
        """[links, dp], summed over the usual steps."""
        return np.asarray(counts[..., self.case.is_usual].sum(axis=-1))

    @property
    def _is_topology(self) -> NDArray[np.bool_]:
        """[links, dp], links slow on all dp ranks alike: the topology, where hosts are unknown."""
        hits, trials = self._of_usual_steps(self.num_slow.sum(axis=-1)), self._trials
        if self.case.replay.window.hosts or hits.shape[1] < 2:
            return np.zeros(hits.shape, np.bool_)
        always = (hits >= MIN_SLOW_SHARE * trials).all(axis=1, keepdims=True)
        return np.broadcast_to(always, hits.shape)


def hit_chance(typical_share: float) -> float:
    """Probability of a hit on a healthy link."""
    return min(0.5, max(CHANCE_MARGIN * typical_share, MIN_CHANCE))


def _is_unlikely(hits: Ints, trials: Ints, typical_share: float) -> NDArray[np.bool_]:
    """Whether so many hits on any of these links are beyond chance."""
    log_chance = log_binomial_tail(hits, trials, hit_chance(typical_share)) + np.log(
        max(1, hits.size)
    )
    return np.asarray(log_chance < np.log(MAX_CHANCE))


def network_transfers(case: Case) -> NetworkTransfers:
    """The case's links and dp groups of all groups of steps."""
    sizes, num_steps = case.parallelism, case.steps.size
    group_pace = _group_pace(case)
    if len(case.groups) == 1 and (only := case.links[0]):
        return NetworkTransfers(
            case, only.pairs, only.num, only.num_slow, only.num_far, only.excess, only.ends_slow,
            group_pace,
        )  # fmt: skip
    found = [(group, each) for group, each in zip(case.groups, case.links, strict=True) if each]
    pairs = tuple(sorted({pair for _, each in found for pair in each.pairs}))
    shape = (len(pairs), sizes.dp_size, num_steps)
    num, num_slow = (np.zeros((*shape, 2), np.int64) for _ in range(2))
    num_far = np.zeros(shape, np.int64)
    excess = np.zeros(shape)
    ends_slow = np.zeros((len(pairs), sizes.dp_size, 2), np.int64)
    for group, each in found:
        mine = np.array([pairs.index(pair) for pair in each.pairs])
        cells = np.ix_(mine, np.arange(sizes.dp_size), group.positions)
        num[cells], num_slow[cells] = each.num, each.num_slow
        num_far[cells], excess[cells] = each.num_far, each.excess
        ends_slow[mine] += each.ends_slow
    return NetworkTransfers(case, pairs, num, num_slow, num_far, excess, ends_slow, group_pace)


def _group_pace(case: Case) -> Floats:
    pace = np.ones((case.parallelism.pp_size, case.steps.size))
    for group, of_stages in zip(case.groups, case.dp_groups, strict=True):
        if of_stages is not None:
            pace[:, group.positions] = of_stages.pace
    return pace


# A link is slow at one end if the other end has at most this share of its slow transfers.
MAX_OTHER_END = 0.2
# A dp group is slow with a worker's links if its excess is this share of theirs.
MIN_GROUP_SHARE = 0.35
# A step shows the suspect if this share of its transfers is slow, so many times the typical share,
MIN_SHOWN_SHARE = 0.02
MIN_TIMES_TYPICAL = 5.0
# or if so many slow ones have less than this probability.
MAX_STEP_CHANCE = 0.01
# Share of steps in its densest stretch for a suspect to be slow all the time.
MIN_STEADY_SHARE = 0.85


@dataclass(frozen=True)
class NetworkSuspect:
    """One suspect of slow transfers, with its workers.

    Shapes: `links` [links, dp] and `groups` [pp, steps] are the links and dp groups that it slows.
    """

    network: NetworkTransfers
    culprits: tuple[Culprit, ...]
    workers: tuple[Worker, ...]
    links: NDArray[np.bool_]
    groups: NDArray[np.bool_]

    @property
    def share(self) -> Floats:
        """[steps], share of its transfers (in the worse direction) or collectives that are slow."""
        if not self.links.any():
            return np.asarray(self.groups[self.groups.any(axis=1)].mean(axis=0))
        num = self.network.num[self.links].sum(axis=0)
        num_slow = self.network.num_slow[self.links].sum(axis=0)
        return np.asarray((num_slow / np.maximum(num, 1)).max(axis=-1))

    @property
    def shows_in(self) -> NDArray[np.bool_]:
        """[steps], whether each shows the suspect."""
        share = self.share
        if not self.is_steady:
            return self._shows_bursts
        first, end = densest_stretch(share)
        is_hit = np.zeros(share.size, np.bool_)
        is_hit[first:end] = share[first:end] >= MIN_HIT_SHARE
        return is_hit

    @property
    def _shows_bursts(self) -> NDArray[np.bool_]:
        """[steps], whether more transfers are slow, or extreme, than on a healthy link."""
        if not self.links.any():
            return np.asarray(self.share > MIN_SHOWN_SHARE)
        net = self.network
        typical = net.healthy_share(net.num_slow.sum(axis=-1))
        num, num_slow = (each[self.links].sum(axis=0) for each in (net.num, net.num_slow))
        num_far = net.num_far[self.links].sum(axis=0)
        is_hit = self.share > max(MIN_SHOWN_SHARE, MIN_TIMES_TYPICAL * typical)
        # With many stray transfers no share is so many times the typical one: probability decides.
        is_hit |= _is_beyond_chance(num_slow, num, typical).any(axis=-1)
        return np.asarray(
            is_hit | _is_beyond_chance(num_far, num.sum(axis=-1), net.healthy_share(net.num_far))
        )

    @property
    def is_steady(self) -> bool:
        """Whether it is slow all the time since its onset, not in bursts."""
        share = self.share
        first, end = densest_stretch(share)
        inside = share[first:end]
        return bool(
            (inside >= MIN_SLOW_SHARE).mean() >= MIN_STEADY_SHARE
            and inside.sum() >= MIN_SHARE_OF_HOST * share.sum()
        )

    @property
    def ratio(self) -> float:
        """Duration of its slow transfers over the expected one."""
        if self.links.any():
            return _ratio(self.network, self.links)
        return float(self.network.group_pace[self.groups].mean())


def network_suspects(network: NetworkTransfers) -> list[NetworkSuspect]:
    """Suspects for all slow links and dp groups, each in one suspect."""
    left = network.is_slow.copy()
    groups_left = network.is_group_slow.copy()
    found: list[NetworkSuspect] = []
    for finder in (_one_ended, _hosts, _workers, _pairs) if left.any() else ():
        for culprits, workers, links in finder(network, left):
            groups = _shared_groups(network, links, workers)
            if finder is _pairs:
                groups[:] = False
            suspect = NetworkSuspect(network, culprits, workers, links, groups)
            found.append(suspect if suspect.is_steady else _with_one_end(suspect))
            left &= ~links
            groups_left[groups.any(axis=1)] = False
    for stage in np.flatnonzero(groups_left.any(axis=1)).tolist():
        mine = np.zeros_like(groups_left)
        mine[stage] = groups_left[stage]
        members = tuple((dp, stage) for dp in range(network.case.parallelism.dp_size))
        none = np.zeros_like(left)
        found.append(NetworkSuspect(network, (Culprit(stage=stage),), members, none, mine))
    return found


def _with_one_end(pair: NetworkSuspect) -> NetworkSuspect:
    """Blames the end without other links: bursts come from network cards rather than cables."""
    network = pair.network
    ends = [worker for worker in pair.workers if len(_touching(network, worker[1])) == 1]
    if len(pair.culprits) != 2 or len(ends) != 1:
        return pair
    return replace(pair, culprits=(_culprit(network, ends[0]),), workers=(ends[0],))


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
        links = np.zeros_like(left)
        links[of_links, worker[0]] = True
        yield (_culprit(network, worker),), (worker,), links


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
    # The host with most slow links first: the neighbours share its links.
    for _, host, hit, slow in sorted(found, key=lambda each: (-each[0], each[1])):
        if (slow & left).sum() >= max(2, MIN_SHARE_OF_HOST * slow.sum()):
            yield (Culprit(host=host),), hit, slow


def _workers(network: NetworkTransfers, left: NDArray[np.bool_]) -> Iterator[_Blame]:
    """Workers with all links slow: two or more links, or one and a slow dp group.

    Workers with a slow dp group come first, as they are the likelier culprits among neighbours.
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
    usual_s = [np.median(each.usual_s) for each in case.links if each is not None]
    if usual_s:
        lost_s += float(net.excess[suspect.links].sum() * np.median(usual_s))
    for group, each in zip(case.groups, case.dp_groups, strict=True):
        if each is not None:
            at = group.positions
            stage_s = np.bincount(each.stage, each.usual_s, minlength=net.group_pace.shape[0])
            over = np.where(suspect.groups[:, at], net.group_pace[:, at] - 1, 0.0)
            lost_s += float((over * stage_s[:, None]).sum())
    return lost_s
