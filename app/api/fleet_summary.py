"""The figures of the whole fleet, and the sentence that opens its page."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from app.api.fleet import LOSING, MEASURED, Standing
from app.api.job_state import Thresholds, silent_for_s
from app.charts.fleet_headline import Fleet, Losing, fleet_headline
from app.store.loss_sums import Sum

DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Summary:
    """Figures of a project's jobs; hours are GPU-hours, those of today since midnight UTC.

    What was lost today is of closed windows, as in the charts: `gpu_hours_stalled_today`, for which
    jobs that are stalled now have been so, come on top, since no window has them.
    `gpus` are those of jobs that have not finished, `gpus_measured` of those with figures of now.
    """

    jobs: int
    running: int
    gpus: int
    gpus_measured: int
    gpu_hours_lost_today: float
    gpu_hours_today: float
    gpu_hours_stalled_today: float
    lost_per_hour: float
    by_state: dict[str, int]
    by_cause: dict[str, int]
    sentence: str
    sub: str


def midnight_s(now_s: float) -> float:
    """Unix time at which the present day began in UTC."""
    return now_s - now_s % DAY_S


def summary(
    fleet: Sequence[Standing], lost_today: Sum, *, now_s: float, thresholds: Thresholds
) -> Summary:
    """The figures of these jobs; `lost_today` is what their windows of today lost."""
    running = [each for each in fleet if each.state != "finished"]
    measured = [each for each in running if each.state in MEASURED]
    stalled_s = sum(_stalled_gpu_s(each, now_s) for each in running)
    sentence, sub = fleet_headline(_told(fleet, len(measured), now_s, thresholds))
    return Summary(
        jobs=len(fleet),
        running=len(running),
        gpus=sum(each.line.num_gpus for each in running),
        gpus_measured=sum(each.line.num_gpus for each in measured),
        gpu_hours_lost_today=lost_today.gpu_s / 3600,
        gpu_hours_today=lost_today.gpu_s_recorded / 3600,
        gpu_hours_stalled_today=stalled_s / 3600,
        lost_per_hour=sum(each.lost_per_hour or 0.0 for each in running),
        by_state=dict(Counter(each.state for each in fleet)),
        by_cause=_by_cause(fleet),
        sentence=sentence,
        sub=sub,
    )


def _by_cause(fleet: Sequence[Standing]) -> dict[str, int]:
    """Jobs by cause, the most frequent first; a job counts once for each of its causes."""
    counted = Counter(cause for each in fleet for cause in set(each.causes))
    return dict(sorted(counted.items(), key=lambda pair: (-pair[1], pair[0])))


def _stalled_gpu_s(standing: Standing, now_s: float) -> float:
    """GPU-seconds of today for which a job that is stalled now has been so."""
    if standing.state != "stalled" or standing.since_s is None:
        return 0.0
    return standing.line.num_gpus * max(0.0, now_s - max(standing.since_s, midnight_s(now_s)))


def _told(
    fleet: Sequence[Standing], num_measured: int, now_s: float, thresholds: Thresholds
) -> Fleet:
    losing = [
        Losing(
            each.line.name,
            each.lost_per_day or 0.0,
            is_stalled=each.state == "stalled",
            silent_s=silent_for_s(each.line, now_s) or 0.0,
            finding=each.findings[0] if each.findings else None,
            num_stages=each.line.pp_size,
        )
        for each in fleet
        if each.state in LOSING
    ]
    losing.sort(key=lambda each: -each.lost_per_day)
    return Fleet(len(fleet), num_measured, losing, thresholds.alert_slowdown)
