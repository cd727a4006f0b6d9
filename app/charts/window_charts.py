"""Every chart that one window's result can draw: to add one, write its file and add its line."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.charts.figure import Figure
from app.charts.optypes import optypes
from app.charts.stages import stages
from app.charts.theme import Theme
from app.charts.words import Hosts
from app.charts.worker_steps import worker_steps
from app.charts.workers import workers


@dataclass(frozen=True, slots=True)
class WindowChart:
    """How to draw a chart from a window's result (what-if model, section 7).

    `needs` is the key without which there is nothing to draw; it may be inside `per_step`.
    """

    draw: Callable[[Mapping[str, Any], Hosts | None, Theme, Sequence[int] | None], Figure]
    needs: str
    per_step: bool = False

    def can_draw(self, result: Mapping[str, Any]) -> bool:
        """Whether the result has been measured far enough."""
        return bool(result.get(self.needs))


WINDOW_CHARTS: dict[str, WindowChart] = {
    "workers": WindowChart(
        lambda result, hosts, theme, _: workers(
            result["worker_slowdown"], hosts=hosts, theme=theme
        ),
        needs="worker_slowdown",
    ),
    "optypes": WindowChart(
        lambda result, _hosts, theme, _: optypes(result["optype_slowdown"], theme=theme),
        needs="optype_slowdown",
    ),
    "stages": WindowChart(
        lambda result, _hosts, theme, _: stages(
            result["stage_share"], theme=theme, slowdown=result["slowdown"]
        ),
        needs="stage_share",
    ),
    "worker-steps": WindowChart(
        lambda result, hosts, theme, axis_steps: worker_steps(
            result["steps"],
            result["per_step"]["worker_slowdown"],
            hosts=hosts,
            theme=theme,
            axis_steps=axis_steps,
        ),
        needs="per_step",
        per_step=True,
    ),
}
