"""The fleet's lines as they stand now: each job's state, what it loses, since when, and why."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from app import words
from app.api.job_state import JobState, Thresholds, job_state, silent_for_s, since_s
from app.engine.metrics import gpu_time_wasted
from app.store.fleet import FleetLine

HOURS_A_DAY = 24.0

# In these states the newest figures tell how the job does now; in the others they are of before.
MEASURED: tuple[JobState, ...] = ("healthy", "straggling")
LOSING: tuple[JobState, ...] = ("straggling", "stalled")
_DIAGNOSED: tuple[JobState, ...] = (*MEASURED, "low-fidelity", "finished")


class Standing(NamedTuple):
    """A job's line and how it stands now.

    `lost_per_hour` are the GPU-hours that it loses an hour as it goes on now, None where that is
    not measured. `since_s` is Unix time.
    """

    line: FleetLine
    state: JobState
    lost_per_hour: float | None
    since_s: float | None
    since_step: int | None

    @property
    def findings(self) -> Sequence[dict[str, Any]] | None:
        """Its costliest causes; None where they are withheld, old, or nobody could look."""
        brief = self.line.brief
        if brief is None or self.state not in _DIAGNOSED:
            return None
        found: list[dict[str, Any]] | None = brief["findings"]
        return found

    @property
    def slowdown(self) -> float | None:
        """The newest that is known; None where none is, or it is not to be trusted."""
        latest = self.line.latest
        return None if latest is None or latest.verdict == "low" else latest.slowdown

    @property
    def causes(self) -> list[str]:
        """Names of these, the costliest first; none where there are none to tell."""
        return [str(each["cause"]) for each in self.findings or ()]

    @property
    def lost_per_day(self) -> float | None:
        """GPU-hours that it loses a day, as it goes on now."""
        return None if self.lost_per_hour is None else HOURS_A_DAY * self.lost_per_hour


def standings(
    lines: Iterable[FleetLine], *, now_s: float, thresholds: Thresholds, is_watched: bool
) -> list[Standing]:
    """How the jobs of these lines stand; `is_watched` while any consumer is alive."""
    found = []
    for line in lines:
        state = job_state(line, now_s=now_s, thresholds=thresholds, is_watched=is_watched)
        found.append(_standing(line, state))
    return found


def silence(standing: Standing, now_s: float) -> str | None:
    """What is not heard of a job, in words; None where it goes on or has ended."""
    line = standing.line
    match standing.state:
        case "silent":
            return f"{words.counted(len(line.silent_ranks or ()), 'rank')} silent"
        case "stalled" | "stale":
            return f"no data for {words.span(silent_for_s(line, now_s) or 0.0)}"
    return None


def _standing(line: FleetLine, state: JobState) -> Standing:
    if state in _DIAGNOSED:
        began_s, step = _onset(line)
    else:
        began_s, step = since_s(line, state), line.last_step
    return Standing(line, state, _lost_per_hour(line, state), began_s, step)


def _onset(line: FleetLine) -> tuple[float | None, int | None]:
    """When the costliest cause began, and with which step."""
    if line.brief is None or not line.brief["findings"]:
        return None, None
    return line.brief["onset_at_s"], line.brief["findings"][0]["onset_step"]


def _lost_per_hour(line: FleetLine, state: JobState) -> float | None:
    if state == "stalled":
        return float(line.num_gpus)
    slowdown = line.latest.slowdown if line.latest and state in MEASURED else None
    return None if slowdown is None else line.num_gpus * gpu_time_wasted(slowdown)
