"""What if: a caller's own question about the operations of a closed window."""

from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import Field

from app.api.deps import OF_BODIES, JobKey, ServiceDep, refusals
from app.api.fields import Answer, ThemeName, WindowId
from app.api.questions import QUESTION_BODY, QuestionDep
from app.charts.theme import THEMES
from app.charts.what_if import what_if
from app.engine.questions.answer import as_json

router = APIRouter(tags=["windows"])


class StepTimesOut(Answer):
    """Seconds, by position in `steps`."""

    recorded: list[float]
    simulated: list[float]
    ideal: list[float]
    what_if: list[float]


class RatiosOut(Answer):
    """Ratios by position in `steps`; null where they would divide by 0."""

    slowdown: list[float | None]
    speed_up: list[float | None]


class AgainstOut(Answer):
    """The edited steps against the same steps without the edits, all simulated."""

    slowdown: float | None = Field(description="Mean edited step time over mean other step time.")
    speed_up: float | None = Field(description="The inverse.")
    per_step: RatiosOut


class EditOut(Answer):
    """What became of one edit."""

    changed_ops: int
    ops_without_counterpart: int = Field(description="Left as they were by `from-worker`.")


class SkippedOut(Answer):
    """A step that is not simulated."""

    step: int
    reason: str


class WhatIfOut(Answer):
    """What the window's steps would take.

    `against_recorded` compares with the simulation of the recorded durations: like with like,
    since launch delays are in neither.
    """

    window: str
    steps: list[int]
    skipped_steps: list[SkippedOut]
    step_time_s: StepTimesOut
    against_recorded: AgainstOut
    against_ideal: AgainstOut
    gpu_hours_saved: float = Field(description="Of the window's recorded time; may be negative.")
    edits: list[EditOut] = Field(description="In the order of the question.")
    figure: dict[str, Any] | None = Field(None, description="A chart of the steps, if asked for.")


@router.post(
    "/jobs/{job_id}/windows/{window}/what-if",
    operation_id="ask_what_if",
    summary="Ask what if some operations took another time",
    response_model=WhatIfOut,
    response_model_exclude_unset=True,
    responses=refusals(404, 409, *OF_BODIES),
    openapi_extra=QUESTION_BODY,
)
def ask_what_if(
    job_id: JobKey,
    window: WindowId,
    question: QuestionDep,
    service: ServiceDep,
    figure: Annotated[
        ThemeName | None, Query(description="Add a chart of the steps, in this theme.")
    ] = None,
) -> dict[str, Any]:
    """How long the steps of a closed window would take after some edits, applied in order.

    `latest` is the newest closed window of the current run. The first question about a large
    window takes a second or more, further ones milliseconds.
    """
    with service.replays.at_work.taken():
        answer = service.replays.questions(job_id, window).answer(question.all_edits())
        found = as_json(answer)
    if figure is not None:
        found["figure"] = what_if(found["steps"], found["step_time_s"], theme=THEMES[figure])
    return found
