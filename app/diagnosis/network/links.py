"""Which links and dp groups of a case are slow?

`network_transfers` joins the transfers of the case's groups of steps; suspects.py names
the culprits.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.diagnosis.case import Case, evidence
from app.diagnosis.evidence.usual_steps import is_usual
from app.diagnosis.finding import Worker
from app.diagnosis.network import transfers
from app.diagnosis.network.transfers import (
    BETWEEN_HOSTS,
    NUM_PLACES,
    DpGroups,
    LinkCounts,
    Links,
    StagePair,
    find_dp_groups,
    find_links,
    group_places,
    is_placement,
    link_places,
    no_counts,
    stage_pairs,
)
from app.diagnosis.statistics.robust import (
    hit_chance,
    log_binomial_tail,
    lower_quantile,
    quantile_of,
    quantiles,
)
from app.engine.medians import median_of, medians_of_known
from app.trace.window import Floats, Ints


@dataclass(frozen=True, slots=True)
class NetworkLimits:
    """From when on links and dp groups are slow. All were chosen on made jobs."""

    # Probability that chance makes any of all links look slow: once in a million windows.
    max_chance: float = 1e-6
    # The only link, or the only one of its kind, is compared with itself, so it must be so many
    # times slower.
    min_ratio_alone: float = 5.0
    min_ratio_of_kind: float = 2.5
    # A slow link loses at least this share of what the worst one loses.
    min_share_of_worst: float = 0.05
    # Share of slow transfers that a healthy link may have.
    max_stray_share: float = 0.05
    # A link is slow all the time if this share of its transfers is.
    min_slow_share: float = 0.75
    # Stages differ in parameters, the end stages more as they hold embeddings: collectives above
    # these ratios take longer than that explains.
    max_inner_stage_ratio: float = 1.5
    max_end_stage_ratio: float = 2.5
    # A step's collectives are slow above this ratio; the probability of one such step by chance,
    # and of as many as were seen.
    group_slow_ratio: float = 1.5
    group_chance: float = 0.02
    max_group_chance: float = 1e-3
    # Fewer slow steps show nothing.
    min_steps: int = 2
    # The only group's slow steps are so many times further from the others than these differ among
    # themselves, which is taken to be at least this share.
    min_times_apart: float = 3.0
    min_difference: float = 0.1
    # The first steps of a run set up its connections: at most so many, with slow transfers on the
    # typical link (a share of them above that of the later steps), or slow collectives of every dp
    # group.
    max_warm_up_steps: int = 3
    min_share_above: float = 0.5


LIMITS = NetworkLimits()


@dataclass(frozen=True)
class NetworkTransfers(LinkCounts):
    """All transfers of a case, of all groups of steps together.

    `links` and `dp_groups` are by group of steps, None where it has none; `link` of the former is a
    position in `pairs`. Shapes: `group_pace` [pp, steps], 1.0 where there is no dp group.
    `is_warm_up` [steps]: no slow transfer counts there (`_warm_up`).
    """

    case: Case
    pairs: tuple[StagePair, ...]
    links: tuple[Links | None, ...]
    dp_groups: tuple[DpGroups | None, ...]
    group_pace: Floats
    is_warm_up: NDArray[np.bool_]

    @cached_property
    def slow(self) -> Ints:
        """[links, dp, steps], slow transfers in both directions."""
        return np.asarray(self.num_slow.sum(axis=-1))

    @cached_property
    def typical_share(self) -> Floats:
        """[links, dp], share of slow transfers on the typical link of a kind in the usual steps.

        With few links, at least the best link's share, up to `max_stray_share`.
        """
        best = np.minimum(LIMITS.max_stray_share, self._best(self.slow))
        return np.maximum(self._typical(self.slow), np.where(self._has_few, best, 0.0))

    @cached_property
    def is_slow(self) -> NDArray[np.bool_]:
        """[links, dp], links with far more slow transfers than the typical one of their kind."""
        slow = self._is_more(self.slow, self.typical_share)
        slow |= self._is_more(self.num_far, self._typical(self.num_far))
        if self.case.replay.window.hosts or slow.shape[1] > 1:
            # Of few links, those with far more extreme transfers than the best one.
            slow |= self._has_few & self._is_more(self.num_far, self._best(self.num_far))
        least = LIMITS.min_ratio_alone if slow.size == 1 else LIMITS.min_ratio_of_kind
        slow &= (self._num_of_kind > 1) | (self.ratios >= least)
        if not slow.any():
            return slow
        # Many transfers make a tiny difference significant: beside the worst link it is none.
        lost = self._of_usual_steps(self.excess)
        is_minor = lost < LIMITS.min_share_of_worst * lost[slow].max()
        return np.asarray(slow & ~self._is_topology & ~is_minor)

    @cached_property
    def ratios(self) -> Floats:
        """[links, dp], mean duration of the slow transfers of each link over the expected one."""
        return np.asarray(1 + self.excess.sum(axis=-1) / np.maximum(self.slow.sum(axis=-1), 1))

    def ratio_of(self, links: NDArray[np.bool_]) -> float:
        """The same of all slow transfers of these links [links, dp]."""
        return float(1 + self.excess[links].sum() / max(1, self.slow[links].sum()))

    def healthy_share(self, num_hits: Ints, links: NDArray[np.bool_]) -> float:
        """Share of hits [links, dp, steps] on the typical healthy link of the kinds of `links`."""
        healthy = np.isin(self.place, self.place[links]) & ~self.is_slow
        if not healthy.any():
            return float(self._typical(num_hits)[links].max())
        return lower_quantile(self._shares(num_hits)[healthy], 0.5)

    @property
    def is_one_workers(self) -> bool:
        """Whether all links of a kind end at one worker, which may slow all of them."""
        place = link_places(self.case.host_numbers, np.array(self.pairs))
        kinds = np.unique(place).tolist()
        return any(set.intersection(*self.ends_of(place == kind)) for kind in kinds)

    @property
    def hosts_of_all(self) -> list[str]:
        """Hosts where all links between hosts end, which may slow all of them; at most two."""
        hosts, across = self.case.replay.window.hosts, self.ends_of(self.place == BETWEEN_HOSTS)
        ends = [{hosts[worker] for worker in workers} for workers in across]
        return sorted(set.intersection(*ends)) if ends else []

    def ends_of(self, links: NDArray[np.bool_]) -> list[set[Worker]]:
        """The two workers of each of these links [links, dp]."""
        return [
            {(dp_rank, stage) for stage in self.pairs[link]}
            for link, dp_rank in np.argwhere(links).tolist()
        ]

    @cached_property
    def _num_of_kind(self) -> Ints:
        """[links, dp], number of links of each one's kind."""
        return np.asarray(np.bincount(self.place.ravel(), minlength=NUM_PLACES)[self.place])

    @cached_property
    def _has_few(self) -> NDArray[np.bool_]:
        """[links, dp], links with few others of their kind, and at least one."""
        is_few = self._num_of_kind <= transfers.LIMITS.max_few_links
        return np.asarray(is_few & (self._num_of_kind > 1))

    @cached_property
    def _trials(self) -> Ints:
        """[links, dp], transfers in the usual steps."""
        return self._of_usual_steps(self.num.sum(axis=-1))

    def _shares(self, num_hits: Ints) -> Floats:
        """[links, dp], hits as a share of the transfers in the usual steps."""
        return np.asarray(self._of_usual_steps(num_hits) / np.maximum(self._trials, 1))

    def _is_more(self, num_hits: Ints, typical_share: Floats) -> NDArray[np.bool_]:
        """[links, dp], links with more hits than chance allows, of all links together."""
        hits, trials = self._of_usual_steps(num_hits), np.maximum(self._trials, 1)
        is_more = np.zeros(hits.shape, np.bool_)
        for share in np.unique(typical_share).tolist() if hits.any() else ():
            alike = typical_share == share
            log_chance = log_binomial_tail(hits[alike], trials[alike], hit_chance(share))
            is_more[alike] = log_chance + np.log(hits.size) < np.log(LIMITS.max_chance)
        return is_more

    def _best(self, num_hits: Ints) -> Floats:
        """[links, dp], share of the best link of each one's kind."""
        shares = self._shares(num_hits)
        return self._of_kinds(lambda alike: float(shares[alike].min()))

    def _typical(self, num_hits: Ints) -> Floats:
        """[links, dp], lower median of the share over the links of a kind.

        Of few links, or after a shift, the share in good steps; where most links are slow, that of
        the faster ones.
        """
        shares = self._shares(num_hits)

        def typical(alike: NDArray[np.bool_]) -> float:
            is_few = alike.sum() <= transfers.LIMITS.max_few_links
            fast = alike & self.is_fast
            if (is_few or bool(self.has_shift[alike].any())) and (fast == alike).all():
                hits, num = num_hits[alike].sum(axis=0), self.num[alike].sum(axis=(0, 2))
                return quantile_of(hits / np.maximum(num, 1), transfers.LIMITS.fast_steps)
            # Without a fast one all are slow (`slowdown_of_common_end`).
            return lower_quantile(shares[fast], 0.5) if fast.any() else 0.0

        return self._of_kinds(typical)

    def _of_kinds(self, of_kind: Callable[[NDArray[np.bool_]], float]) -> Floats:
        """[links, dp], a figure of each kind from the mask [links, dp] of its links."""
        figures = np.zeros(self.place.shape)
        for kind in np.unique(self.place).tolist():
            alike = self.place == kind
            figures[alike] = of_kind(alike)
        return figures

    @cached_property
    def is_group_slow(self) -> NDArray[np.bool_]:
        """[pp, steps], whether each dp group is slow, by its collectives alone."""
        pace, slow_ratio = self.group_pace, transfers.LIMITS.slow_ratio
        if pace.max() <= min(slow_ratio, LIMITS.group_slow_ratio * pace.min()):
            return np.zeros(pace.shape, np.bool_)
        faster = quantiles(pace, transfers.LIMITS.fast_steps)[:, None]
        slower: NDArray[np.bool_] = pace > LIMITS.group_slow_ratio * faster
        limit = np.full(len(pace), LIMITS.max_inner_stage_ratio)
        limit[[0, -1]] = LIMITS.max_end_stage_ratio
        always = (pace > slow_ratio) & (medians_of_known(pace) >= limit)[:, None]
        more = self._is_more_often(slower)
        if len(pace) == 1:
            more &= self._is_bimodal(pace[0], slower[0])
        else:
            # Where all stages have slow steps by chance, those beyond healthy noise show.
            more |= self._is_more_often(pace > transfers.LIMITS.far_ratio * faster)
        return np.asarray(always | (slower & more))

    @staticmethod
    def _is_more_often(is_hit: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """[pp, 1], whether a stage has more hits [pp, steps] than chance and other stages allow."""
        hits, num_steps = is_hit.sum(axis=1), is_hit.shape[1]
        typical = lower_quantile(hits / num_steps, 0.5) if hits.size > 1 else 0.0
        chance = hit_chance(typical, LIMITS.group_chance)
        log_chance = log_binomial_tail(hits, np.full(hits.size, num_steps), chance)
        more = log_chance + np.log(hits.size) < np.log(LIMITS.max_group_chance)
        return np.asarray(more & (hits >= LIMITS.min_steps))[:, None]

    @staticmethod
    def _is_bimodal(pace: Floats, slower: NDArray[np.bool_]) -> bool:
        """Whether the slow steps of the only group stand out from others that are alike.

        On busy hosts, or with tiny messages, all steps vary.
        """
        others, slow = np.sort(pace[~slower]), pace[slower]
        if not others.size or not slow.size:
            return False
        inner = others[others.size // 8 : others.size - others.size // 8]
        spread = max(float(inner[-1] - inner[0]), LIMITS.min_difference * float(inner[0]))
        return bool(median_of(slow) - inner[-1] > LIMITS.min_times_apart * spread)

    def _of_usual_steps(self, counts: NDArray[Any]) -> NDArray[Any]:
        """[links, dp], summed over the usual steps after the warm-up."""
        return np.asarray(counts[..., is_usual(self.case) & ~self.is_warm_up].sum(axis=-1))

    @property
    def _is_topology(self) -> NDArray[np.bool_]:
        """[links, dp], links slow on all dp ranks alike: the topology, where hosts are unknown.

        One that takes far longer than on the fastest dp rank is slow by itself.
        """
        is_slow = self._of_usual_steps(self.slow) >= LIMITS.min_slow_share * self._trials
        is_alike = all(links.is_alike for links in self.links if links is not None)
        if self.case.replay.window.hosts or is_slow.shape[1] < 2 or is_alike:
            return np.zeros(is_slow.shape, np.bool_)
        if not is_slow.all() and is_placement(is_slow, np.array(self.pairs), self.rank):
            return is_slow
        always = is_slow.all(axis=1, keepdims=True)
        least = self.ratios.min(axis=1, keepdims=True)
        return np.asarray(always & (self.ratios < transfers.LIMITS.far_ratio * least))

    @property
    def is_group_unclear(self) -> NDArray[np.bool_]:
        """[pp], stages with links that placement may slow: it may slow their dp group as well."""
        apart = np.flatnonzero(self.is_apart.any(axis=1)).tolist()
        stages = {stage for link in apart for stage in self.pairs[link]}
        return np.isin(np.arange(len(self.group_pace)), sorted(stages))

    @property
    def rank(self) -> Ints:
        """[dp, pp], global ranks."""
        return self.case.replay.groups[0].grid.rank


@evidence
def network_transfers(case: Case) -> NetworkTransfers:
    """The case's links and dp groups of all groups of steps."""
    sizes, hosts, host = case.parallelism, case.replay.window.hosts, case.host_numbers
    pairs = sorted(set.union(*(stage_pairs(group) for group in case.groups)))
    counts = no_counts(len(pairs), sizes.dp_size, case.steps.size)
    links = [find_links(group, hosts, host, pairs, counts) for group in case.groups]
    places = group_places(host)
    dp_groups = [find_dp_groups(group, places, pairs, counts) for group in case.groups]
    pace = np.ones((sizes.pp_size, case.steps.size))
    for group, collectives in zip(case.groups, dp_groups, strict=True):
        if collectives is not None:
            pace[:, group.positions] = collectives.pace
    is_warm_up = _warm_up(case, counts.num, counts.num_slow, pace)
    counts.num_slow[..., is_warm_up, :] = 0
    counts.num_far[..., is_warm_up], counts.excess[..., is_warm_up] = 0, 0.0
    pace[:, is_warm_up] = pace.min(axis=1, keepdims=True)
    return NetworkTransfers(
        **vars(counts),
        case=case,
        pairs=tuple(pairs),
        links=tuple(links),
        dp_groups=tuple(dp_groups),
        group_pace=pace,
        is_warm_up=is_warm_up,
    )


def _warm_up(case: Case, num: Ints, num_slow: Ints, group_pace: Floats) -> NDArray[np.bool_]:
    """[steps], the first steps of a run where the whole network is slow, unlike all after them."""
    is_warm_up, most = np.zeros(case.steps.size, np.bool_), LIMITS.max_warm_up_steps
    if case.extended_history.num_before or case.steps.size < 2 * most:
        return is_warm_up
    is_slow = is_warm_up.copy()
    if num.size:
        shares = num_slow.sum(axis=-1) / np.maximum(num.sum(axis=-1), 1)
        typical = medians_of_known(shares.reshape(-1, shares.shape[2]).T)
        is_slow |= typical > median_of(typical[most:]) + LIMITS.min_share_above
    later = medians_of_known(group_pace[:, most:])[:, None]
    is_slow |= (group_pace > LIMITS.group_slow_ratio * later).all(axis=0)
    first_steps = is_slow[: most + 1]
    # What comes back is no warm-up.
    comes_back = is_slow[most + 1 :].sum() >= LIMITS.min_steps
    if not first_steps.all() and not comes_back:
        is_warm_up[: int(np.argmin(first_steps))] = True
    return is_warm_up
