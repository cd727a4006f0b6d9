"""Small collectives as probes of the network.

Three of them have few bytes, so that what they take is latency: those that meet no other stage or
dp rank (they stay within a host), those among stages, and the norm for clipping, which crosses all
hosts. Where the last takes many times as long as the first, some part of the network is slow;
those among stages that are as fast as the first cross no slow part.
"""

from collections.abc import Mapping

import numpy as np

from app.diagnosis.statistics.robust import quantile_of
from app.engine.medians import median_of
from app.engine.what_if import Replayer
from app.trace.ops import Axis, OpKind
from app.trace.window import Floats, Ints

# A collective of all workers that takes so many times as long as small ones shows a slow network.
MIN_SLOWDOWN = 5.0
# Bursts leave more than this share of the steps as they are.
ALWAYS = 0.1
# Collectives among stages that take at most so many times as long cross no slow part of it.
MAX_HEALTHY = 2.0
# All slow links differ by at most this ratio.
MAX_DIFFERENCE = 1.5


def collectives_of(replayer: Replayer, *axes: Axis) -> Ints:
    """Rows of the collectives over these axes."""
    wanted = replayer.template.op_types.flags(
        lambda spec: spec.kind is OpKind.COLLECTIVE and spec.axis in axes
    )
    return np.flatnonzero(wanted[replayer.template.optype])


def small_s(replayer: Replayer) -> float:
    """Median seconds of collectives that meet no other stage or dp rank, 0 without any."""
    rows = collectives_of(replayer, Axis.NONE)
    return median_of(replayer.durations.recorded_s[rows]) if rows.size else 0.0


def slowdown_of_all(replayer: Replayer, quantile: float = 0.5) -> float | None:
    """How many times as long as small collectives the one of all workers takes; None if unknown.

    At this quantile of the steps: a low one shows a slowdown in all of them.
    """
    rows, least_s = collectives_of(replayer, Axis.DP_AND_STAGES), small_s(replayer)
    if not rows.size or least_s <= 0:
        return None
    return quantile_of(replayer.durations.recorded_s[rows], quantile) / least_s


def slowdown_of_common_end(
    replayer: Replayer, hosts: Mapping[tuple[int, int], str], pairs: Ints, took_s: Floats
) -> float | None:
    """How many times as long all links to one end take than without its fault; None if unknown.

    They have nothing to be compared with. The end is slow if the collective of all workers is, and
    those among stages that do not reach it are not.

    Args:
        replayer: the steps.
        hosts: host of each worker, as far as known; with fewer than two, a stage is an end.
        pairs: [links, 2], the stages of each link.
        took_s: [links, dp], typical transfer of the links of one kind, NaN for others.
    """
    compared = np.argwhere(np.isfinite(took_s)).tolist()
    known = took_s[np.isfinite(took_s)]
    if len({link for link, _ in compared}) < 2 or known.max() > MAX_DIFFERENCE * known.min():
        return None
    always, has_hosts = slowdown_of_all(replayer, ALWAYS), len(set(hosts.values())) > 1
    if always is None or always < MIN_SLOWDOWN:
        return None

    def end_of(dp_rank: int, stage: int) -> str:
        return hosts.get((dp_rank, stage), f"{dp_rank}/{stage}") if has_hosts else str(stage)

    ends = [{end_of(dp, stage) for stage in pairs[link].tolist()} for link, dp in compared]
    common = set.intersection(*ends)
    if len(common) != 1:
        return None
    slowdown = slowdown_of_all(replayer)
    rows, template = collectives_of(replayer, Axis.STAGES), replayer.template
    took = replayer.durations.recorded_s[rows].reshape(rows.size, replayer.dp_size, -1)
    beside = [
        float(np.median(took[template.optype[rows] == optype, dp_rank]))
        for optype in np.unique(template.optype[rows]).tolist()
        for dp_rank in range(replayer.dp_size)
        if _is_beside(
            {end_of(dp_rank, p) for p in template.stage[rows[template.optype[rows] == optype]]},
            common,
        )
    ]
    healthy_s = MAX_HEALTHY * small_s(replayer)
    return slowdown if beside and np.median(beside) <= healthy_s else None


def _is_beside(ends: set[str], common: set[str]) -> bool:
    """Whether a collective joins several ends, and none of these."""
    return len(ends) > 1 and not ends & common
