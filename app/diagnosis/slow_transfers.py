"""Slow transfers as a suspicion, whether they are so all the time or in bursts."""

import numpy as np

from app.diagnosis.blamed import Blamed, Blames, repair_of
from app.diagnosis.case import Case
from app.diagnosis.comings import coming
from app.diagnosis.detector import Costed, Suspicion
from app.diagnosis.dp_groups import DpGroups
from app.diagnosis.features import Features
from app.diagnosis.finding import Culprit, RuledOut
from app.diagnosis.links import SLOW, Links
from app.diagnosis.network import Network, network
from app.diagnosis.past import against_others
from app.diagnosis.trouble import Trouble, troubles
from app.diagnosis.wording import sentence, times, who
from app.diagnosis.worst import that_matter
from app.trace.window import Floats, Ints

_MOST_LISTED = 64

# So many steps at least: a window of one tells nothing that lasts.
MIN_STEPS = 2
# The only link there is has none to be held against but itself: it has to be so many times longer.
ALONE = 5.0
# Collectives of the only dp group, which have nothing but themselves to be held against, have to
# cost this share of GPU time.
MIN_COST_ALONE = 0.05


def transfers(case: Case, cause: str, *, steady: bool) -> Suspicion | RuledOut:
    """Slow ones that are so all the time, or else those that come in bursts."""
    if case.parallelism.num_workers == 1:
        return RuledOut(cause, "the only worker exchanges nothing with others")
    net = case.ask(network)
    found = [each for each in case.ask(_troubles) if each.is_steady == steady]
    if len(net.pairs) * case.parallelism.dp_size == 1:
        found = [each for each in found if not each.links.any() or each.ratio >= ALONE]
    if not found:
        return _none(case, cause, net, steady=steady)
    lasting = [each for each in found if each.is_hit.sum() >= MIN_STEPS]
    if not lasting:
        return RuledOut(cause, _too_few(found), insufficient=True)
    certain = [each for each in lasting if _is_told_by_clocks(case, each)]
    if not certain:
        residual_s = case.replay.clocks.residual_s or 0.0
        return RuledOut(
            cause,
            f"transfers take longer by less than the {1e3 * residual_s:.2f} ms by which hosts' "
            "clocks may differ",
            insufficient=True,
            figures={"clock_residual_s": residual_s},
        )
    return _suspicion(case, cause, certain, steady=steady)


def _troubles(case: Case) -> list[Trouble]:
    return troubles(case.ask(network))


def _too_few(found: list[Trouble]) -> str:
    if any(each.is_hit.any() for each in found):
        return "transfers were slow in one step only"
    return "some transfers were slow, but no step has so many that it can be told from the others"


def _is_told_by_clocks(case: Case, trouble: Trouble) -> bool:
    """Whether its transfers are longer by more than what is not known of the hosts' clocks.

    A transfer ends by one clock and begins, where the other arrives later, by another one.
    """
    residual_s = case.replay.clocks.residual_s
    if residual_s is None:
        return True
    if trouble.links.any():
        usual_s = [float(np.median(each.usual_s)) for each in case.links if each is not None]
    else:
        usual_s = [float(np.median(each.usual_s)) for each in case.dp_groups if each is not None]
    return (trouble.ratio - 1) * max(usual_s, default=np.inf) > residual_s


def _none(case: Case, cause: str, net: Network, *, steady: bool) -> RuledOut:
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


def _suspicion(case: Case, cause: str, found: list[Trouble], *, steady: bool) -> Suspicion:
    """One for all culprits of one cause, the worst first."""
    verb = "take" if steady else "now and then take"
    found = that_matter(case, found)
    worst = found[0]
    is_hit = np.any([each.is_hit for each in found], axis=0)
    lasts = coming(case.steps, is_hit)
    to_blame = tuple(dict.fromkeys(culprit for each in found for culprit in each.culprits))
    workers = list(dict.fromkeys(worker for each in found for worker in each.workers))
    only_group = not worst.links.any()
    certain = _certain(worst)

    def wording(costed: Costed) -> str:
        return sentence(_fact(case, worst, to_blame, verb), costed)

    return Suspicion(
        cause=cause,
        score=certain,
        confidence=0.97 * certain,
        culprits=to_blame,
        wording=wording,
        repair=repair_of(_blames(case, found)),
        min_cost=MIN_COST_ALONE if only_group and case.parallelism.pp_size == 1 else 0.0,
        # Of bursts the mean tells no beginning.
        course=against_others(case, _signal(worst), worst.workers) if steady else None,
        onset_step=lasts.onset_step,
        persistence=lasts.persistence,
        evidence={
            "workers": [list(worker) for worker in workers[:_MOST_LISTED]],
            "num_workers": len(workers),
            "optypes": _op_types(case, found),
            "steps": case.steps[is_hit].tolist(),
            "times_as_long": worst.ratio,
            "share_slow": float(worst.share[is_hit].mean()),
            "only_collectives": only_group,
        },
    )


def _signal(worst: Trouble) -> str:
    return "transfer_s" if worst.links.any() else "collective_s"


def _certain(worst: Trouble) -> float:
    """Collectives alone are weaker evidence: stages differ in what they exchange."""
    far = 1 - 0.5 * float(np.exp(-2 * max(0.0, worst.ratio - SLOW)))
    return far * (0.85 if not worst.links.any() else 0.99)


def _fact(case: Case, worst: Trouble, to_blame: tuple[Culprit, ...], verb: str) -> str:
    share = f"{verb} {times(worst.ratio)} as long as those of other links"
    if worst.links.any() and len(worst.workers) == 2 and len(worst.culprits) == 2:
        return f"Transfers between {who(to_blame)} {share}, in both directions"
    if worst.links.any():
        return f"Transfers of {who(to_blame)} with all others {share}"
    if case.parallelism.pp_size == 1:
        return (
            f"Collectives among all dp ranks {verb} {times(worst.ratio)} as long as in other "
            "steps; with one stage they cannot tell which worker's network is slow"
        )
    return (
        f"Collectives among the dp ranks of {who(to_blame, case.parallelism.pp_size)} {verb} "
        f"{times(worst.ratio)} as long as usual, and its pairs of stages do not, so that no one "
        "worker can be named"
    )


def _op_types(case: Case, found: list[Trouble]) -> list[str]:
    types = case.replay.window.job.op_types
    codes: set[int] = set()
    for links, groups, group in zip(case.links, case.dp_groups, case.groups, strict=True):
        if links is not None and any(each.links.any() for each in found):
            template = group.replayer.template
            codes |= set(template.optype[np.concatenate([links.low, links.high])].tolist())
        if groups is not None and any(each.groups.any() for each in found):
            codes |= set(group.replayer.template.optype[groups.rows].tolist())
    return [types.name(code) for code in sorted(codes)]


def _blames(case: Case, found: list[Trouble]) -> Blames:
    """Their slow transfers, at what those of their type take."""
    blames = {}
    for group, links, groups in zip(case.groups, case.links, case.dp_groups, strict=True):
        parts = [_of_links(group, links, found)] if links is not None else []
        if groups is not None:
            parts.append(_of_groups(case, group, groups, found))
        if parts:
            blames[group.steps] = Blamed(
                *(np.concatenate(each) for each in zip(*parts, strict=True))
            )
    return blames


def _of_links(group: Features, links: Links, found: list[Trouble]) -> tuple[Ints, Ints, Floats]:
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
        slow = own_s[row, lane] > SLOW * usual_s
        parts.append((row[slow], lane[slow], usual_s[slow]))
    row, lane, usual = (np.concatenate(each) for each in zip(*parts, strict=True))
    return row, lane, usual


def _of_groups(
    case: Case, group: Features, groups: DpGroups, found: list[Trouble]
) -> tuple[Ints, Ints, Floats]:
    blamed = np.any([each.groups for each in found], axis=0)[:, case.at(group)]
    at, step = np.nonzero(blamed[groups.stage])
    dp_size, num_steps = group.replayer.dp_size, len(group.steps)
    lane = (np.arange(dp_size)[:, None] * num_steps + step).ravel()
    row, usual_s = np.tile(groups.rows[at], dp_size), np.tile(groups.usual_s[at], dp_size)
    own_s = group.replayer.durations.recorded_s[row, lane]
    slow = own_s > usual_s
    return row[slow], lane[slow], usual_s[slow]
