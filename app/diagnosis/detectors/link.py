"""slow-link and flapping-link: a link, network card or dp group is slow, always or in bursts."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
from typing_extensions import override

from app.diagnosis.case import Case, evidence
from app.diagnosis.detector import Detector, Suspicion, as_ratio, names_of, workers_evidence
from app.diagnosis.evidence.job_changes import signal_against_others
from app.diagnosis.evidence.usual_steps import is_usual
from app.diagnosis.features import Features, ops_where
from app.diagnosis.fidelity import is_recorded
from app.diagnosis.network.links import LIMITS as NETWORK_LIMITS
from app.diagnosis.network.links import NetworkTransfers, network_transfers
from app.diagnosis.network.probe import slowdown_of_all
from app.diagnosis.network.repair import late_posts, slow_transfers
from app.diagnosis.network.suspects import (
    NetworkSuspect,
    any_links,
    common_hosts,
    drop_minor_suspects,
    is_network_wide,
    network_suspects,
)
from app.diagnosis.network.transfers import LIMITS as TRANSFER_LIMITS
from app.diagnosis.repair import Repair, Repaired, delays_repair, durations_repair
from app.diagnosis.statistics.persistence import onset_of_hits
from app.diagnosis.suspicions import (
    MIN_CULPRIT_COST,
    clock_doubt,
    culprits_that_cost,
    step_times_delayed,
    step_times_with,
)
from app.engine.medians import median_of
from app.engine.what_if import Replayer
from app.formatting import percent, plural
from app.result.finding import Culprit, RuledOut
from app.result.words import TAKE
from app.trace.ops import Axis, OpKind
from app.trace.window import Floats, Ints


@dataclass(frozen=True, slots=True)
class SlowLinkLimits:
    """Thresholds of slow-link and flapping-link, chosen; of a slow transfer: network/transfers."""

    # Share of the step from which on a network that may be slow everywhere is worth mentioning; the
    # second one where small collectives do not show that it is fast.
    min_network_share: tuple[float, float] = (0.3, 0.05)
    # So is a smaller share where all links between hosts have an end in common.
    min_share_of_hosts: tuple[float, float] = (0.1, 0.03)
    # Times as long as small collectives that the one of all workers takes, from which on it does
    # not show a fast network.
    min_doubtful: float = 3.0
    # Times the fastest links, from which on links of unknown hosts may be slow.
    min_ratio_apart: float = 2.0
    # Fewest slow steps: a single one may be anything.
    min_steps: int = 2
    # Share of the replayed step that late posts of slow transfers add at least.
    min_late_share: float = 0.01
    # One collective of a step holds this share of what its slow ones take longer: a network that is
    # slow for a while slows all that it carries in that while.
    min_share_of_one: float = 0.9
    # So many slow steps at one distance, and this share of those that could be: two are always at
    # one.
    min_regular_steps: int = 3
    min_regular_share: float = 0.75
    # Share of GPU time that the only dp group must cost, as it is compared with itself.
    min_cost_alone: float = 0.05
    # How fast the doubt falls with the ratio beyond that of a slow transfer, per 1x; at that ratio
    # it is half.
    doubt: float = 0.5
    decay_per_ratio: float = 2.0
    # Shares of that score for collectives alone, as stages differ in what they exchange, and links.
    score_of_collectives: float = 0.85
    score_of_links: float = 0.99
    # The confidence over the score.
    confidence_of_score: float = 0.97


LIMITS = SlowLinkLimits()
Suspects = tuple[NetworkSuspect, ...]


class SlowTransfers(Detector):
    """Transfers that are slow all the time (`steady`), or in bursts."""

    steady: ClassVar[bool]

    @override
    def detect(self, case: Case) -> Suspicion | RuledOut:
        if case.num_workers == 1:
            return self.denied("the only worker exchanges nothing with others")
        hosts = case.replay.window.hosts
        if len(hosts) == case.num_workers and len(set(hosts.values())) == 1:
            [only] = set(hosts.values())
            return self.denied(f"all workers are on {only}: what they exchange crosses no network")
        net = network_transfers(case)
        suspects = [
            suspect for suspect in network_suspects(case) if suspect.is_steady == self.steady
        ]
        if not suspects:
            return self._none(case, net)
        lasting = [suspect for suspect in suspects if suspect.shows_in.sum() >= LIMITS.min_steps]
        if not lasting:
            if any(suspect.shows_in.any() for suspect in suspects):
                return self.cannot_tell("transfers were slow in one step only")
            reason = "some transfers were slow, but no step has enough of them to stand out"
            return self.cannot_tell(reason)
        regular = {suspect: _every_so_many_steps(suspect) for suspect in lasting}
        if all(regular.values()):
            worst, every = next(iter(regular.items()))
            reason = (
                f"every {every} steps one collective takes {as_ratio(worst.ratio)} as long, as one "
                "does across an evaluation or a checkpoint: what happens between steps is not "
                "recorded"
            )
            return self.cannot_tell(reason, times_as_long=worst.ratio)
        # A run's first steps alone are its warm-up.
        first = 0 if case.extended_history.num_before else NETWORK_LIMITS.max_warm_up_steps
        after_begin = [
            suspect
            for suspect, every in regular.items()
            if not every and suspect.shows_in[first:].any()
        ]
        if not after_begin:
            reason = "transfers were slow in the first steps only, in which connections are set up"
            return self.cannot_tell(reason)
        significant = [suspect for suspect in after_begin if _is_beyond_clocks(suspect)]
        if not significant:
            return self.cannot_tell(
                f"cannot tell: transfers take longer by less than the clocks' error, as "
                f"{clock_doubt(case)}",
                clock_residual_s=case.replay.clocks.error_s or 0.0,
            )
        judged = _with_own_cost(case, drop_minor_suspects(significant))
        if not judged:
            if self.steady and (nothing_faster := self._slow_everywhere(case, net)):
                return nothing_faster
            judged = tuple(significant[:1])
        return self._undecided(judged) or self._suspicion(case, judged)

    def _undecided(self, suspects: Suspects) -> RuledOut | None:
        """The reason where slow links are clear, and whose network it is is not."""
        if not any_links(suspects).any():
            return None
        ratio, slow = as_ratio(suspects[0].ratio), float(any_links(suspects).mean())
        if hosts := common_hosts(suspects):
            reason = (
                f"all links between {hosts[0]} and {hosts[1]} take {ratio} as long as expected: "
                "which of the two hosts' networks is slow is not known"
            )
        elif is_network_wide(suspects):
            reason = (
                f"{percent(slow)} of all links are slow, the worst take {ratio} as long as "
                "expected, and no single worker or host has all of them: whose network is slow is "
                "not known"
            )
        else:
            return None
        return self.cannot_tell(reason, share_of_links_slow=slow, times_as_long=suspects[0].ratio)

    def _none(self, case: Case, net: NetworkTransfers) -> RuledOut:
        typical = median_of(net.typical_share) if net.typical_share.size else 0.0
        cannot_tell = partial(self.cannot_tell, typical_share_slow=typical)
        alone = "is as fast all the time in this window, and there is no other to compare it with"
        if len(net.pairs) * case.parallelism.dp_size == 1:
            return cannot_tell(f"the only link {alone}")
        if not net.pairs:
            everywhere = self._slow_everywhere(case, net) if self.steady else None
            return everywhere or cannot_tell(f"the only dp group {alone}")
        if not self.steady:
            reason = "no single link or dp group is slow now and then"
            return self.denied(reason, typical_share_slow=typical)
        if net.is_one_workers and not net.is_slow.any():
            return cannot_tell(
                "all links of a kind end at one worker and are as fast all the time in this "
                "window, and there is no other to compare them with"
            )
        reason = "no link and no dp group is far slower than the others"
        return (
            self._topology(case, net)
            or self._slow_everywhere(case, net)
            or self.denied(reason, typical_share_slow=typical)
        )

    def _slow_everywhere(self, case: Case, net: NetworkTransfers) -> RuledOut | None:
        """The reason where the network takes much of the step and no part of it stands out.

        Without anything faster to compare it with, it may be slow everywhere, or be no better.
        """
        hosts = net.hosts_of_all
        of_all = [slowdown_of_all(group.replayer) for group in case.groups]
        is_doubtful = any(
            slowdown is None or slowdown >= LIMITS.min_doubtful for slowdown in of_all
        )
        least = (LIMITS.min_share_of_hosts if hosts else LIMITS.min_network_share)[is_doubtful]
        usual = is_usual(case) & ~net.is_warm_up
        if not usual.any():
            return None
        total_s = float(case.replay.simulated_s[usual].mean())
        # One after the other, all transfers of a replica take longer than they can cost.
        if case.joined(_transferred_s)[usual].mean() < least * total_s:
            return None
        [without_s] = step_times_with(case, [_without_network])
        share = 1 - float(without_s[usual].mean()) / total_s
        if share < least:
            return None
        takes = f"collectives among dp ranks take {percent(share)} of the step"
        if case.parallelism.pp_size == 1:
            reason = (
                f"{takes}; with one stage the data do not show whether a worker's network is slow, "
                "and whose"
            )
        elif hosts:
            reason = (
                f"transfers between stages and {takes}; all links between hosts end at "
                f"{' and '.join(hosts)}, so that no other shows whether they are slow"
            )
        else:
            reason = (
                f"transfers between stages and {takes}, and no link or dp group is far slower than "
                "the others: if all are slow, nothing in the job shows it"
            )
        return self.cannot_tell(reason, network_share=share)

    def _topology(self, case: Case, net: NetworkTransfers) -> RuledOut | None:
        """The reason where links of unknown hosts differ as those within and between hosts may."""
        apart = max((links.apart for links in net.links if links is not None), default=1.0)
        if len(case.replay.window.hosts) == case.num_workers or apart < LIMITS.min_ratio_apart:
            return None
        reason = (
            f"some links take {as_ratio(apart)} as long as the fastest ones; without the names of "
            "hosts, slow links and links between hosts look alike"
        )
        return self.cannot_tell(reason, times_as_long=apart)

    def _suspicion(self, case: Case, suspects: Suspects) -> Suspicion:
        """One suspicion for all culprits of the cause, the worst first."""
        worst = suspects[0]
        is_hit = np.any([suspect.shows_in for suspect in suspects], axis=0)
        workers = list(dict.fromkeys(worker for suspect in suspects for worker in suspect.workers))
        only_group = not worst.has_links
        # By the ratio; lower for collectives alone, as stages differ in what they exchange.
        beyond = max(0.0, worst.ratio - TRANSFER_LIMITS.slow_ratio)
        far = 1 - LIMITS.doubt * float(np.exp(-LIMITS.decay_per_ratio * beyond))
        score = far * (LIMITS.score_of_collectives if only_group else LIMITS.score_of_links)
        signal = "collective_s" if only_group else "transfer_s"
        is_compared_with_itself = only_group and case.parallelism.pp_size == 1
        return Suspicion(
            cause=self.cause,
            score=score,
            confidence=LIMITS.confidence_of_score * score,
            culprits=_culprits(suspects),
            fact="; ".join(_facts(case, suspects, TAKE if self.steady else f"now and then {TAKE}")),
            repair=_repair(case, suspects),
            delays=_late_posts(case, suspects),
            min_cost=LIMITS.min_cost_alone if is_compared_with_itself else 0.0,
            # The mean of bursts shows no onset.
            badness=signal_against_others(case, signal, worst.workers) if self.steady else None,
            onset=onset_of_hits(case.steps, is_hit),
            # "since" would say that bursts never pause.
            onset_form="since" if self.steady else "first",
            evidence={
                **workers_evidence(workers),
                "optypes": _op_types(case, suspects),
                "steps": case.steps[is_hit].tolist(),
                "times_as_long": worst.ratio,
                "share_slow": float(worst.share[is_hit].mean()),
                "only_collectives": only_group,
            },
        )


class SlowLink(SlowTransfers):
    """Transfers far slower than usual all the time since the onset."""

    cause = "slow-link"
    steady = True


class FlappingLink(SlowTransfers):
    """Transfers far slower than usual in bursts, and as usual in between."""

    cause = "flapping-link"
    steady = False


def _every_so_many_steps(suspect: NetworkSuspect) -> int | None:
    """Every how many recorded steps one collective of a step is slow, and nothing else: 2 or more.

    So is one that begins before an evaluation or a checkpoint and ends after it: it waits for all
    that happens between two steps, which nothing records. None where it is otherwise.
    """
    net, slow = suspect.network, np.flatnonzero(suspect.shows_in)
    if suspect.has_links or slow.size < LIMITS.min_regular_steps:
        return None
    every = int(np.gcd.reduce(np.diff(slow)))
    possible = (slow[-1] - slow[0]) // every + 1
    if every < 2 or slow.size < LIMITS.min_regular_share * possible:
        return None
    share, stages = np.zeros(suspect.shows_in.size), np.flatnonzero(suspect.groups.any(axis=1))
    for group, collectives in zip(net.case.groups, net.dp_groups, strict=True):
        if collectives is not None:
            over_s = np.maximum(collectives.took_s - collectives.usual_s[:, None], 0.0)
            over_s = over_s[np.isin(collectives.stage, stages)]
            share[group.positions] = over_s.max(axis=0) / np.maximum(over_s.sum(axis=0), 1e-9)
    return every if share[slow].min() >= LIMITS.min_share_of_one else None


def _is_beyond_clocks(suspect: NetworkSuspect) -> bool:
    """Whether its transfers' excess is above the error of the hosts' clocks.

    A transfer may begin by one clock and end by another.
    """
    net, error_s = suspect.network, suspect.network.case.replay.clocks.error_s
    if error_s is None:
        return True
    transfers = net.links if suspect.has_links else net.dp_groups
    usual_s = [median_of(of_group.usual_s) for of_group in transfers if of_group is not None]
    return (suspect.ratio - 1) * max(usual_s, default=np.inf) > error_s


def _transferred_s(group: Features) -> Floats:
    """[steps], seconds of all transfers and collectives of a mean replica."""
    own_s = group.replayer.durations.recorded_s[_network_rows(group.replayer)]
    return np.asarray(own_s.sum(axis=0).reshape(-1, len(group.steps)).mean(axis=0))


def _network_rows(group: Replayer) -> Ints:
    """Operations between stages and among dp ranks."""
    return ops_where(
        group.template,
        lambda spec: (
            spec.kind is OpKind.P2P or (spec.kind is OpKind.COLLECTIVE and spec.axis is Axis.DP)
        ),
    )


def _without_network(group: Replayer) -> Repaired:
    rows = _network_rows(group)
    return Repaired(rows, np.zeros((rows.size, group.grid.start_s.shape[1])))


def _culprits(suspects: Sequence[NetworkSuspect]) -> tuple[Culprit, ...]:
    return tuple(dict.fromkeys(culprit for suspect in suspects for culprit in suspect.culprits))


def _with_own_cost(case: Case, suspects: Sequence[NetworkSuspect]) -> Suspects:
    """The suspects whose own repair wins back time, the worst first; none if all win nothing."""
    kept = culprits_that_cost(
        case,
        len(suspects),
        lambda chosen: durations_repair(slow_transfers([suspects[at] for at in chosen])),
    )
    left = tuple(suspects[at] for at in kept)
    [repaired_s] = step_times_with(case, [_repair(case, left)])
    is_cheap = 1 - repaired_s.mean() / case.replay.simulated_s.mean() < MIN_CULPRIT_COST
    return () if is_cheap and _late_posts(case, left) is None else left


@evidence
def _repair(_: Case, suspects: Suspects) -> Repair:
    return durations_repair(slow_transfers(suspects))


@evidence
def _late_posts(case: Case, suspects: Suspects) -> Repair | None:
    """Late posts of slow transfers, where they matter and the record has them."""
    if not any(suspect.has_links for suspect in suspects):
        return None
    delays, without_s = delays_repair(late_posts(suspects)), case.replay.simulated_s
    with_s = step_times_delayed(case, delays)
    if with_s.mean() < (1 + LIMITS.min_late_share) * without_s.mean():
        return None
    return delays if is_recorded(case, with_s, without_s) else None


# More suspects of a kind share a clause, or are counted.
_MAX_CLAUSES = 3


def _is_pair(suspect: NetworkSuspect) -> bool:
    """Whether one link is slow and either of its ends may be the reason."""
    return bool(suspect.links.sum() == 1 and len(suspect.workers) == len(suspect.culprits) == 2)


def _is_between(suspect: NetworkSuspect) -> bool:
    """Whether the links between two stages are slow on several dp ranks."""
    num_links = suspect.links.sum()
    return bool(num_links > 1 == suspect.links.any(axis=1).sum()) and (
        len(suspect.workers) == 2 * num_links
    )


def _facts(case: Case, suspects: Suspects, verb: str) -> list[str]:
    """A clause by suspect, the worst first; many workers, hosts or dp groups share one."""
    kinds: dict[str, list[NetworkSuspect]] = {}
    for suspect in suspects:
        kind = "pairs" if _is_pair(suspect) else "ends" if suspect.has_links else "groups"
        kinds.setdefault(kind, []).append(suspect)
    facts = []
    for kind, alike in kinds.items():
        if kind == "pairs" or len(alike) <= _MAX_CLAUSES:
            facts += [_fact(case, [suspect], verb) for suspect in alike[:_MAX_CLAUSES]]
        else:
            facts.append(_fact(case, alike, verb))
    more = len(kinds.get("pairs", [])) - _MAX_CLAUSES
    return facts + ([f"{plural(more, 'more pair')} {verb} longer as well"] if more > 0 else [])


def _fact(case: Case, alike: list[NetworkSuspect], verb: str) -> str:
    worst, culprits = alike[0], _culprits(alike)
    least, most = (as_ratio(pick(suspect.ratio for suspect in alike)) for pick in (min, max))
    takes = f"{verb} {most if least == most else f'{least} to {most}'} as long as"
    if _is_pair(worst):
        return (
            f"Transfers between {names_of(culprits)} {takes} those of other links, in both "
            "directions"
        )
    if _is_between(worst):
        one, other = sorted({stage for _, stage in worst.workers})
        ranks = sorted({dp_rank for dp_rank, _ in worst.workers})
        on = "all dp ranks"
        if len(ranks) < case.parallelism.dp_size:
            on = f"dp ranks {ranks[0]} to {ranks[-1]}"
        return f"Transfers between stages {one} and {other} on {on} {takes} those of other links"
    if worst.has_links:
        return f"All transfers of {names_of(culprits)} {takes} those of other links"
    if case.parallelism.pp_size == 1:
        return (
            f"Collectives among all dp ranks {takes} in other steps; with one stage the data do "
            "not show whose network is slow"
        )
    return (
        f"Collectives among the dp ranks of {names_of(culprits, case.parallelism.pp_size)} {takes} "
        "usual, and transfers between the stages do not, so that no single worker can be named"
    )


def _op_types(case: Case, suspects: Suspects) -> list[str]:
    net, types, codes = suspects[0].network, case.replay.window.job.op_types, set[int]()
    has_links = any(suspect.has_links for suspect in suspects)
    has_groups = any(suspect.groups.any() for suspect in suspects)
    for group, links, collectives in zip(case.groups, net.links, net.dp_groups, strict=True):
        optype = group.replayer.template.optype
        if links is not None and has_links:
            codes |= set(optype[np.concatenate([links.low, links.high])].tolist())
        if collectives is not None and has_groups:
            codes |= set(optype[collectives.rows].tolist())
    return [types.name(code) for code in sorted(codes)]
