"""Which steps the charts over time show, and what was measured in each of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.charts.step_axis import StepAxis
from app.charts.thinning import thinned
from app.charts.window_charts import PerStep
from app.store import steps, windows
from app.store.engine import Connection
from app.store.steps import StepRow

# Fewer are not drawn where there are more: they show what was before and after.
DRAWN_STEPS = 200
MAX_READ_STEPS = 20_000

# Workers (or dp ranks) times steps of one chart: what is read for it, not what is drawn.
MAX_CELLS = 200_000

# As many of the last steps tell how long the next one will take.
_RECENT_STEPS = 8


@dataclass(frozen=True, slots=True)
class ShownSteps:
    """The steps of a chart over time, skipped ones too, and where the measured ones are drawn."""

    rows: Sequence[StepRow]
    axis: StepAxis
    # Whether steps that were asked for are missing before the first of these: they are too many.
    is_part: bool = False


def shown_steps(
    conn: Connection, job_id: str, epoch: int, within: tuple[int, int] | None
) -> ShownSteps:
    """The last steps of a run, or those from one to another and some around them.

    What is among the last ones anyway is shown with these, so that following a job and looking
    at one of its last windows is one picture.
    """
    rows = steps.series(conn, job_id, epoch=epoch, limit=DRAWN_STEPS)
    if within is None or not rows or within[0] >= rows[0].step:
        return ShownSteps(rows, axis_of(rows))
    rows = _around(conn, job_id, epoch, *within)
    is_part = len(rows) == MAX_READ_STEPS and rows[0].step > within[0]
    return ShownSteps(rows, axis_of(rows), is_part)


def axis_of(rows: Sequence[StepRow]) -> StepAxis:
    """The axis over the measured steps; where they are too many, each stands for some."""
    return thinned([(row.step, row.recorded_s) for row in rows if row.recorded_s is not None])


def with_steps(
    conn: Connection, job_id: str, result: Mapping[str, Any], shown: ShownSteps, name: PerStep
) -> dict[str, Any]:
    """The result with one of the figures by step, for the steps of the axis.

    Of a large job only the newest steps are read. What the result has itself goes first: it may
    be of some steps alone.
    """
    job = result["job"]
    width = job["dp_size"] * (job["pp_size"] if name == "worker_slowdown" else 1)
    drawn, first_steps = _drawn(shown, width)
    parts = windows.figures_by_step(conn, job_id, result["window"]["epoch"], name, first_steps)
    by_step = {
        step: figures
        for numbers, of_steps in parts
        for step, figures in zip(numbers, of_steps, strict=True)
        if step in drawn
    }
    if own := result.get("per_step"):
        by_step |= dict(zip(result["steps"], own[name], strict=True))
    joined = sorted(by_step)
    return {**result, "steps": joined, "per_step": {name: [by_step[step] for step in joined]}}


def with_waits(
    conn: Connection, job_id: str, result: Mapping[str, Any], shown: ShownSteps
) -> dict[str, Any]:
    """The result with what the others waited for each of its ranks, for the steps of the axis."""
    arrivals = result["arrivals"]
    column = {rank: at for at, rank in enumerate(arrivals["rank"])}
    drawn, first_steps = _drawn(shown, len(column))
    by_step: dict[int, list[float | None]] = {}
    epoch = result["window"]["epoch"]
    for numbers, ranks, of_steps in windows.waited_for_by_step(conn, job_id, epoch, first_steps):
        for step, values in zip(numbers, of_steps, strict=True):
            if step in drawn:
                row: list[float | None] = [None] * len(column)
                for rank, value in zip(ranks, values, strict=True):
                    if rank in column:
                        row[column[rank]] = value
                by_step[step] = row
    if own := arrivals.get("per_step"):
        by_step |= dict(zip(result["steps"], own["waited_for_s"], strict=True))
    joined = sorted(by_step)
    per_step = {"waited_for_s": [by_step[step] for step in joined]}
    return {**result, "steps": joined, "arrivals": {**arrivals, "per_step": per_step}}


def recent_step_s(conn: Connection, job_id: str, epoch: int) -> float | None:
    """Mean time of the last steps of the run, or of the run before if it has none yet."""
    for run in (epoch, epoch - 1):
        rows = steps.series(conn, job_id, epoch=run, limit=_RECENT_STEPS)
        times_s = [row.recorded_s for row in rows if row.recorded_s is not None]
        if times_s:
            return sum(times_s) / len(times_s)
    return None


def _drawn(shown: ShownSteps, width: int) -> tuple[set[int], list[int]]:
    """The steps that are drawn, `width` cells each, and where their windows begin."""
    drawn = set(shown.axis.steps[-max(1, MAX_CELLS // width) :])
    first_steps = {
        int(row.window_id.split("-")[1])
        for row in shown.rows
        if row.step in drawn and row.recorded_s is not None
    }
    return drawn, sorted(first_steps)


def _around(conn: Connection, job_id: str, epoch: int, first: int, last: int) -> list[StepRow]:
    rows = steps.series(conn, job_id, epoch=epoch, first=first, last=last, limit=MAX_READ_STEPS)
    beside = max(0, DRAWN_STEPS - len(rows)) // 2
    if not beside:
        return rows
    before = steps.series(conn, job_id, epoch=epoch, last=first - 1, limit=beside)
    after = steps.series(
        conn, job_id, epoch=epoch, first=last + 1, last=last + beside, limit=beside
    )
    return [*before, *rows, *after]
