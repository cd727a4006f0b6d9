"""All of the first stage wait for data: would the others show it, if they waited too?"""

import numpy as np

from app.diagnosis.case import Case
from app.diagnosis.waits import Waits
from app.trace.window import Floats

# So unlikely that the other hosts would show nothing.
BY_CHANCE = 0.1


def only_host(case: Case, found: Waits) -> str | None:
    """The host of the whole first stage, if the others would show that they wait as it does.

    A later stage shows a wait that lasts until after its input has come. Each host is taken to
    wait by itself, as long as the first stage does in one step or another.
    """
    hosts, sizes = case.replay.window.hosts, case.parallelism
    first = {hosts.get((dp_rank, 0)) for dp_rank in range(sizes.dp_size)}
    host = first.pop()
    others = [worker for worker, name in hosts.items() if name != host]
    if first or host is None or not others:
        return None
    dp_rank, stage = min(others, key=lambda worker: (worker[1], worker[0]))
    is_late = found.is_late[:, dp_rank, 0]
    if (found.delay_s[is_late, dp_rank, stage] > found.least_s[is_late]).any():
        return None
    wait_s = found.wait_s[is_late, dp_rank, 0]
    longer = wait_s[:, None] > wait_s + _behind_s(case, dp_rank, stage)[is_late]
    return host if (1 - longer.mean()) ** wait_s.size < BY_CHANCE else None


def _behind_s(case: Case, dp_rank: int, stage: int) -> Floats:
    """[steps], how long after the first stage's first forward another stage's begins."""
    behind_s = np.zeros(case.steps.size)
    for group, late in zip(case.groups, case.delays, strict=True):
        lanes = dp_rank * len(group.steps) + np.arange(len(group.steps))
        here, there = (
            group.replayer.grid.start_s[late.rows[late.is_first & (late.stage == each)][0], lanes]
            for each in (0, stage)
        )
        behind_s[case.at(group)] = there - here
    return behind_s
