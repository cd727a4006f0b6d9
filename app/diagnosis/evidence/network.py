"""Which links and dp groups of a case are slow?

`network_transfers` joins the transfers of the case's groups of steps; network_suspects.py names
who is to blame.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.diagnosis.case import Case
from app.diagnosis.evidence.link_topology import is_placement
from app.diagnosis.evidence.links import (
    BETWEEN_HOSTS,
    FAR_RATIO,
    FAST_STEP_QUANTILE,
    MAX_FEW_LINKS,
    NUM_PLACES,
    SLOW_RATIO,
    StagePair,
    same_host,
)
from app.diagnosis.statistics.robust import (
    CHANCE_MARGIN,
    MIN_CHANCE,
    log_binomial_tail,
    quantile_of,
    quantiles,
)
from app.engine.medians import median_of, medians_of_known
from app.trace.window import Floats, Ints

# Probability that chance makes any of all links look slow.
MAX_CHANCE = 1e-6
# The only link, or the only one of its kind, is compared with itself, so it must be so many times
# slower.
MIN_RATIO_ALONE = 5.0
MIN_RATIO_OF_KIND = 2.5
# A slow link loses at least this share of what the worst one loses.
MIN_SHARE_OF_WORST = 0.05
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
    [links, dp, steps], `ends_slow` [links, dp, 2], `is_fast` and `has_shift` [links, dp] as of
    `Links`; `place` [links, dp], the kind of each link (`same_host`), as only links of a kind are
    compared; `group_pace` [pp, steps], 1.0 where there is no dp group. `is_warm_up` [steps]: no
    slow transfer counts there (`_warm_up`).
    """

    case: Case
    pairs: tuple[StagePair, ...]
    num: Ints
    num_slow: Ints
    num_far: Ints
    excess: Floats
    ends_slow: Ints
    is_fast: NDArray[np.bool_]
    has_shift: NDArray[np.bool_]
    place: Ints
    group_pace: Floats
    is_warm_up: NDArray[np.bool_]

    @cached_property
    def typical_share(self) -> Floats:
        """[links, dp], share of slow transfers on the typical link of a kind in the usual steps.

        With few links, at least the best link's share, up to MAX_STRAY_SHARE.
        """
        num_slow = self.num_slow.sum(axis=-1)
        typical, best = self._typical(num_slow), self._best(num_slow)
        at_least = np.where(self._has_few & ~self._is_alone, np.minimum(MAX_STRAY_SHARE, best), 0.0)
        return np.maximum(typical, at_least)

    @cached_property
    def is_slow(self) -> NDArray[np.bool_]:
        """[links, dp], links with far more slow transfers than the typical one of their kind."""
        slow = self._is_more(self.num_slow.sum(axis=-1), self.typical_share)
        slow |= self._is_more(self.num_far, self._typical(self.num_far))
        if self.case.replay.window.hosts or slow.shape[1] > 1:
            # Of few links, those with far more extreme transfers than the best one.
            is_far = self._is_more(self.num_far, self._best(self.num_far))
            slow |= is_far & self._has_few & ~self._is_alone
        least = MIN_RATIO_ALONE if slow.size == 1 else MIN_RATIO_OF_KIND
        slow &= ~self._is_alone | (self.ratios >= least)
        if not slow.any():
            return slow
        # Many transfers make a tiny difference significant: beside the worst link it is none.
        lost = self._of_usual_steps(self.excess)
        return np.asarray(
            slow & ~self._is_topology & (lost >= MIN_SHARE_OF_WORST * lost[slow].max())
        )

    @cached_property
    def ratios(self) -> Floats:
        """[links, dp], mean duration of the slow transfers of each link over the expected one."""
        num_slow = self.num_slow.sum(axis=(2, 3))
        return np.asarray(1 + self.excess.sum(axis=-1) / np.maximum(num_slow, 1))

    def healthy_share(self, num_hits: Ints, links: NDArray[np.bool_]) -> float:
        """Share of hits [links, dp, steps] on the typical healthy link of the kinds of `links`."""
        of_kind = np.isin(self.place, self.place[links])
        healthy = of_kind & ~self.is_slow
        if not healthy.any():
            return float(self._typical(num_hits)[links].max())
        hits, trials = self._of_usual_steps(num_hits)[healthy], self._trials[healthy]
        shares = np.sort(hits / np.maximum(trials, 1))
        return float(shares[(shares.size - 1) // 2])

    @cached_property
    def _num_of_kind(self) -> Ints:
        """[links, dp], number of links of each one's kind."""
        return np.asarray(np.bincount(self.place.ravel(), minlength=NUM_PLACES)[self.place])

    @cached_property
    def _has_few(self) -> NDArray[np.bool_]:
        return np.asarray(self._num_of_kind <= MAX_FEW_LINKS)

    @cached_property
    def _is_alone(self) -> NDArray[np.bool_]:
        return np.asarray(self._num_of_kind == 1)

    @property
    def is_one_workers(self) -> bool:
        """Whether all links of a kind end at one worker, which may slow all of them."""
        sizes = self.case.parallelism
        place = same_host(self.case.replay.window.hosts, sizes)
        ends: dict[int, set[tuple[int, int]]] = {}
        for low, high in self.pairs:
            for dp_rank, kind in enumerate(place[:, low, high].tolist()):
                of_link = {(dp_rank, low), (dp_rank, high)}
                ends[kind] = ends.get(kind, of_link) & of_link
        return any(ends.values())

    @property
    def hosts_of_all(self) -> list[str]:
        """Hosts where all links between hosts end, which may slow all of them; at most two."""
        hosts = self.case.replay.window.hosts
        ends = [
            {hosts[dp_rank, stage] for stage in self.pairs[link]}
            for link, dp_rank in np.argwhere(self.place == BETWEEN_HOSTS).tolist()
        ]
        return sorted(set.intersection(*ends)) if ends else []

    @cached_property
    def _trials(self) -> Ints:
        """[links, dp], transfers in the usual steps."""
        return self._of_usual_steps(self.num.sum(axis=-1))

    def _shares(self, num_hits: Ints) -> Floats:
        """[links, dp], hits as a share of the transfers in the usual steps."""
        return np.asarray(self._of_usual_steps(num_hits) / np.maximum(self._trials, 1))

    def _is_more(self, num_hits: Ints, typical_share: Floats) -> NDArray[np.bool_]:
        hits, trials = self._of_usual_steps(num_hits), self._trials
        if not hits.any():
            return np.zeros(hits.shape, np.bool_)
        return _is_unlikely(hits, np.maximum(trials, 1), typical_share)

    def _best(self, num_hits: Ints) -> Floats:
        """[links, dp], share of the best link of each one's kind."""
        if not num_hits.any():
            return np.zeros(self.place.shape)
        shares = self._shares(num_hits)
        return self._of_kinds(lambda mine: float(shares[mine].min()))

    def _typical(self, num_hits: Ints) -> Floats:
        """[links, dp], lower median of the share over the links of a kind.

        Of few links, or after a shift, the share in good steps; where most links are slow, that of
        the faster ones.
        """
        if not num_hits.any():
            return np.zeros(self.place.shape)
        shares = self._shares(num_hits)

        def typical(mine: NDArray[np.bool_]) -> float:
            is_few = mine.sum() <= MAX_FEW_LINKS or bool(self.has_shift[mine].any())
            fast = mine & self.is_fast
            if is_few and (fast == mine).all():
                hits, num = num_hits[mine].sum(axis=0), self.num[mine].sum(axis=(0, 2))
                return quantile_of(hits / np.maximum(num, 1), FAST_STEP_QUANTILE)
            if not fast.any():
                return 0.0  # all are slow (`slowdown_of_common_end`)
            ordered = np.sort(shares[fast])
            return float(ordered[(ordered.size - 1) // 2])

        return self._of_kinds(typical)

    def _of_kinds(self, of_kind: Callable[[NDArray[np.bool_]], float]) -> Floats:
        """[links, dp], a figure of each kind from the mask [links, dp] of its links."""
        found = np.zeros(self.place.shape)
        for kind in np.unique(self.place).tolist():
            mine = self.place == kind
            found[mine] = of_kind(mine)
        return found

    @cached_property
    def is_group_slow(self) -> NDArray[np.bool_]:
        """[pp, steps], whether each dp group is slow, by its collectives alone."""
        pace = self.group_pace
        if pace.max() <= min(SLOW_RATIO, GROUP_SLOW_RATIO * pace.min()):
            return np.zeros(pace.shape, np.bool_)
        faster = quantiles(pace, FAST_STEP_QUANTILE)[:, None]
        slower: NDArray[np.bool_] = pace > GROUP_SLOW_RATIO * faster
        limit = np.full(len(pace), MAX_INNER_STAGE_RATIO)
        limit[[0, -1]] = MAX_END_STAGE_RATIO
        always = medians_of_known(pace) >= limit
        if len(pace) == 1:
            more = self._is_more_often(slower) & self._is_bimodal(pace[0], slower[0])
            return np.asarray((slower & more) | ((pace > SLOW_RATIO) & always[:, None]))
        # Where all stages have slow steps by chance, those beyond healthy noise show.
        far = pace > FAR_RATIO * faster
        now_and_then = slower & self._is_more_often(slower)
        now_and_then |= slower & self._is_more_often(far)
        return np.asarray(now_and_then | ((pace > SLOW_RATIO) & always[:, None]))

    @staticmethod
    def _is_more_often(is_hit: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """[pp, 1], whether a stage has more hits [pp, steps] than chance and other stages allow."""
        hits, num_steps = is_hit.sum(axis=1), is_hit.shape[1]
        typical = np.sort(hits)[(hits.size - 1) // 2] / num_steps if hits.size > 1 else 0.0
        by_chance = min(0.5, max(CHANCE_MARGIN * typical, GROUP_CHANCE))
        log_chance = log_binomial_tail(hits, np.full(hits.size, num_steps), by_chance)
        more = log_chance + np.log(hits.size) < np.log(MAX_GROUP_CHANCE)
        return np.asarray(more & (hits >= MIN_STEPS))[:, None]

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
            median_of(slow) - inner[-1]
            > MIN_TIMES_APART * max(spread, MIN_DIFFERENCE * float(inner[0]))
        )

    def _of_usual_steps(self, counts: NDArray[Any]) -> NDArray[Any]:
        """[links, dp], summed over the usual steps."""
        return np.asarray(counts[..., self._counted].sum(axis=-1))

    @cached_property
    def _counted(self) -> Ints:
        """Positions of the usual steps after the warm-up."""
        return np.flatnonzero(self.case.is_usual & ~self.is_warm_up)

    @property
    def _is_topology(self) -> NDArray[np.bool_]:
        """[links, dp], links slow on all dp ranks alike: the topology, where hosts are unknown.

        One that takes far longer than on the fastest dp rank is slow by itself.
        """
        hits, trials = self._of_usual_steps(self.num_slow.sum(axis=-1)), self._trials
        is_alike = all(each.is_alike for each in self.case.links if each is not None)
        if self.case.replay.window.hosts or hits.shape[1] < 2 or is_alike:
            return np.zeros(hits.shape, np.bool_)
        is_slow = hits >= MIN_SLOW_SHARE * trials
        if not is_slow.all() and is_placement(is_slow, np.array(self.pairs), self.rank):
            return is_slow
        always = is_slow.all(axis=1, keepdims=True)
        alike = self.ratios < FAR_RATIO * self.ratios.min(axis=1, keepdims=True)
        return np.asarray(always & alike)

    @property
    def is_group_unclear(self) -> NDArray[np.bool_]:
        """[pp], stages with links that placement may slow: it may slow their dp group as well."""
        stages = {
            stage
            for links in self.case.links
            if links is not None
            for link in np.flatnonzero(links.is_apart.any(axis=1)).tolist()
            for stage in links.pairs[link]
        }
        return np.isin(np.arange(len(self.group_pace)), sorted(stages))

    @property
    def rank(self) -> Ints:
        """[dp, pp], global ranks."""
        return self.case.replay.groups[0].grid.rank


def hit_chance(typical_share: float) -> float:
    """Probability of a hit on a healthy link."""
    return min(0.5, max(CHANCE_MARGIN * typical_share, MIN_CHANCE))


def _is_unlikely(hits: Ints, trials: Ints, typical_share: Floats) -> NDArray[np.bool_]:
    """Whether so many hits on any of these links are beyond chance."""
    found = np.zeros(hits.shape, np.bool_)
    for share in np.unique(typical_share).tolist():
        mine = typical_share == share
        log_chance = log_binomial_tail(hits[mine], trials[mine], hit_chance(share))
        found[mine] = log_chance + np.log(max(1, hits.size)) < np.log(MAX_CHANCE)
    return found


def network_transfers(case: Case) -> NetworkTransfers:
    """The case's links and dp groups of all groups of steps."""
    sizes, num_steps = case.parallelism, case.steps.size
    found = [(group, each) for group, each in zip(case.groups, case.links, strict=True) if each]
    pairs = tuple(sorted({pair for _, each in found for pair in each.pairs}))
    shape = (len(pairs), sizes.dp_size, num_steps)
    num, num_slow = (np.zeros((*shape, 2), np.int64) for _ in range(2))
    num_far = np.zeros(shape, np.int64)
    excess = np.zeros(shape)
    ends_slow = np.zeros((len(pairs), sizes.dp_size, 2), np.int64)
    is_fast, has_shift = np.ones(shape[:2], np.bool_), np.zeros(shape[:2], np.bool_)
    place = np.zeros(shape[:2], np.int64)
    for group, each in found:
        mine = np.array([pairs.index(pair) for pair in each.pairs])
        cells = np.ix_(mine, np.arange(sizes.dp_size), group.positions)
        num[cells], num_slow[cells] = each.num, each.num_slow
        num_far[cells], excess[cells] = each.num_far, each.excess
        ends_slow[mine] += each.ends_slow
        place[mine] = each.place
        is_fast[mine] &= each.is_fast
        has_shift[mine] |= each.has_shift
    group_pace = _group_pace(case)
    is_warm_up = _warm_up(case, num, num_slow, group_pace)
    num_slow[..., is_warm_up, :] = 0
    num_far[..., is_warm_up], excess[..., is_warm_up] = 0, 0.0
    group_pace[:, is_warm_up] = group_pace.min(axis=1, keepdims=True)
    return NetworkTransfers(
        case, pairs, num, num_slow, num_far, excess, ends_slow, is_fast, has_shift, place,
        group_pace, is_warm_up,
    )  # fmt: skip


# The first steps of a run set up its connections: at most so many, with slow transfers on the
# typical link, or slow collectives of every dp group.
MAX_WARM_UP_STEPS = 3
_MIN_SHARE_ABOVE = 0.5


def _warm_up(case: Case, num: Ints, num_slow: Ints, group_pace: Floats) -> NDArray[np.bool_]:
    """[steps], the first steps of a run where the whole network is slow, unlike all after them."""
    is_warm_up = np.zeros(case.steps.size, np.bool_)
    if case.extended_history.num_before or case.steps.size < 2 * MAX_WARM_UP_STEPS:
        return is_warm_up
    is_slow = is_warm_up.copy()
    if num.size:
        shares = num_slow.sum(axis=-1) / np.maximum(num.sum(axis=-1), 1)
        typical = medians_of_known(shares.reshape(-1, shares.shape[2]).T)
        is_slow |= typical > median_of(typical[MAX_WARM_UP_STEPS:]) + _MIN_SHARE_ABOVE
    later = medians_of_known(group_pace[:, MAX_WARM_UP_STEPS:])[:, None]
    is_slow |= (group_pace > GROUP_SLOW_RATIO * later).all(axis=0)
    first_steps = is_slow[: MAX_WARM_UP_STEPS + 1]
    # What comes back is no warm-up.
    comes_back = is_slow[MAX_WARM_UP_STEPS + 1 :].sum() >= MIN_STEPS
    if not first_steps.all() and not comes_back:
        is_warm_up[: int(np.argmin(first_steps))] = True
    return is_warm_up


def _group_pace(case: Case) -> Floats:
    pace = np.ones((case.parallelism.pp_size, case.steps.size))
    for group, of_stages in zip(case.groups, case.dp_groups, strict=True):
        if of_stages is not None:
            pace[:, group.positions] = of_stages.pace
    return pace
