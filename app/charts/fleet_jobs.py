"""What one job of the fleet lost over a stretch of time."""

from collections.abc import Iterable
from dataclasses import dataclass

from app.charts.figure import Figure


@dataclass(frozen=True, slots=True)
class JobLoss:
    """GPU-hours that a job on `num_gpus` GPUs lost, of those that it was recorded for."""

    name: str
    num_gpus: int
    lost_hours: float
    hours: float

    @property
    def wasted(self) -> float:
        """Share of its GPU time, 1 - 1/S."""
        return self.lost_hours / self.hours

    @property
    def slowdown(self) -> float:
        """S over that time."""
        return 1 / (1 - self.wasted)


def measured(jobs: Iterable[JobLoss]) -> list[JobLoss]:
    """Those of which something was recorded."""
    return [job for job in jobs if job.hours > 0]


def with_caption(figure: Figure, caption: str) -> Figure:
    """The figure, its table with a word on what it leaves out, if that is any."""
    if caption:
        figure["meta"]["table"]["caption"] = caption
    return figure
