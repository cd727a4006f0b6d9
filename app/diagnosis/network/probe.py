"""Small collectives as probes of the network.

Three of them have few bytes, so that what they take is latency: those that meet no other stage or
dp rank (they stay within a host), those among stages, and the norm for clipping, which crosses all
hosts. Where the last takes many times as long as the first, some part of the network is slow;
those among stages that are as fast as the first cross no slow part.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from app.diagnosis.features import ops_where
from app.diagnosis.statistics.robust import quantile_of
from app.engine.medians import median_of
from app.engine.what_if import Replayer
from app.trace.ops import Axis, OpKind
from app.trace.window import Floats, Ints


@dataclass(frozen=True, slots=True)
class ProbeLimits:
    """From when on small collectives show a slow network. All were chosen on made jobs."""

    # A collective of all workers shows it if it takes so many times as long as small ones,
    min_slowdown: float = 5.0
    # also in this share of the steps, the fastest: bursts leave more than that as they are.
    always: float = 0.1
    # Collectives among stages that take at most so many times as long cross no slow part of it.
    max_healthy: float = 2.0
    # All slow links differ by at most this ratio.
    max_difference: float = 1.5


LIMITS = ProbeLimits()


def collectives_of(replayer: Replayer, *axes: Axis) -> Ints:
    """Rows of the collectives over these axes."""
    return ops_where(
        replayer.template, lambda spec: spec.kind is OpKind.COLLECTIVE and spec.axis in axes
    )


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
    those among stages that do not reach it are not. With fewer than two known hosts, a stage is an
    end.

    Shapes: `pairs` [links, 2] are stages, `took_s` [links, dp] is a typical transfer of the links
    of one kind, NaN for others.
    """
    compared = np.argwhere(np.isfinite(took_s)).tolist()
    known = took_s[np.isfinite(took_s)]
    are_few = len({link for link, _ in compared}) < 2
    if are_few or known.max() > LIMITS.max_difference * known.min():
        return None
    always, has_hosts = slowdown_of_all(replayer, LIMITS.always), len(set(hosts.values())) > 1
    if always is None or always < LIMITS.min_slowdown:
        return None

    def end_of(dp_rank: int, stage: int) -> str:
        return hosts.get((dp_rank, stage), f"{dp_rank}/{stage}") if has_hosts else str(stage)

    ends = [{end_of(dp, stage) for stage in pairs[link].tolist()} for link, dp in compared]
    common = set.intersection(*ends)
    if len(common) != 1:
        return None
    rows, template = collectives_of(replayer, Axis.STAGES), replayer.template
    took_s = replayer.durations.recorded_s[rows].reshape(rows.size, replayer.dp_size, -1)
    beside_s = []
    for code in np.unique(template.optype[rows]).tolist():
        is_one = template.optype[rows] == code
        for dp_rank in range(replayer.dp_size):
            joined = {end_of(dp_rank, stage) for stage in template.stage[rows[is_one]].tolist()}
            if len(joined) > 1 and not joined & common:
                beside_s.append(float(np.median(took_s[is_one, dp_rank])))
    if not beside_s or np.median(beside_s) > LIMITS.max_healthy * small_s(replayer):
        return None
    return slowdown_of_all(replayer)
