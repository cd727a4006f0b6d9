"""Which links and which dp groups of a case are slow?"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from app.diagnosis.case import Case
from app.diagnosis.links import FEW, SLOW, Pair, same_host
from app.diagnosis.tails import log_at_least
from app.trace.window import Floats, Ints

# Of all links together, that chance should make any of them look slow.
BY_CHANCE = 1e-6
# The chance of a slow transfer is taken to be so many times the typical link's, and no smaller.
MARGIN = 2.0
LEAST_CHANCE = 1e-3
# So many transfers of a sound link may stray.
STRAY = 0.05
# So many of a link's transfers are slow where all of them are.
WHOLE = 0.75
# Stages differ in parameters: those between, and those at the ends, which have embeddings. From
# where on a stage's collectives take longer than that explains.
MORE_PARAMETERS = 1.5
EMBEDDINGS = 2.5
# There are few collectives, and their noise is as large as that of single transfers: a slow one
# is slower than that, and as unlikely in so many steps.
GROUP_SLOW = 1.5
GROUP_CHANCE = 0.02
GROUP_BY_CHANCE = 1e-3
# A stage's collectives are compared with themselves in its faster steps.
FASTER = 0.25
# In fewer steps it may have been anything.
MIN_STEPS = 2
# Slow steps of the only group are so many times further from the others than these from each other,
# which differ by this share at least.
APART = 3.0
ALIKE = 0.1


@dataclass(frozen=True)
class Network:
    """All transfers of a case, of all groups together.

    Shapes: `num` and `num_slow` [links, dp, steps, 2], `num_far` and `excess`
    [links, dp, steps] and `ends_slow` [links, dp, 2] as of `Links`; `group_pace` [pp, steps],
    1.0 where there is no dp group.
    """

    case: Case
    pairs: tuple[Pair, ...]
    num: Ints
    num_slow: Ints
    num_far: Ints
    excess: Floats
    ends_slow: Ints
    group_pace: Floats

    @cached_property
    def typical_share(self) -> float:
        """Of the typical link's transfers, in the usual steps, those that are slow.

        At least the best one's: of few transfers, a good step may happen to have no slow one.
        That one may be slow for a part of the time as well, so that only a little is taken.
        """
        num_slow = self.num_slow.sum(axis=-1)
        typical, shares = self._typical(num_slow), self._shares(num_slow)
        if not 1 < shares.size <= FEW:
            return typical
        return max(typical, min(STRAY, float(shares.min())))

    @cached_property
    def is_slow(self) -> NDArray[np.bool_]:
        """[links, dp], links with far more slow transfers than the typical one."""
        slow = self._is_more(self.num_slow.sum(axis=-1), self.typical_share)
        slow |= self._is_more(self.num_far, self._typical(self.num_far))
        if 1 < slow.size <= FEW and (self.case.replay.window.hosts or slow.shape[1] > 1):
            slow |= self._is_far
        return slow & ~self._is_topology if slow.any() else slow

    def sound_share(self, num_hits: Ints) -> float:
        """Of transfers [links, dp, steps], the hits on the typical link that is not slow."""
        sound = ~self.is_slow
        if not sound.any():
            return self._typical(num_hits)
        hits, trials = self._of_usual_steps(num_hits)[sound], self._trials[sound]
        shares = np.sort(hits / np.maximum(trials, 1))
        return float(shares[(shares.size - 1) // 2])

    @property
    def is_one_workers(self) -> bool:
        """Whether all links of a kind are one worker's, so that they may all be slow through it."""
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
        """[links, dp], of few links, those beyond any tail where the best one is not.

        The slow one must not count among those that it is compared with.
        """
        return self._is_more(self.num_far, float(self._shares(self.num_far).min()))

    @cached_property
    def _trials(self) -> Ints:
        """[links, dp], transfers in the usual steps."""
        return self._of_usual_steps(self.num.sum(axis=-1))

    def _shares(self, num_hits: Ints) -> Floats:
        """[links, dp], of the transfers in the usual steps."""
        return np.asarray(self._of_usual_steps(num_hits) / np.maximum(self._trials, 1))

    def _is_more(self, num_hits: Ints, typical_share: float) -> NDArray[np.bool_]:
        hits, trials = self._of_usual_steps(num_hits), self._trials
        if not hits.any():
            return np.zeros(hits.shape, np.bool_)
        return _is_unlikely(hits, np.maximum(trials, 1), typical_share)

    def _typical(self, num_hits: Ints) -> float:
        """Lower median over links; of so few that most may be slow, the share in a good step."""
        hits, trials = self._of_usual_steps(num_hits), self._trials
        if not hits.size:
            return 0.0
        if hits.size <= FEW:
            by_step = num_hits.sum(axis=(0, 1)) / np.maximum(self.num.sum(axis=(0, 1, 3)), 1)
            return float(np.quantile(by_step, FASTER))
        shares = np.sort(hits / np.maximum(trials, 1), axis=None)
        return float(shares[(shares.size - 1) // 2])

    @cached_property
    def is_group_slow(self) -> NDArray[np.bool_]:
        """[pp, steps], dp groups by themselves, without any link of theirs."""
        pace = self.group_pace
        if pace.max() <= min(SLOW, GROUP_SLOW * pace.min()):
            return np.zeros(pace.shape, np.bool_)
        faster = np.quantile(pace, FASTER, axis=1, keepdims=True)
        slower: NDArray[np.bool_] = pace > GROUP_SLOW * faster
        hits = slower.sum(axis=1)
        trials = np.full(hits.size, pace.shape[1])
        typical = np.sort(hits)[(hits.size - 1) // 2] / pace.shape[1] if hits.size > 1 else 0.0
        by_chance = min(0.5, max(MARGIN * typical, GROUP_CHANCE))
        more = log_at_least(hits, trials, by_chance) + np.log(hits.size) < np.log(GROUP_BY_CHANCE)
        limit = np.full(hits.size, MORE_PARAMETERS)
        limit[[0, -1]] = EMBEDDINGS
        always = np.median(pace, axis=1) >= limit
        if hits.size == 1:
            more &= self._is_bimodal(pace[0], slower[0])
        now_and_then = slower & (more & (hits >= MIN_STEPS))[:, None]
        return np.asarray(now_and_then | ((pace > SLOW) & always[:, None]))

    @staticmethod
    def _is_bimodal(pace: Floats, slower: NDArray[np.bool_]) -> bool:
        """Whether the other steps of the only group are alike, so that the slow ones stand out.

        Where they are not, transfers merely vary: on busy hosts, or with tiny messages.
        """
        others, slow = np.sort(pace[~slower]), pace[slower]
        if not others.size or not slow.size:
            return False
        inner = others[others.size // 8 : others.size - others.size // 8]
        spread = float(inner[-1] - inner[0])
        return bool(np.median(slow) - inner[-1] > APART * max(spread, ALIKE * float(inner[0])))

    def _of_usual_steps(self, counts: Ints) -> Ints:
        """[links, dp], summed over the usual steps."""
        return np.asarray(counts[..., self.case.is_usual].sum(axis=-1))

    @property
    def _is_topology(self) -> NDArray[np.bool_]:
        """[links, dp], links slow on all dp ranks alike, where nobody knows the hosts."""
        hits, trials = self._of_usual_steps(self.num_slow.sum(axis=-1)), self._trials
        if self.case.replay.window.hosts or hits.shape[1] < 2:
            return np.zeros(hits.shape, np.bool_)
        always = (hits >= WHOLE * trials).all(axis=1, keepdims=True)
        return np.broadcast_to(always, hits.shape)


def chance(typical_share: float) -> float:
    """The chance of a hit on a sound link."""
    return min(0.5, max(MARGIN * typical_share, LEAST_CHANCE))


def _is_unlikely(hits: Ints, trials: Ints, typical_share: float) -> NDArray[np.bool_]:
    """Whether so many hits on any of these links are none of chance."""
    log_chance = log_at_least(hits, trials, chance(typical_share)) + np.log(max(1, hits.size))
    return np.asarray(log_chance < np.log(BY_CHANCE))


def network(case: Case) -> Network:
    """The case's links and dp groups, joined in the order of its steps."""
    sizes, num_steps = case.parallelism, case.steps.size
    group_pace = _group_pace(case)
    if len(case.groups) == 1 and (only := case.links[0]):
        return Network(
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
        cells = np.ix_(mine, np.arange(sizes.dp_size), case.at(group))
        num[cells], num_slow[cells] = each.num, each.num_slow
        num_far[cells], excess[cells] = each.num_far, each.excess
        ends_slow[mine] += each.ends_slow
    return Network(case, pairs, num, num_slow, num_far, excess, ends_slow, group_pace)


def _group_pace(case: Case) -> Floats:
    pace = np.ones((case.parallelism.pp_size, case.steps.size))
    for group, of_stages in zip(case.groups, case.dp_groups, strict=True):
        if of_stages is not None:
            pace[:, case.at(group)] = of_stages.pace
    return pace
