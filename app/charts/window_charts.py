"""Every chart that one window's result can draw: to add one, write its file and add its line."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from app.charts.dp_steps import dp_steps
from app.charts.figure import Figure
from app.charts.named_workers import culprit_workers, silent_workers
from app.charts.optypes import optypes
from app.charts.stages import stages
from app.charts.step_axis import StepAxis
from app.charts.step_events import StepEvent
from app.charts.theme import Theme
from app.charts.waited_for import waited_for
from app.charts.worker_steps import worker_steps
from app.charts.workers import Sort, workers
from app.words import Hosts

PerStep = Literal["worker_slowdown", "dp_rank_slowdown", "waited_for_s"]


@dataclass(frozen=True, slots=True)
class Setting:
    """What a chart is drawn with besides the result.

    `axis` is that of the step-time chart above: given it, both have the same x positions.
    `events` are lines through all charts over time. `silent` are workers of which nothing comes
    now, whatever the window's findings say.
    """

    theme: Theme
    hosts: Hosts | None = None
    axis: StepAxis | None = None
    sort: Sort = "rank"
    events: Sequence[StepEvent] = ()
    silent: Sequence[tuple[int, int]] = ()


@dataclass(frozen=True, slots=True)
class WindowChart:
    """How to draw a chart from a window's result (what-if model, section 7).

    `needs` is the key without which there is nothing to draw; `per_step` is what else is needed
    of each step, which is then in the result's `per_step`, or in that of its arrivals.
    """

    draw: Callable[[Mapping[str, Any], Setting], Figure]
    needs: str
    per_step: PerStep | None = None
    names_hosts: bool = False

    def can_draw(self, result: Mapping[str, Any]) -> bool:
        """Whether the result has been measured far enough."""
        return bool(result.get(self.needs))

    def has_steps(self, result: Mapping[str, Any]) -> bool:
        """Whether the result has what is needed of each step."""
        if self.per_step is None:
            return True
        holder = result["arrivals"] if self.per_step == "waited_for_s" else result
        return self.per_step in (holder.get("per_step") or {})


WINDOW_CHARTS: dict[str, WindowChart] = {
    "workers": WindowChart(
        lambda result, setting: workers(
            result["worker_slowdown"],
            hosts=setting.hosts,
            theme=setting.theme,
            sort=setting.sort,
            silent=sorted({*silent_workers(result), *setting.silent}),
            named=culprit_workers(result, setting.hosts),
        ),
        needs="worker_slowdown",
        names_hosts=True,
    ),
    "optypes": WindowChart(
        lambda result, setting: optypes(
            result["optype_slowdown"], times=result.get("optype_time_s"), theme=setting.theme
        ),
        needs="optype_slowdown",
    ),
    "stages": WindowChart(
        lambda result, setting: stages(
            result["stage_share"],
            compute=result.get("stage_compute_s"),
            theme=setting.theme,
            slowdown=result["slowdown"],
        ),
        needs="stage_share",
    ),
    "worker-steps": WindowChart(
        lambda result, setting: worker_steps(
            result["steps"],
            result["per_step"]["worker_slowdown"],
            hosts=setting.hosts,
            theme=setting.theme,
            at=setting.axis,
            events=setting.events,
        ),
        needs="steps",
        per_step="worker_slowdown",
        names_hosts=True,
    ),
    "waited-for": WindowChart(
        lambda result, setting: waited_for(
            result, theme=setting.theme, at=setting.axis, events=setting.events
        ),
        needs="arrivals",
        per_step="waited_for_s",
    ),
    "dp-steps": WindowChart(
        lambda result, setting: dp_steps(
            result["steps"],
            result["per_step"]["dp_rank_slowdown"],
            theme=setting.theme,
            at=setting.axis,
            events=setting.events,
        ),
        needs="steps",
        per_step="dp_rank_slowdown",
    ),
}
