"""An alert's state, its transitions, and what is said about one: plain data."""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["firing", "resolved"]


@dataclass(frozen=True, slots=True)
class AlertState:
    """Where one rule stands on one job, over restarts of the job and of the service.

    `num_over` counts the closed windows in a row at or above the threshold, of run `epoch`;
    `since_step` is the first step of the first of them. `window_id` and `slowdown` are those of
    the last window that counted.
    """

    is_firing: bool = False
    num_over: int = 0
    epoch: int | None = None
    since_step: int | None = None
    window_id: str | None = None
    slowdown: float | None = None


@dataclass(frozen=True, slots=True)
class Transition:
    """An alert began or ceased to fire, by what `window_id` showed or because the job ended.

    `num_windows` is how many windows in a row were at or above the threshold; for a resolved
    alert it is 0, and `since_step` is where the window began that showed it.
    """

    kind: Kind
    window_id: str
    slowdown: float
    threshold: float
    since_step: int | None
    num_windows: int
    job_ended: bool = False


@dataclass(frozen=True, slots=True)
class WorstWorker:
    """The worker that alone would slow the job down most."""

    dp_rank: int
    stage: int
    host: str | None
    slowdown: float


@dataclass(frozen=True, slots=True)
class Alert:
    """All that a receiver is told about one transition; `url` is the job's page."""

    job_id: str
    job_name: str
    transition: Transition
    at_s: float
    worst_worker: WorstWorker | None = None
    url: str | None = None
