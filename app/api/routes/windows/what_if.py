"""What-if questions about a closed window, asked at once or saved for others.

Bodies are parsed in a thread: the largest would block the event loop for 50 ms.
"""

from collections.abc import Awaitable, Callable
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Query, Request
from pydantic import AliasPath, BaseModel, Field
from starlette.concurrency import run_in_threadpool

from app.api.http import fields
from app.api.http.bodies import JSON_TYPE, read_model
from app.api.routes.dependencies import ApiRouter, JobKey, PageOut, ServiceDep, refusals
from app.api.routes.windows.what_if_edits import EditIn, QuestionIn
from app.charts.base.theme import THEMES
from app.charts.job.what_if import what_if
from app.engine.questions.answer import answer_as_json
from app.store import saved_questions, windows


class SavedQuestionIn(QuestionIn):
    """A question to be saved, with its window."""

    name: fields.NonEmptyText = Field(examples=["stage 3 as long as the others"])
    window: Annotated[str, Field(pattern=r"^[0-9]{1,9}-[0-9]{1,16}$", examples=["3-1200"])]


def _documented(model: type[BaseModel], most: str) -> dict[str, Any]:
    content = {JSON_TYPE: {"schema": {"$ref": f"#/components/schemas/{model.__name__}"}}}
    return {"required": True, "description": f"At most {most}.", "content": content}


_Body = TypeVar("_Body", bound=BaseModel)


def _parsed_aside(model: type[_Body]) -> Callable[[Request], Awaitable[_Body]]:
    """A dependency: the body of this model, parsed in another thread."""

    async def read(request: Request) -> _Body:
        media = request.headers.get("content-type", "")
        return await run_in_threadpool(read_model, model, await request.body(), media)

    return read


QuestionDep = Annotated[QuestionIn, Depends(_parsed_aside(QuestionIn))]
SavedDep = Annotated[SavedQuestionIn, Depends(_parsed_aside(SavedQuestionIn))]


router = ApiRouter("windows")


class StepTimesOut(fields.ResponseModel):
    """Seconds, by position in `steps`."""

    recorded: list[float]
    simulated: list[float]
    ideal: list[float]
    what_if: list[float]
    expected: list[float] = Field(
        description="what_if x mean recorded / mean simulated: what the steps would really take, "
        "late launches included."
    )


class RatiosOut(fields.ResponseModel):
    """Ratios by position in `steps`; null where the divisor is 0."""

    slowdown: list[float | None]
    speed_up: list[float | None]


class ComparedRunOut(fields.ResponseModel):
    """The edited steps against the same steps without the edits, all simulated."""

    slowdown: float | None = Field(
        description="Mean step time with the edits, divided by the mean step time without them."
    )
    speed_up: float | None = Field(description="1 / `slowdown`.")
    per_step: RatiosOut


class EditOut(fields.ResponseModel):
    """Result of one edit."""

    changed_ops: int
    ops_without_counterpart: int = Field(
        description="Operations that `from-worker` left unchanged, since the other worker has no "
        "such operation."
    )


class SkippedOut(fields.ResponseModel):
    """A step that is not simulated."""

    step: int
    reason: str


class WhatIfOut(fields.ResponseModel):
    """Step times of the window with the edits.

    `against_recorded` compares with the simulation of the recorded durations, `against_ideal` with
    the simulation without stragglers. No simulation contains launch delays.
    """

    window: str
    steps: list[int]
    skipped_steps: list[SkippedOut]
    step_time_s: StepTimesOut
    against_recorded: ComparedRunOut
    against_ideal: ComparedRunOut
    gpu_hours_saved: float = Field(
        description="GPU-hours of the window's recorded time that the edits save; may be negative."
    )
    edits: list[EditOut] = Field(description="Results of the edits, in the order of the question.")
    figure: dict[str, Any] | None = Field(
        None, description="Chart of the steps; only with `figure`."
    )


@router.post(
    "/jobs/{job_id}/windows/{window}/what-if",
    summary="Ask a what-if question: step times with other durations",
    response_model_exclude_unset=True,
    openapi_extra={"requestBody": _documented(QuestionIn, "128 kB")},
)
def ask_what_if(
    job_id: JobKey,
    window: fields.WindowId,
    question: QuestionDep,
    service: ServiceDep,
    figure: Annotated[
        fields.ThemeName | None,
        Query(description="Include a chart of the steps with this colour theme."),
    ] = None,
) -> WhatIfOut:
    """Simulates the steps of a closed window with changed durations of some operations.

    Edits are applied in order. `latest` is the newest closed window of the current run. The first
    question about a large window takes a second or more, further ones milliseconds.
    """
    questions = service.replays.questions(job_id, window)
    answer = answer_as_json(questions.answer(question.all_edits()))
    if figure is not None:
        answer["figure"] = what_if(answer["steps"], answer["step_time_s"], theme=THEMES[figure])
    return WhatIfOut.model_validate(answer)


QuestionId = Annotated[str, fields.hex_id("saved question")]


class SavedQuestionOut(fields.ResponseModel):
    """A saved question."""

    question_id: str
    name: str
    window: str = Field(validation_alias="window_id")
    edits: list[EditIn] = Field(validation_alias=AliasPath("question", "edits"))
    saved_at: fields.UnixTime = Field(validation_alias="saved_s")


class SavedQuestionsOut(PageOut[SavedQuestionOut]):
    """A page of saved questions, the newest first."""


@router.get(
    "/jobs/{job_id}/what-ifs",
    summary="List a job's saved questions",
    response_model_exclude_defaults=True,
)
def list_saved_questions(
    job_id: JobKey, service: ServiceDep, cursor: fields.Cursor = None, limit: fields.Limit = 100
) -> SavedQuestionsOut:
    """Saved questions, newest first, a page at a time."""
    with service.store.read() as conn:
        page = saved_questions.page(conn, job_id, cursor=cursor, limit=limit)
    return SavedQuestionsOut.of_page(page)


@router.post(
    "/jobs/{job_id}/what-ifs",
    summary="Save a question",
    status_code=201,
    response_model_exclude_defaults=True,
    responses=refusals(409),
    openapi_extra={"requestBody": _documented(SavedQuestionIn, "64 KiB")},
)
def save_question(job_id: JobKey, given: SavedDep, service: ServiceDep) -> SavedQuestionOut:
    """Saves the question under a new id, visible to everyone with access to the job.

    At most 200 per job.
    """
    with service.store.write() as conn:
        windows.summary(conn, job_id, given.window)
        saved = saved_questions.save(
            conn,
            job_id,
            name=given.name,
            window_id=given.window,
            question=given.model_dump(mode="json", include={"edits"}, exclude_defaults=True),
            now_s=service.now_s(),
        )
    return SavedQuestionOut.model_validate(saved)


@router.get(
    "/jobs/{job_id}/what-ifs/{question_id}",
    summary="Get a saved question",
    response_model_exclude_defaults=True,
)
def get_saved_question(
    job_id: JobKey, question_id: QuestionId, service: ServiceDep
) -> SavedQuestionOut:
    """The question without an answer: POST its edits to its window's `what-if` to get one."""
    with service.store.read() as conn:
        return SavedQuestionOut.model_validate(saved_questions.find(conn, job_id, question_id))


@router.delete(
    "/jobs/{job_id}/what-ifs/{question_id}", summary="Delete a saved question", status_code=204
)
def delete_saved_question(job_id: JobKey, question_id: QuestionId, service: ServiceDep) -> None:
    """Deletes the question; its window stays."""
    with service.store.write() as conn:
        saved_questions.remove(conn, job_id, question_id)
