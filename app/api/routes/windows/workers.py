"""Workers: one worker in a window, its history over windows, its operations and its peers'."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from fastapi import Path
from pydantic import Field
from starlette.responses import Response

from app import formatting
from app.api.http.fields import FindingOut, ResponseModel, ShownWindow, ThemeName
from app.api.routes.dependencies import FIGURE_RESPONSE, ApiRouter, JobKey, ServiceDep, refusals
from app.api.routes.windows.arrivals import GroupOut, groups_of_worker
from app.api.routes.windows.windows import RECENT, json_response, last_window, shown_result
from app.api.service.replays import epoch_of, window_key
from app.api.service.service import Service
from app.charts.base.figure import PlotlyFigure
from app.charts.base.theme import THEMES, Theme
from app.charts.worker.history import (
    WorkerWindow,
    findings_naming,
    position_of,
    worker_headline,
    worker_history,
    worker_window,
)
from app.charts.worker.operations import worker_operations
from app.engine.questions.worker_operations import ops_by_type
from app.errors import Conflict, NotFound, WindowNotFound
from app.result.window_result import Matrix, Verdict, WindowResult
from app.store import hosts, jobs, runs, windows
from app.store.database import Connection, to_cursor
from app.trace.job import UNKNOWN_PLACEMENT, Placement, job_of


class WorkerNotFound(NotFound):
    """The job has no worker of this dp rank and stage."""

    code = "worker_not_found"


@dataclass(frozen=True, slots=True)
class WorkerView:
    """A worker, the hosts of all workers, and the window's result, None before there is one.

    `dropped`: operations of the run that its recorders could not send; None if not reported.
    """

    dp_rank: int
    stage: int
    num_workers: int
    hosts: Mapping[tuple[int, int], str]
    result: WindowResult | None
    dropped: int | None = None
    placement: Placement = UNKNOWN_PLACEMENT

    @property
    def host(self) -> str | None:
        """Its host, if known."""
        return self.hosts.get((self.dp_rank, self.stage))

    @property
    def name(self) -> str:
        """Its name: dp 3, stage 1 on host-017."""
        return formatting.worker(self.dp_rank, self.stage, self.hosts)

    @property
    def verdict(self) -> Verdict | None:
        """The window's fidelity verdict."""
        return self.result.fidelity.verdict if self.result else None

    @property
    def slowdowns(self) -> Matrix:
        """[dp][stage] slowdowns of all workers; None if unknown, or of low fidelity."""
        return self.result.worker_slowdown if self.result and self.verdict != "low" else None

    @property
    def host_peers(self) -> list[tuple[int, int]]:
        """The other workers of the job on its host."""
        if self.host is None:
            return []
        own = (self.dp_rank, self.stage)
        here = (worker for worker, name in self.hosts.items() if name == self.host)
        return sorted(worker for worker in here if worker != own)

    def figure(self, by_worker: Matrix) -> float | None:
        """Its value in one of the result's [dp][stage] arrays; None if unknown."""
        return by_worker[self.dp_rank][self.stage] if by_worker else None


def worker_view(service: Service, job_id: str, worker: str, window: str) -> WorkerView:
    """The worker "dp-stage" of a job in `recent` steps, a window or a range.

    Raises:
        JobNotFound, WindowNotFound, WorkerNotFound: there is none.
    """
    dp_rank, stage = (int(number) for number in worker.split("-"))
    result = None
    try:
        result = shown_result(service, job_id, window)
    except WindowNotFound:
        if window not in (RECENT, "latest"):
            raise
    with service.store.read() as conn:
        job = jobs.get(conn, job_id)
        epoch = epoch_of(result) if result else job.epoch
        sizes = jobs.registration(conn, job_id, epoch).parallelism
        names = hosts.load(conn, job_id, epoch)
        dropped = runs.drops_of_worker(conn, job_id, epoch, dp_rank, stage)
        placed = hosts.placements(conn, job_id, epoch).get((dp_rank, stage), UNKNOWN_PLACEMENT)
    if dp_rank >= sizes.dp_size or stage >= sizes.pp_size:
        raise WorkerNotFound(
            f"job {job_of(job_id)!r} has dp ranks 0 to {sizes.dp_size - 1} and stages 0 to "
            f"{sizes.pp_size - 1}: no dp {dp_rank}, stage {stage}"
        )
    return WorkerView(dp_rank, stage, sizes.num_workers, names, result, dropped, placed)


MAX_COURSE_WINDOWS = 60
# Workers x steps (or windows) that are read for one chart.
MAX_COURSE_CELLS = 1_000_000


def worker_windows(
    conn: Connection,
    job_id: str,
    result: WindowResult,
    dp_rank: int,
    stage: int,
    *,
    is_followed: bool = False,
) -> list[WorkerWindow]:
    """Windows of the result's run up to its own, ascending; the newest ones step by step.

    Where the job is followed, the newest windows, the open one among them.

    Fewer are read for a large job.
    """
    workers = result.job.dp_size * result.job.pp_size
    epoch = epoch_of(result)
    # Of its window, or of the last one of a range.
    first_step = int(str(result.window.id).rpartition("-")[2])
    newest, _ = windows.page(
        conn,
        job_id,
        cursor=None if is_followed else to_cursor(epoch, first_step + 1),
        limit=max(1, min(MAX_COURSE_WINDOWS, MAX_COURSE_CELLS // workers)),
    )
    course: list[WorkerWindow] = []
    cells = MAX_COURSE_CELLS
    for summary in newest:
        if summary.epoch != epoch or summary.slowdown is None:
            continue
        cells -= workers * summary.num_steps
        window = windows.get(conn, job_id, summary.window_id, per_step=cells >= 0 or not course)
        by_step = window.per_step.worker_slowdown if window.per_step else None
        course.append(
            worker_window(
                summary.window_id,
                window.steps,
                window.worker_slowdown or (),
                dp_rank,
                stage,
                by_step,
                dict(zip(window.steps, window.step_started_s, strict=False)),
            )
        )
    return course[::-1]


router = ApiRouter("workers")

MAX_NEIGHBOURS_NAMED = 16

WorkerId = Annotated[
    str,
    Path(
        pattern=r"^[0-9]{1,9}-[0-9]{1,9}$",
        description="Worker as dp rank-stage, such as `3-1`.",
        examples=["3-1"],
    ),
]


class WorkerNotMeasured(NotFound):
    """The window has no figures for the worker."""

    code = "not_measured"


class NeighbourOut(ResponseModel):
    """Another worker of the job on the same host."""

    dp_rank: int
    stage: int
    slowdown: float | None


class WorkerPageOut(ResponseModel):
    """One worker in one window; unknown figures are null."""

    window: str | None
    steps: tuple[int, ...]
    dp_rank: int
    stage: int
    host: str | None
    rack: str | None = Field(description="Rack of the host, as reported by the recorder.")
    switch: str | None = Field(
        description="Network switch of the host, as reported by the recorder."
    )
    sentence: str
    sub: str
    verdict: Verdict | None
    slowdown: float | None = Field(
        description="The job's slowdown if only this worker were as slow as it is (S_w)."
    )
    place: int | None = Field(
        description="Rank of the worker by slowdown: 1 for the slowest worker of the job."
    )
    num_workers: int
    job_slowdown: float | None
    launch_delay_s: float | None = Field(description="Mean launch delay, in seconds per step.")
    others_waited_s: float | None = Field(
        description="Mean seconds per step that other workers waited because this one "
        "launched operations late."
    )
    findings: list[FindingOut] = Field(
        description="Findings of the window with this worker as culprit."
    )
    operations_of: str | None = Field(
        description="Closed window whose operations can be compared with the peers'; null if "
        "there is none."
    )
    dropped: int | None = Field(
        description="Operations of the run that the worker's recorders dropped; null if not "
        "reported."
    )
    groups: list[GroupOut] = Field(
        description="At most eight process groups in which the worker's ranks recorded collectives."
    )
    on_its_host: list[NeighbourOut] = Field(
        description="The first 16 other workers of the same job on this host."
    )
    num_on_its_host: int


@router.get("/jobs/{job_id}/workers/{worker}", summary="Get a worker", responses=refusals(409))
def get_worker(
    job_id: JobKey, worker: WorkerId, service: ServiceDep, window: ShownWindow = RECENT
) -> WorkerPageOut:
    """The worker's cost, the causes with it as culprit, and the other workers on its host."""
    view = worker_view(service, job_id, worker, window)
    result, slowdowns = view.result, view.slowdowns
    sentence, sub = worker_headline(result, view.dp_rank, view.stage, view.host)
    slowdown = view.figure(slowdowns)
    place = None
    if slowdowns and slowdown is not None:
        place, _ = position_of(slowdowns, view.dp_rank, view.stage)
    delay = result and result.launch_delay
    return WorkerPageOut.of_record(
        view,
        view.placement,
        window=result.window.id if result else None,
        steps=result.steps if result else (),
        sentence=sentence,
        sub=sub,
        slowdown=slowdown,
        place=place,
        job_slowdown=result.slowdown if result and view.verdict != "low" else None,
        launch_delay_s=view.figure(delay.by_worker) if delay else None,
        others_waited_s=view.figure(delay.others_waited) if delay else None,
        findings=findings_naming(
            (result and result.findings) or (), view.dp_rank, view.stage, view.host
        ),
        operations_of=_operations_of(service, job_id, window),
        groups=groups_of_worker(result, view.dp_rank, view.stage) if result else [],
        on_its_host=[_neighbour(view, *peer) for peer in view.host_peers[:MAX_NEIGHBOURS_NAMED]],
        num_on_its_host=len(view.host_peers),
    )


@router.chart(
    "/jobs/{job_id}/workers/{worker}/charts/{chart}",
    "Get a worker's chart: its slowdown over time, or its operations and its peers'",
    FIGURE_RESPONSE | refusals(409),
)
def get_worker_chart(
    job_id: JobKey,
    worker: WorkerId,
    chart: Literal["course", "ops"],
    service: ServiceDep,
    window: ShownWindow = RECENT,
    theme: ThemeName = "light",
) -> Response:
    """`course`: slowdown over the last windows up to the given one, and over its steps.

    `ops`: operations of the given window, or of the last closed one, since operations are stored
    when a window closes.
    """
    view = worker_view(service, job_id, worker, window)
    draw = _course if chart == "course" else _ops
    return json_response(draw(service, job_id, view, window, THEMES[theme]))


def _course(
    service: Service, job_id: str, view: WorkerView, window: str, theme: Theme
) -> PlotlyFigure:
    result = view.result
    if result is None or not result.worker_slowdown:
        raise WorkerNotMeasured(f"window {window!r} has no figures of its workers")
    with service.store.read() as conn:
        course = worker_windows(
            conn, job_id, result, view.dp_rank, view.stage, is_followed=window == RECENT
        )
    return worker_history(course, view.name, theme=theme)


def _ops(
    service: Service, job_id: str, view: WorkerView, window: str, theme: Theme
) -> PlotlyFigure:
    replay = service.replays.get(job_id, last_window(window))
    return worker_operations(ops_by_type(replay, view.dp_rank, view.stage), view.name, theme=theme)


def _neighbour(view: WorkerView, dp_rank: int, stage: int) -> NeighbourOut:
    slowdown = view.slowdowns[dp_rank][stage] if view.slowdowns else None
    return NeighbourOut(dp_rank=dp_rank, stage=stage, slowdown=slowdown)


def _operations_of(service: Service, job_id: str, window: str) -> str | None:
    with service.store.read() as conn:
        try:
            return window_key(conn, job_id, last_window(window)).window_id
        except Conflict:
            return None
