"""A question in a request's body, read and checked aside."""

from typing import Annotated, Any

from fastapi import Depends, Request
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.concurrency import run_in_threadpool

from app.api import json_body
from app.api.edits import MAX_LISTED, QuestionIn
from app.errors import TooLarge

# An edit with all its lists full has at most 0.75 MB. A parser is busy with the worst body of this
# size for some 50 ms, and holds up everybody else for as long, in whatever thread it is.
MAX_QUESTION_BYTES = 1 << 20

QUESTION_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "description": "At most 1 MiB.",
        "content": {
            json_body.JSON_TYPE: {"schema": {"$ref": "#/components/schemas/QuestionIn"}},
        },
    }
}


async def question_of(request: Request) -> QuestionIn:
    """The question in a body.

    Raises:
        TooLarge, UnsupportedMedia, BadRequest, RequestValidationError
    """
    body = await request.body()
    if len(body) > MAX_QUESTION_BYTES:
        raise TooLarge(
            f"a question has at most {MAX_QUESTION_BYTES:,} bytes: name fewer of the "
            f"{MAX_LISTED:,} that a list may have, or ask for fewer edits at once"
        )
    return await run_in_threadpool(_question, body, request.headers.get("content-type", ""))


QuestionDep = Annotated[QuestionIn, Depends(question_of)]


def _question(body: bytes, content_type: str) -> QuestionIn:
    given = json_body.read(body, content_type)
    try:
        return QuestionIn.model_validate(given)
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False)
        raise RequestValidationError(
            [{**each, "loc": ("body", *each["loc"])} for each in found]
        ) from error
