"""Saved questions: what-ifs of a job that somebody wants to see again, or show to others."""

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Path

from app.api.deps import OF_BODIES, JobKey, ServiceDep, refusals
from app.api.edits import EditIn
from app.api.fields import Answer, Cursor, Limit, timestamp
from app.api.questions import SAVED_BODY, SavedDep
from app.store import saved_questions, windows
from app.store.saved_questions import SavedQuestion

router = APIRouter(tags=["windows"])

QuestionId = Annotated[
    str,
    Path(pattern=r"^[0-9a-f]{1,32}$", description="Its id.", examples=["5f0c3a9be81d42670fa1c2d3"]),
]


class SavedQuestionOut(Answer):
    """A question that was kept; its edits are as they are asked."""

    question_id: str
    name: str
    window: str
    edits: list[EditIn]
    saved_at: datetime


class SavedQuestionsOut(Answer):
    """A page of saved questions, the newest first."""

    items: list[SavedQuestionOut]
    next_cursor: str | None


def _shown(saved: SavedQuestion) -> dict[str, Any]:
    return {
        "question_id": saved.question_id,
        "name": saved.name,
        "window": saved.window_id,
        "edits": saved.question["edits"],
        "saved_at": timestamp(saved.saved_s),
    }


@router.get(
    "/jobs/{job_id}/what-ifs",
    operation_id="list_saved_questions",
    summary="List a job's saved questions",
    response_model=SavedQuestionsOut,
    response_model_exclude_defaults=True,
    responses=refusals(404),
)
def list_saved_questions(
    job_id: JobKey, service: ServiceDep, cursor: Cursor = None, limit: Limit = 100
) -> dict[str, Any]:
    """The newest first, a page at a time."""
    with service.store.read() as conn:
        found, next_cursor = saved_questions.page(conn, job_id, cursor=cursor, limit=limit)
    return {"items": [_shown(each) for each in found], "next_cursor": next_cursor}


@router.post(
    "/jobs/{job_id}/what-ifs",
    operation_id="save_question",
    summary="Save a question",
    status_code=201,
    response_model=SavedQuestionOut,
    response_model_exclude_defaults=True,
    responses=refusals(404, 409, *OF_BODIES),
    openapi_extra=SAVED_BODY,
)
def save_question(job_id: JobKey, given: SavedDep, service: ServiceDep) -> dict[str, Any]:
    """Under a new id, for all who may see the job; it has at most 200 of them."""
    question = given.model_dump(mode="json", include={"edits"}, exclude_defaults=True)
    with service.store.write() as conn:
        windows.summary(conn, job_id, given.window)
        saved = saved_questions.save(
            conn,
            job_id,
            name=given.name,
            window_id=given.window,
            question=question,
            now_s=service.now_s(),
        )
    return _shown(saved)


@router.get(
    "/jobs/{job_id}/what-ifs/{question_id}",
    operation_id="get_saved_question",
    summary="See a saved question",
    response_model=SavedQuestionOut,
    response_model_exclude_defaults=True,
    responses=refusals(404),
)
def get_saved_question(
    job_id: JobKey, question_id: QuestionId, service: ServiceDep
) -> dict[str, Any]:
    """Its edits are not asked here: POST them to its window."""
    with service.store.read() as conn:
        return _shown(saved_questions.find(conn, job_id, question_id))


@router.delete(
    "/jobs/{job_id}/what-ifs/{question_id}",
    operation_id="delete_saved_question",
    summary="Delete a saved question",
    status_code=204,
    responses=refusals(404, *OF_BODIES),
)
def delete_saved_question(job_id: JobKey, question_id: QuestionId, service: ServiceDep) -> None:
    """Nothing else is lost: the window it is about stays."""
    with service.store.write() as conn:
        saved_questions.remove(conn, job_id, question_id)
