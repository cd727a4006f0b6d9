"""A question in a request's body, read and checked aside."""

from typing import Annotated, Any, TypeVar

from fastapi import Depends, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field, ValidationError
from starlette.concurrency import run_in_threadpool

from app.api import json_body
from app.api.edits import MAX_LISTED, QuestionIn
from app.api.fields import SomeText
from app.errors import TooLarge

# An edit with all its lists full has at most 0.75 MB. A parser is busy with the worst body of this
# size for some 50 ms, and holds up everybody else for as long, in whatever thread it is.
MAX_QUESTION_BYTES = 1 << 20

# Hundreds of workers by number; a job may keep 200 such questions.
MAX_SAVED_BYTES = 64 << 10


class SavedQuestionIn(QuestionIn):
    """A question to be kept, with the window that it is asked of."""

    name: SomeText = Field(examples=["stage 3 as long as the others"])
    window: Annotated[str, Field(pattern=r"^[0-9]{1,9}-[0-9]{1,16}$", examples=["3-1200"])]


def _documented(model: type[BaseModel], most: str) -> dict[str, Any]:
    schema = {"$ref": f"#/components/schemas/{model.__name__}"}
    content = {json_body.JSON_TYPE: {"schema": schema}}
    body = {"required": True, "description": f"At most {most}.", "content": content}
    return {"requestBody": body}


QUESTION_BODY = _documented(QuestionIn, "1 MiB")
SAVED_BODY = _documented(SavedQuestionIn, "64 KiB")

_Body = TypeVar("_Body", bound=BaseModel)


async def question_of(request: Request) -> QuestionIn:
    """The question in a body.

    Raises:
        TooLarge, UnsupportedMedia, BadRequest, RequestValidationError
    """
    return await _read_aside(request, QuestionIn, most_bytes=MAX_QUESTION_BYTES)


async def saved_of(request: Request) -> SavedQuestionIn:
    """The question to be kept in a body; raises as `question_of` does."""
    return await _read_aside(request, SavedQuestionIn, most_bytes=MAX_SAVED_BYTES)


async def _read_aside(request: Request, model: type[_Body], *, most_bytes: int) -> _Body:
    """What a body with edits says, checked in another thread; raises as `question_of` does."""
    body = await request.body()
    if len(body) > most_bytes:
        raise TooLarge(
            f"a question has at most {most_bytes:,} bytes here: name fewer of the "
            f"{MAX_LISTED:,} that a list may have, or ask for fewer edits at once"
        )
    media = request.headers.get("content-type", "")
    return await run_in_threadpool(_checked, body, media, model)


QuestionDep = Annotated[QuestionIn, Depends(question_of)]
SavedDep = Annotated[SavedQuestionIn, Depends(saved_of)]


def _checked(body: bytes, content_type: str, model: type[_Body]) -> _Body:
    given = json_body.read(body, content_type)
    try:
        return model.model_validate(given)
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False)
        raise RequestValidationError(
            [{**each, "loc": ("body", *each["loc"])} for each in found]
        ) from error
