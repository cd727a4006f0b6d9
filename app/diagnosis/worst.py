"""Which of several troubles of the network matter, beside the worst one?"""

import numpy as np

from app.diagnosis.case import Case
from app.diagnosis.trouble import Trouble

# A dp group that loses less of what the worst trouble does is no trouble of its own.
LITTLE = 0.1


def that_matter(case: Case, found: list[Trouble]) -> list[Trouble]:
    """The worst first, without dp groups that lose little beside it.

    Stages differ in what they exchange: beside a slow link, that is the likelier reason.
    """
    lost = {id(each): _lost_s(case, each) for each in found}
    found = sorted(found, key=lambda each: -lost[id(each)])
    least_s = LITTLE * lost[id(found[0])]
    return [each for each in found if each.links.any() or lost[id(each)] >= least_s]


def _lost_s(case: Case, trouble: Trouble) -> float:
    """Roughly, in seconds, what its slow transfers take too long."""
    net, lost_s = trouble.network, 0.0
    usual_s = [np.median(each.usual_s) for each in case.links if each is not None]
    if usual_s:
        lost_s += float(net.excess[trouble.links].sum() * np.median(usual_s))
    for group, each in zip(case.groups, case.dp_groups, strict=True):
        if each is not None:
            at = case.at(group)
            stage_s = np.bincount(each.stage, each.usual_s, minlength=net.group_pace.shape[0])
            over = np.where(trouble.groups[:, at], net.group_pace[:, at] - 1, 0.0)
            lost_s += float((over * stage_s[:, None]).sum())
    return lost_s
