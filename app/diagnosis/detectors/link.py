"""slow-link and flapping-link: a link, network card or dp group is slow, always or in bursts."""

from dataclasses import replace
from functools import partial

import numpy as np
from typing_extensions import override

from app.diagnosis.case import Case
from app.diagnosis.culprit_costs import MIN_CULPRIT_COST, culprits_that_cost
from app.diagnosis.detector import (
    CostFigures,
    Detector,
    Suspicion,
    as_ratio,
    finding_sentence,
    names_of,
    percent,
    plural,
)
from app.diagnosis.evidence.features import Features
from app.diagnosis.evidence.job_changes import signal_against_others
from app.diagnosis.evidence.links import SLOW_RATIO
from app.diagnosis.evidence.network import (
    MAX_WARM_UP_STEPS,
    NetworkTransfers,
    network_transfers,
)
from app.diagnosis.evidence.network_probe import slowdown_of_all
from app.diagnosis.evidence.network_suspects import (
    NetworkSuspect,
    common_hosts,
    drop_minor_suspects,
    is_network_wide,
    network_suspects,
)
from app.diagnosis.fidelity import is_recorded
from app.diagnosis.network_repair import late_posts, slow_transfers
from app.diagnosis.repair import Repair, Repaired, delays_repair, durations_repair
from app.diagnosis.statistics.persistence import onset_of_hits
from app.diagnosis.suspicions import clock_doubt, step_times_delayed, step_times_with
from app.engine.medians import median_of
from app.engine.what_if import Replayer
from app.result.finding import RuledOut
from app.result.sentence import TAKE
from app.trace.ops import Axis, OpKind
from app.trace.window import Floats, Ints

_MAX_LISTED = 64

# From this share of the step on, a network that may be slow everywhere is worth mentioning; the
# second one where small collectives do not show that it is fast.
MIN_NETWORK_SHARE = 0.3, 0.05
MIN_DOUBTFUL = 3.0  # times as long as small collectives
# So is a smaller share where all links between hosts have an end in common.
MIN_SHARE_OF_HOSTS = 0.1, 0.03
# Links of unknown hosts so far apart may be slow.
MIN_RATIO_APART = 2.0
# Fewest slow steps.
MIN_STEPS = 2
# Late posts of slow transfers add at least this share to the replayed step.
MIN_LATE_SHARE = 0.01
# One collective of a step holds so much of what its slow ones take longer: a network that is slow
# for a while slows all that it carries in that while.
MIN_SHARE_OF_ONE = 0.9
# So many slow steps at one distance, of those that could be: two are always at one.
MIN_REGULAR_STEPS, MIN_REGULAR_SHARE = 3, 0.75
# The only dp group is compared with itself, so it must cost this share of GPU time.
MIN_COST_ALONE = 0.05


def suspected_transfers(case: Case, cause: str, *, steady: bool) -> Suspicion | RuledOut:
    """The suspicion of transfers that are slow all the time (`steady`), or in bursts."""
    if case.num_workers == 1:
        return RuledOut(cause, "the only worker exchanges nothing with others")
    hosts = case.replay.window.hosts
    if len(hosts) == case.num_workers and len(set(hosts.values())) == 1:
        only = next(iter(hosts.values()))
        return RuledOut(cause, f"all workers are on {only}: what they exchange crosses no network")
    net = case.cached(network_transfers)
    found = [each for each in case.cached(_suspects) if each.is_steady == steady]
    if not found:
        return _none(case, cause, net, steady=steady)
    lasting = [each for each in found if each.shows_in.sum() >= MIN_STEPS]
    if not lasting:
        return RuledOut(cause, _too_few(found), insufficient=True)
    crossing = [suspect for suspect in lasting if _every_so_many_steps(case, suspect)]
    lasting = [suspect for suspect in lasting if suspect not in crossing]
    if not lasting:
        return _crosses_steps(case, cause, crossing[0])
    after_begin = [each for each in lasting if not _is_warm_up(case, each)]
    if not after_begin:
        reason = "transfers were slow in the first steps only, in which connections are set up"
        return RuledOut(cause, reason, insufficient=True)
    significant = [each for each in after_begin if _is_beyond_clocks(case, each)]
    if not significant:
        return RuledOut(
            cause,
            f"cannot tell: transfers take longer by less than the clocks' error, as "
            f"{clock_doubt(case)}",
            insufficient=True,
            figures={"clock_residual_s": case.replay.clocks.error_s or 0.0},
        )
    judged = _with_own_cost(case, drop_minor_suspects(case, significant))
    if not judged:
        if steady and (nothing_faster := _slow_everywhere(case, net)):
            return nothing_faster
        judged = significant[:1]
    return _undecided(cause, judged) or _suspicion(case, cause, judged, steady=steady)


def _undecided(cause: str, found: list[NetworkSuspect]) -> RuledOut | None:
    """The reason where slow links are clear, and whose network it is is not."""
    if not any(each.links.any() for each in found):
        return None
    ratio = as_ratio(found[0].ratio)
    slow = float(np.any([each.links for each in found], axis=0).mean())
    figures = {"share_of_links_slow": slow, "times_as_long": found[0].ratio}
    if hosts := common_hosts(found):
        reason = (
            f"all links between {hosts[0]} and {hosts[1]} take {ratio} as long as expected: which "
            "of the two hosts' networks is slow is not known"
        )
    elif is_network_wide(found):
        reason = (
            f"{percent(slow)} of all links are slow, the worst take {ratio} as long as expected, "
            "and no single worker or host has all of them: whose network is slow is not known"
        )
    else:
        return None
    return RuledOut(cause, reason, insufficient=True, figures=figures)


def _is_warm_up(case: Case, suspect: NetworkSuspect) -> bool:
    """Whether only the first steps of a run show it."""
    begins = case.extended_history.num_before == 0
    return begins and not suspect.shows_in[MAX_WARM_UP_STEPS:].any()


def _every_so_many_steps(case: Case, suspect: NetworkSuspect) -> int | None:
    """Every how many recorded steps one collective of a step is slow, and nothing else: 2 or more.

    So is one that begins before an evaluation or a checkpoint and ends after it: it waits for all
    that happens between two steps, which nothing records. None where it is otherwise.
    """
    slow = np.flatnonzero(suspect.shows_in)
    if suspect.links.any() or slow.size < MIN_REGULAR_STEPS:
        return None
    every = int(np.gcd.reduce(np.diff(slow)))
    if every < 2 or slow.size < MIN_REGULAR_SHARE * ((slow[-1] - slow[0]) // every + 1):
        return None
    share, stages = np.zeros(case.steps.size), np.flatnonzero(suspect.groups.any(axis=1))
    for group, of_stages in zip(case.groups, case.dp_groups, strict=True):
        if of_stages is not None:
            over_s = np.maximum(of_stages.took_s - of_stages.usual_s[:, None], 0.0)
            over_s = over_s[np.isin(of_stages.stage, stages)]
            share[group.positions] = over_s.max(axis=0) / np.maximum(over_s.sum(axis=0), 1e-9)
    return every if share[slow].min() >= MIN_SHARE_OF_ONE else None


def _crosses_steps(case: Case, cause: str, suspect: NetworkSuspect) -> RuledOut:
    every = _every_so_many_steps(case, suspect)
    reason = (
        f"every {every} steps one collective takes {as_ratio(suspect.ratio)} as long, as one does "
        "across an evaluation or a checkpoint: what happens between steps is not recorded"
    )
    figures = {"times_as_long": suspect.ratio}
    return RuledOut(cause, reason, insufficient=True, figures=figures)


def _suspects(case: Case) -> list[NetworkSuspect]:
    return network_suspects(case.cached(network_transfers))


def _too_few(found: list[NetworkSuspect]) -> str:
    if any(each.shows_in.any() for each in found):
        return "transfers were slow in one step only"
    return "some transfers were slow, but no step has enough of them to stand out"


def _is_beyond_clocks(case: Case, suspect: NetworkSuspect) -> bool:
    """Whether its transfers' excess is above the error of the hosts' clocks.

    A transfer may begin by one clock and end by another.
    """
    error_s = case.replay.clocks.error_s
    if error_s is None:
        return True
    transfers = case.links if suspect.links.any() else case.dp_groups
    usual_s = [median_of(group.usual_s) for group in transfers if group is not None]
    return (suspect.ratio - 1) * max(usual_s, default=np.inf) > error_s


def _none(case: Case, cause: str, net: NetworkTransfers, *, steady: bool) -> RuledOut:
    typical = median_of(net.typical_share) if net.typical_share.size else 0.0
    figures = {"typical_share_slow": typical}
    alone = "is as fast all the time in this window, and there is no other to compare it with"
    if len(net.pairs) * case.parallelism.dp_size == 1:
        return RuledOut(cause, f"the only link {alone}", True, figures=figures)
    if not net.pairs:
        only = RuledOut(cause, f"the only dp group {alone}", True, figures=figures)
        return (_slow_everywhere(case, net) if steady else None) or only
    if steady and net.is_one_workers and not net.is_slow.any():
        theirs = "all links of a kind end at one worker and are as fast all the time in this window"
        reason = f"{theirs}, and there is no other to compare them with"
        return RuledOut(cause, reason, True, figures=figures)
    if steady and (slow := _topology(case) or _slow_everywhere(case, net)):
        return slow
    reason = (
        "no link and no dp group is far slower than the others"
        if steady
        else "no single link or dp group is slow now and then"
    )
    return RuledOut(cause, reason, figures=figures)


def _slow_everywhere(case: Case, net: NetworkTransfers) -> RuledOut | None:
    """The reason where the network takes much of the step and no part of it stands out.

    Without anything faster to compare it with, it may be slow everywhere, or be no better.
    """
    hosts = net.hosts_of_all
    of_all = [slowdown_of_all(group.replayer) for group in case.groups]
    is_doubtful = any(each is None or each >= MIN_DOUBTFUL for each in of_all)
    least = (MIN_SHARE_OF_HOSTS if hosts else MIN_NETWORK_SHARE)[is_doubtful]
    usual = case.is_usual & ~net.is_warm_up
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
    both = (
        f"transfers between stages and collectives among dp ranks take {percent(share)} of the step"
    )
    if case.parallelism.pp_size == 1:
        reason = (
            f"collectives among dp ranks take {percent(share)} of the step; with one stage the "
            "data do not show whether a worker's network is slow, and whose"
        )
    elif hosts:
        reason = (
            f"{both}; all links between hosts end at {' and '.join(hosts)}, so that no other shows "
            "whether they are slow"
        )
    else:
        reason = (
            f"{both}, and no link or dp group is far slower than the others: if all are slow, "
            "nothing in the job shows it"
        )
    return RuledOut("slow-link", reason, insufficient=True, figures={"network_share": share})


def _topology(case: Case) -> RuledOut | None:
    """The reason where links of unknown hosts differ as those within and between hosts may."""
    apart = max((each.apart for each in case.links if each is not None), default=1.0)
    if len(case.replay.window.hosts) == case.num_workers or apart < MIN_RATIO_APART:
        return None
    reason = (
        f"some links take {as_ratio(apart)} as long as the fastest ones; without the names of "
        "hosts, slow links and links between hosts look alike"
    )
    return RuledOut("slow-link", reason, insufficient=True, figures={"times_as_long": apart})


def _transferred_s(group: Features) -> Floats:
    """[steps], seconds of all transfers and collectives of a mean replica."""
    own_s = group.replayer.durations.recorded_s[_network_rows(group.replayer)]
    return np.asarray(own_s.sum(axis=0).reshape(-1, len(group.steps)).mean(axis=0))


def _network_rows(group: Replayer) -> Ints:
    """Operations between stages and among dp ranks."""
    wanted = group.template.op_types.flags(
        lambda spec: (
            spec.kind is OpKind.P2P or (spec.kind is OpKind.COLLECTIVE and spec.axis is Axis.DP)
        )
    )
    return np.flatnonzero(wanted[group.template.optype])


def _without_network(group: Replayer) -> Repaired:
    rows = _network_rows(group)
    return Repaired(rows, np.zeros((rows.size, group.grid.start_s.shape[1])))


def _suspicion(case: Case, cause: str, found: list[NetworkSuspect], *, steady: bool) -> Suspicion:
    """One suspicion for all culprits of the cause, the worst first."""
    verb = TAKE if steady else f"now and then {TAKE}"
    worst = found[0]
    is_hit = np.any([each.shows_in for each in found], axis=0)
    onset = onset_of_hits(case.steps, is_hit)
    culprits = tuple(dict.fromkeys(culprit for each in found for culprit in each.culprits))
    workers = list(dict.fromkeys(worker for each in found for worker in each.workers))
    only_group = not worst.links.any()
    score = _score(worst)

    fact = "; ".join(_facts(case, found, verb))

    return Suspicion(
        cause=cause,
        score=score,
        confidence=0.97 * score,
        culprits=culprits,
        wording=partial(finding_sentence if steady else _burst_sentence, fact),
        repair=case.cached_for(_repair, tuple(found)),
        delays=case.cached_for(_late_posts, tuple(found)),
        min_cost=MIN_COST_ALONE if only_group and case.parallelism.pp_size == 1 else 0.0,
        # The mean of bursts shows no onset.
        badness=signal_against_others(case, _signal(worst), worst.workers) if steady else None,
        onset_step=onset.onset_step,
        end_step=onset.end_step,
        persistence=onset.persistence,
        onset_form="since" if steady else "first",
        evidence={
            "workers": [list(worker) for worker in workers[:_MAX_LISTED]],
            "num_workers": len(workers),
            "optypes": _op_types(case, found),
            "steps": case.steps[is_hit].tolist(),
            "times_as_long": worst.ratio,
            "share_slow": float(worst.share[is_hit].mean()),
            "only_collectives": only_group,
        },
    )


def _with_own_cost(case: Case, found: list[NetworkSuspect]) -> list[NetworkSuspect]:
    """The suspects whose own repair wins back time, the worst first; none if all win nothing."""
    kept = culprits_that_cost(
        case, len(found), lambda chosen: _repair(case, tuple(found[at] for at in chosen))
    )
    left = tuple(found[at] for at in kept)
    [repaired_s] = step_times_with(case, [case.cached_for(_repair, left)])
    is_cheap = 1 - repaired_s.mean() / case.replay.simulated_s.mean() < MIN_CULPRIT_COST
    return [] if is_cheap and case.cached_for(_late_posts, left) is None else list(left)


def _repair(case: Case, found: tuple[NetworkSuspect, ...]) -> Repair:
    return durations_repair(slow_transfers(case, list(found)))


def _late_posts(case: Case, found: tuple[NetworkSuspect, ...]) -> Repair | None:
    """Late posts of slow transfers, where they matter and the record has them."""
    if not any(each.links.any() for each in found):
        return None
    delays, without_s = delays_repair(late_posts(case, list(found))), case.replay.simulated_s
    with_s = step_times_delayed(case, delays)
    if with_s.mean() < (1 + MIN_LATE_SHARE) * without_s.mean():
        return None
    return delays if is_recorded(case, with_s, without_s) else None


def _signal(worst: NetworkSuspect) -> str:
    return "transfer_s" if worst.links.any() else "collective_s"


def _score(worst: NetworkSuspect) -> float:
    """0..1 by the ratio; lower for collectives alone, as stages differ in what they exchange."""
    far = 1 - 0.5 * float(np.exp(-2 * max(0.0, worst.ratio - SLOW_RATIO)))
    return far * (0.85 if not worst.links.any() else 0.99)


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


def _facts(case: Case, found: list[NetworkSuspect], verb: str) -> list[str]:
    """A clause for each suspect, the worst first; many workers, hosts or dp groups share one."""
    kinds: dict[str, list[NetworkSuspect]] = {}
    for each in found:
        kind = "pairs" if _is_pair(each) else "ends" if each.links.any() else "groups"
        kinds.setdefault(kind, []).append(each)
    facts = []
    for kind, alike in kinds.items():
        if kind == "pairs" or len(alike) <= _MAX_CLAUSES:
            facts += [_fact(case, [each], verb) for each in alike[:_MAX_CLAUSES]]
        else:
            facts.append(_fact(case, alike, verb))
    more = len(kinds.get("pairs", [])) - _MAX_CLAUSES
    return facts + ([f"{plural(more, 'more pair')} {verb} longer as well"] if more > 0 else [])


def _fact(case: Case, alike: list[NetworkSuspect], verb: str) -> str:
    worst = alike[0]
    culprits = tuple(dict.fromkeys(culprit for each in alike for culprit in each.culprits))
    least, most = (as_ratio(pick(each.ratio for each in alike)) for pick in (min, max))
    ratio = most if least == most else f"{least} to {most}"
    share = f"{verb} {ratio} as long as those of other links"
    if _is_pair(worst):
        return f"Transfers between {names_of(culprits)} {share}, in both directions"
    if _is_between(worst):
        one, other = sorted({stage for _, stage in worst.workers})
        ranks = sorted({dp_rank for dp_rank, _ in worst.workers})
        on = "all dp ranks"
        if len(ranks) < case.parallelism.dp_size:
            on = f"dp ranks {ranks[0]} to {ranks[-1]}"
        return f"Transfers between stages {one} and {other} on {on} {share}"
    if worst.links.any():
        return f"All transfers of {names_of(culprits)} {share}"
    if case.parallelism.pp_size == 1:
        return (
            f"Collectives among all dp ranks {verb} {ratio} as long as in other steps; with one "
            "stage the data do not show whose network is slow"
        )
    return (
        f"Collectives among the dp ranks of {names_of(culprits, case.parallelism.pp_size)} {verb} "
        f"{ratio} as long as usual, and transfers between the stages do not, so that no single "
        "worker can be named"
    )


def _burst_sentence(fact: str, costs: CostFigures) -> str:
    """Bursts have a first step; "since" would say that they never pause."""
    first = "" if costs.onset_step is None else f", first in step {costs.onset_step}"
    return finding_sentence(f"{fact}{first}", replace(costs, onset_step=None))


def _op_types(case: Case, found: list[NetworkSuspect]) -> list[str]:
    types = case.replay.window.job.op_types
    codes: set[int] = set()
    for links, groups, group in zip(case.links, case.dp_groups, case.groups, strict=True):
        if links is not None and any(each.links.any() for each in found):
            template = group.replayer.template
            codes |= set(template.optype[np.concatenate([links.low, links.high])].tolist())
        if groups is not None and any(each.groups.any() for each in found):
            codes |= set(group.replayer.template.optype[groups.rows].tolist())
    return [types.name(code) for code in sorted(codes)]


class SlowLink(Detector):
    """Transfers far slower than usual all the time since the onset."""

    cause = "slow-link"

    @override
    def detect(self, case: Case) -> Suspicion | RuledOut:
        return suspected_transfers(case, self.cause, steady=True)


class FlappingLink(Detector):
    """Transfers far slower than usual in bursts, and as usual in between."""

    cause = "flapping-link"

    @override
    def detect(self, case: Case) -> Suspicion | RuledOut:
        return suspected_transfers(case, self.cause, steady=False)
