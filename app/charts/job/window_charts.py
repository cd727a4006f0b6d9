"""Every chart that one window's result can draw: to add one, write its file and add its row.

The worker heatmap outlines the workers that findings name, and crosses out silent ones.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from app.charts.base.figure import PlotlyFigure
from app.charts.base.step_axis import StepAxis, StepEvent
from app.charts.base.theme import Theme
from app.charts.job.optypes import optypes
from app.charts.job.stages import stages
from app.charts.job.step_heatmaps import dp_steps, worker_steps
from app.charts.job.waits import waited_for
from app.charts.worker.grid import Sort
from app.charts.worker.heatmap import worker_heatmap
from app.formatting import Hosts
from app.result import causes

Worker = tuple[int, int]  # dp rank, stage


def silent_workers(result: Mapping[str, Any]) -> list[Worker]:
    """Workers that send nothing any more."""
    return _workers_named_in(
        result,
        (finding for finding in _findings(result) if finding["cause"] == causes.SILENT_WORKER),
        {},
    )


def culprit_workers(result: Mapping[str, Any], hosts: Hosts | None) -> list[Worker] | None:
    """Culprits, and all workers on a culprit host; None where causes were not looked for."""
    if result.get("findings") is None:
        return None
    others = (finding for finding in _findings(result) if finding["cause"] != causes.SILENT_WORKER)
    return _workers_named_in(result, others, hosts or {})


def _findings(result: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    return result.get("findings") or ()


def _workers_named_in(
    result: Mapping[str, Any], findings: Iterable[Mapping[str, Any]], hosts: Hosts
) -> list[Worker]:
    found: set[Worker] = set()
    for culprit in (each for finding in findings for each in finding["culprits"]):
        if "dp_rank" in culprit and "stage" in culprit:
            found.add((culprit["dp_rank"], culprit["stage"]))
        elif set(culprit) == {"host"}:
            found |= {worker for worker, host in hosts.items() if host == culprit["host"]}
    sizes = result["job"]
    return sorted(w for w in found if w[0] < sizes["dp_size"] and w[1] < sizes["pp_size"])


PerStep = Literal["worker_slowdown", "dp_rank_slowdown", "waited_for_s"]


@dataclass(frozen=True, slots=True)
class ChartOptions:
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
    """How to draw a chart from a window's result (docs/glossary.md).

    `needs` is the key without which there is nothing to draw; `per_step` is what else is needed
    of each step, which is then in the result's `per_step`, or in that of its arrivals.
    """

    draw: Callable[[Mapping[str, Any], ChartOptions], PlotlyFigure]
    needs: str
    per_step: PerStep | None = None
    names_hosts: bool = False

    def can_draw(self, result: Mapping[str, Any]) -> bool:
        """Whether the result has the figures for this chart."""
        return bool(result.get(self.needs))

    def has_steps(self, result: Mapping[str, Any]) -> bool:
        """Whether the result has the figures by step for this chart."""
        if self.per_step is None:
            return True
        holder = result["arrivals"] if self.per_step == "waited_for_s" else result
        return self.per_step in (holder.get("per_step") or {})


WINDOW_CHARTS: dict[str, WindowChart] = {
    "workers": WindowChart(
        lambda result, setting: worker_heatmap(
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
