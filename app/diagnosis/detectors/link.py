"""slow-link and flapping-link: a link, network card or dp group is slow, always or in bursts."""

from functools import partial

import numpy as np
from typing_extensions import override

from app.diagnosis.case import Case
from app.diagnosis.detector import (
    CulpritParts,
    Detector,
    Suspicion,
    as_ratio,
    finding_sentence,
    names_of,
)
from app.diagnosis.evidence.features import Features
from app.diagnosis.evidence.job_changes import signal_against_others
from app.diagnosis.evidence.links import SLOW_RATIO, DpGroups, Links
from app.diagnosis.evidence.network import (
    NetworkSuspect,
    NetworkTransfers,
    drop_minor_suspects,
    network_suspects,
    network_transfers,
)
from app.diagnosis.finding import Culprit, RuledOut
from app.diagnosis.repair import BlamedByGroup, BlamedOps, durations_repair
from app.diagnosis.statistics.persistence import onset_of_hits
from app.trace.window import Floats, Ints

_MAX_LISTED = 64

# Fewest slow steps.
MIN_STEPS = 2
# The only link is compared with itself, so it must be so many times slower.
MIN_RATIO_ALONE = 5.0
# The only dp group is compared with itself, so it must cost this share of GPU time.
MIN_COST_ALONE = 0.05


def slow_transfers(case: Case, cause: str, *, steady: bool) -> Suspicion | RuledOut:
    """The suspicion of transfers that are slow all the time (`steady`), or in bursts."""
    if case.num_workers == 1:
        return RuledOut(cause, "the only worker exchanges nothing with others")
    net = case.cached(network_transfers)
    found = [each for each in case.cached(_suspects) if each.is_steady == steady]
    if len(net.pairs) * case.parallelism.dp_size == 1:
        found = [each for each in found if not each.links.any() or each.ratio >= MIN_RATIO_ALONE]
    if not found:
        return _none(case, cause, net, steady=steady)
    lasting = [each for each in found if each.shows_in.sum() >= MIN_STEPS]
    if not lasting:
        return RuledOut(cause, _too_few(found), insufficient=True)
    significant = [each for each in lasting if _is_beyond_clocks(case, each)]
    if not significant:
        residual_s = case.replay.clocks.residual_s or 0.0
        return RuledOut(
            cause,
            f"transfers take longer by less than the {1e3 * residual_s:.2f} ms by which hosts' "
            "clocks may differ",
            insufficient=True,
            figures={"clock_residual_s": residual_s},
        )
    return _suspicion(case, cause, significant, steady=steady)


def _suspects(case: Case) -> list[NetworkSuspect]:
    return network_suspects(case.cached(network_transfers))


def _too_few(found: list[NetworkSuspect]) -> str:
    if any(each.shows_in.any() for each in found):
        return "transfers were slow in one step only"
    return "some transfers were slow, but no step has so many that it can be told from the others"


def _is_beyond_clocks(case: Case, suspect: NetworkSuspect) -> bool:
    """Whether its transfers' excess is above the error of the hosts' clocks.

    A transfer may begin by one clock and end by another.
    """
    residual_s = case.replay.clocks.residual_s
    if residual_s is None:
        return True
    if suspect.links.any():
        usual_s = [float(np.median(each.usual_s)) for each in case.links if each is not None]
    else:
        usual_s = [float(np.median(each.usual_s)) for each in case.dp_groups if each is not None]
    return (suspect.ratio - 1) * max(usual_s, default=np.inf) > residual_s


def _none(case: Case, cause: str, net: NetworkTransfers, *, steady: bool) -> RuledOut:
    figures = {"typical_share_slow": net.typical_share}
    alone = "in this window it is as fast all the time, and there is no other to compare it with"
    if len(net.pairs) * case.parallelism.dp_size == 1:
        return RuledOut(cause, f"of the only link: {alone}", True, figures=figures)
    if not net.pairs:
        return RuledOut(cause, f"of the only dp group: {alone}", True, figures=figures)
    if steady and net.is_one_workers and not net.is_slow.any():
        theirs = (
            "all links of a kind are one worker's: in this window they are as fast all the time"
        )
        reason = f"{theirs}, and there is no other to compare them with"
        return RuledOut(cause, reason, True, figures=figures)
    reason = (
        "no link and no dp group is far slower than the others"
        if steady
        else "no transfers are slow now and then on one link or dp group only"
    )
    return RuledOut(cause, reason, figures=figures)


def _suspicion(case: Case, cause: str, found: list[NetworkSuspect], *, steady: bool) -> Suspicion:
    """One suspicion for all culprits of the cause, the worst first."""
    verb = "take" if steady else "now and then take"
    found = drop_minor_suspects(case, found)
    parts = CulpritParts(
        len(found),
        lambda chosen: durations_repair(_slow_transfers(case, [found[at] for at in chosen])),
        lambda chosen: _suspicion(case, cause, [found[at] for at in chosen], steady=steady),
    )
    worst = found[0]
    is_hit = np.any([each.shows_in for each in found], axis=0)
    onset = onset_of_hits(case.steps, is_hit)
    culprits = tuple(dict.fromkeys(culprit for each in found for culprit in each.culprits))
    workers = list(dict.fromkeys(worker for each in found for worker in each.workers))
    only_group = not worst.links.any()
    score = _score(worst)

    fact = _fact(case, worst, culprits, verb)

    return Suspicion(
        cause=cause,
        score=score,
        confidence=0.97 * score,
        culprits=culprits,
        wording=partial(finding_sentence, fact),
        repair=durations_repair(_slow_transfers(case, found)),
        min_cost=MIN_COST_ALONE if only_group and case.parallelism.pp_size == 1 else 0.0,
        # The mean of bursts shows no onset.
        badness=signal_against_others(case, _signal(worst), worst.workers) if steady else None,
        onset_step=onset.onset_step,
        end_step=onset.end_step,
        persistence=onset.persistence,
        evidence={
            "workers": [list(worker) for worker in workers[:_MAX_LISTED]],
            "num_workers": len(workers),
            "optypes": _op_types(case, found),
            "steps": case.steps[is_hit].tolist(),
            "times_as_long": worst.ratio,
            "share_slow": float(worst.share[is_hit].mean()),
            "only_collectives": only_group,
        },
        parts=parts,
    )


def _signal(worst: NetworkSuspect) -> str:
    return "transfer_s" if worst.links.any() else "collective_s"


def _score(worst: NetworkSuspect) -> float:
    """0..1 by the ratio; lower for collectives alone, as stages differ in what they exchange."""
    far = 1 - 0.5 * float(np.exp(-2 * max(0.0, worst.ratio - SLOW_RATIO)))
    return far * (0.85 if not worst.links.any() else 0.99)


def _fact(case: Case, worst: NetworkSuspect, culprits: tuple[Culprit, ...], verb: str) -> str:
    share = f"{verb} {as_ratio(worst.ratio)} as long as those of other links"
    if worst.links.any() and len(worst.workers) == 2 and len(worst.culprits) == 2:
        return f"Transfers between {names_of(culprits)} {share}, in both directions"
    if worst.links.any():
        return f"Transfers of {names_of(culprits)} with all others {share}"
    if case.parallelism.pp_size == 1:
        return (
            f"Collectives among all dp ranks {verb} {as_ratio(worst.ratio)} as long as in other "
            "steps; with one stage they cannot tell which worker's network is slow"
        )
    return (
        f"Collectives among the dp ranks of {names_of(culprits, case.parallelism.pp_size)} {verb} "
        f"{as_ratio(worst.ratio)} as long as usual, and its pairs of stages do not, so that no one "
        "worker can be named"
    )


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


def _slow_transfers(case: Case, found: list[NetworkSuspect]) -> BlamedByGroup:
    """Their slow transfers with the expected time."""
    by_group = {}
    for group, links, groups in zip(case.groups, case.links, case.dp_groups, strict=True):
        parts = [_of_links(group, links, found)] if links is not None else []
        if groups is not None:
            parts.append(_of_groups(case, group, groups, found))
        if parts:
            by_group[group.steps] = BlamedOps(
                *(np.concatenate(each) for each in zip(*parts, strict=True))
            )
    return by_group


def _of_links(
    group: Features, links: Links, found: list[NetworkSuspect]
) -> tuple[Ints, Ints, Floats]:
    network = found[0].network
    blamed = np.any([each.links for each in found], axis=0)
    mine = np.array([network.pairs.index(pair) for pair in links.pairs])
    at, dp_rank = np.nonzero(blamed[mine][links.link])
    num_steps = len(group.steps)
    own_s = group.replayer.durations.recorded_s
    lane = (dp_rank[:, None] * num_steps + np.arange(num_steps)).ravel()
    usual_s = np.repeat(links.usual_s[at, dp_rank], num_steps)
    parts = []
    for end in (links.low, links.high):
        row = np.repeat(end[at], num_steps)
        slow = own_s[row, lane] > SLOW_RATIO * usual_s
        parts.append((row[slow], lane[slow], usual_s[slow]))
    row, lane, usual = (np.concatenate(each) for each in zip(*parts, strict=True))
    return row, lane, usual


def _of_groups(
    case: Case, group: Features, groups: DpGroups, found: list[NetworkSuspect]
) -> tuple[Ints, Ints, Floats]:
    blamed = np.any([each.groups for each in found], axis=0)[:, group.positions]
    at, step = np.nonzero(blamed[groups.stage])
    dp_size, num_steps = group.replayer.dp_size, len(group.steps)
    lane = (np.arange(dp_size)[:, None] * num_steps + step).ravel()
    row, usual_s = np.tile(groups.rows[at], dp_size), np.tile(groups.usual_s[at], dp_size)
    own_s = group.replayer.durations.recorded_s[row, lane]
    slow = own_s > usual_s
    return row[slow], lane[slow], usual_s[slow]


class SlowLink(Detector):
    """Transfers far slower than usual all the time since the onset."""

    cause = "slow-link"

    @override
    def detect(self, case: Case) -> Suspicion | RuledOut:
        return slow_transfers(case, self.cause, steady=True)


class FlappingLink(Detector):
    """Transfers far slower than usual in bursts, and as usual in between."""

    cause = "flapping-link"

    @override
    def detect(self, case: Case) -> Suspicion | RuledOut:
        return slow_transfers(case, self.cause, steady=False)
