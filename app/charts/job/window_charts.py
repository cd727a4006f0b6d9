"""Every chart that one window's result can draw: to add one, write its file and add its row.

The worker heatmap outlines the workers that findings name, and crosses out silent ones.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Literal

from app.charts.base.figure import PlotlyFigure
from app.charts.base.step_axis import StepAxis, StepEvent
from app.charts.base.theme import Theme
from app.charts.job.optypes import optypes
from app.charts.job.stages import stages
from app.charts.job.step_heatmaps import dp_steps, worker_steps
from app.charts.job.waits import waited_for
from app.charts.job.waterfall import has_losses, waterfall
from app.charts.worker.heatmap import Sort, worker_heatmap
from app.charts.worker.host_grid import Racks, host_grid
from app.formatting import Hosts
from app.result import causes
from app.result.finding import Finding
from app.result.window_result import FiguresByStep, WindowResult

Worker = tuple[int, int]  # dp rank, stage


def silent_workers(result: WindowResult) -> list[Worker]:
    """Workers that send nothing any more."""
    findings = result.findings or ()
    silent = (finding for finding in findings if finding.cause == causes.SILENT_WORKER)
    return _workers_named_in(result, silent, {})


def culprit_workers(result: WindowResult, hosts: Hosts | None) -> list[Worker] | None:
    """Culprits, and all workers on a culprit host; None where causes were not looked for."""
    if result.findings is None:
        return None
    others = (finding for finding in result.findings if finding.cause != causes.SILENT_WORKER)
    return _workers_named_in(result, others, hosts or {})


def _workers_named_in(
    result: WindowResult, findings: Iterable[Finding], hosts: Hosts
) -> list[Worker]:
    workers: set[Worker] = set()
    for culprit in (culprit for finding in findings for culprit in finding.culprits):
        if culprit.dp_rank is not None and culprit.stage is not None:
            workers.add((culprit.dp_rank, culprit.stage))
        elif culprit.host is not None and culprit.dp_rank is None and culprit.stage is None:
            workers |= {worker for worker, host in hosts.items() if host == culprit.host}
    sizes = result.job
    return sorted(w for w in workers if w[0] < sizes.dp_size and w[1] < sizes.pp_size)


PerStep = Literal["worker_slowdown", "dp_rank_slowdown", "waited_for_s"]


@dataclass(frozen=True, slots=True)
class ChartOptions:
    """What a chart is drawn with besides the result.

    `axis` is that of the step-time chart above: given it, both have the same x positions.
    `events` are lines through all charts over time. `silent` are workers of which nothing comes
    now, whatever the window's findings say. `racks` are those of the workers, as far as known.
    """

    theme: Theme
    hosts: Hosts | None = None
    axis: StepAxis | None = None
    sort: Sort = "rank"
    events: Sequence[StepEvent] = ()
    silent: Sequence[Worker] = ()
    racks: Racks = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WindowChart:
    """How to draw a chart from a window's result (docs/glossary.md).

    `needs` gives the figures without which there is nothing to draw; `per_step` is what else is
    needed of each step, which is then in the result's `per_step`, or in that of its arrivals.
    """

    draw: Callable[[WindowResult, ChartOptions], PlotlyFigure]
    needs: Callable[[WindowResult], object]
    per_step: PerStep | None = None
    names_hosts: bool = False

    def can_draw(self, result: WindowResult) -> bool:
        """Whether the result has the figures for this chart."""
        return bool(self.needs(result))

    def has_steps(self, result: WindowResult) -> bool:
        """Whether the result has the figures by step for this chart."""
        if self.per_step is None:
            return True
        holder = result.arrivals if self.per_step == "waited_for_s" else result
        return holder is not None and holder.per_step is not None


def _per_step(result: WindowResult) -> FiguresByStep:
    assert result.per_step is not None  # noqa: S101, `has_steps`
    return result.per_step


def _workers(result: WindowResult, setting: ChartOptions) -> PlotlyFigure:
    """Workers by dp rank and stage, or their hosts by rack, where these are known."""
    slowdown, named = result.worker_slowdown or (), culprit_workers(result, setting.hosts)
    silent = sorted({*silent_workers(result), *setting.silent})
    if setting.sort == "rack" and setting.hosts:
        return host_grid(
            slowdown,
            hosts=setting.hosts,
            racks=setting.racks,
            theme=setting.theme,
            named=named,
            silent=silent,
        )
    return worker_heatmap(
        slowdown,
        hosts=setting.hosts,
        theme=setting.theme,
        sort=setting.sort,
        silent=silent,
        named=named,
    )


WINDOW_CHARTS: dict[str, WindowChart] = {
    "waterfall": WindowChart(
        lambda result, setting: waterfall(result, theme=setting.theme), needs=has_losses
    ),
    "workers": WindowChart(_workers, needs=attrgetter("worker_slowdown"), names_hosts=True),
    "optypes": WindowChart(
        lambda result, setting: optypes(
            result.optype_slowdown, times=result.optype_time_s, theme=setting.theme
        ),
        needs=attrgetter("optype_slowdown"),
    ),
    "stages": WindowChart(
        lambda result, setting: stages(
            result.stage_share or (),
            compute=result.stage_compute_s,
            theme=setting.theme,
            slowdown=result.slowdown,
        ),
        needs=attrgetter("stage_share"),
    ),
    "worker-steps": WindowChart(
        lambda result, setting: worker_steps(
            result.steps,
            _per_step(result).worker_slowdown,
            hosts=setting.hosts,
            theme=setting.theme,
            at=setting.axis,
            events=setting.events,
        ),
        needs=attrgetter("steps"),
        per_step="worker_slowdown",
        names_hosts=True,
    ),
    "waited-for": WindowChart(
        lambda result, setting: waited_for(
            result, theme=setting.theme, at=setting.axis, events=setting.events
        ),
        needs=attrgetter("arrivals"),
        per_step="waited_for_s",
    ),
    "dp-steps": WindowChart(
        lambda result, setting: dp_steps(
            result.steps,
            _per_step(result).dp_rank_slowdown,
            theme=setting.theme,
            at=setting.axis,
            events=setting.events,
        ),
        needs=attrgetter("steps"),
        per_step="dp_rank_slowdown",
    ),
}
