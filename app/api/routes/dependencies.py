"""What routes share: their router, dependencies by type, documentation of refusals."""

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Annotated, Any, Generic, Self, TypeVar, cast

from fastapi import APIRouter, Depends, Request
from fastapi.types import DecoratedCallable
from pydantic import BaseModel, Field
from starlette.responses import Response
from typing_extensions import override

from app.api.http.auth import SAFE_METHODS
from app.api.http.errors import PROBLEM_TYPE
from app.api.http.fields import JobId, ResponseModel
from app.api.http.principal import Principal, principal_of
from app.api.service.service import Service


class FieldProblem(BaseModel):
    """One invalid field, or one invalid line of a text."""

    field: str
    message: str
    line: int | None = Field(
        None, description="Line number in the YAML text of alert rules, from 1; null otherwise."
    )


class ProblemOut(BaseModel):
    """Problem document: why a request was refused (RFC 9457)."""

    type: str = Field(examples=["/docs/api#error-job_not_found"])
    title: str = Field(examples=["Not Found"])
    status: int = Field(examples=[404])
    detail: str = Field(examples=["no job 'llm-70b': register it with PUT /api/v1/jobs/llm-70b"])
    code: str = Field(examples=["job_not_found"], description="Stable error code for programs.")
    instance: str = Field(examples=["/api/v1/jobs/llm-70b"])
    errors: list[FieldProblem] | None = Field(
        None, description="Invalid fields and the reasons, for status 422."
    )


_REFUSAL_TEXTS = {
    400: "The bytes cannot be decoded.",
    401: "No token or session, or one that is not known.",
    403: "The token has not the scope for this, or a session is used from another site's page.",
    404: "No such thing.",
    408: "The body did not arrive in time.",
    409: "Does not fit the present state.",
    413: "Too large, or it takes too long to compute: split it.",
    415: "A content type, encoding or version that is not known here.",
    421: "A Host that this service does not answer for.",
    422: "Decodable, and wrong; `errors` names the fields.",
    429: "More than a project or an address may, or too much is being computed for the project: "
    "wait for Retry-After seconds.",
    500: "Something broke here; the log has the reason.",
    501: "Something that this takes is not installed here; the detail names it.",
    503: "Queue or store do not answer or are full: try again after Retry-After seconds.",
}

Responses = dict[int | str, dict[str, Any]]

FIGURE_RESPONSE: Responses = {
    200: {
        "description": "`data` and `layout` for Plotly; `meta` has a sentence and a table.",
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Figure"}}},
    }
}


ItemT = TypeVar("ItemT")


class PageOut(ResponseModel, Generic[ItemT]):
    """A page of a list; `next_cursor` is null on the last page."""

    items: list[ItemT]
    next_cursor: str | None

    @classmethod
    def of_page(cls, page: tuple[Sequence[object], str | None]) -> Self:
        """The answer made of a page of records, or of answers, and the next page's cursor."""
        items, next_cursor = page
        return cls(items=items, next_cursor=next_cursor)


async def service_of(request: Request) -> Service:
    """The `Service` of this process."""
    return cast(Service, request.app.state.service)


ServiceDep = Annotated[Service, Depends(service_of)]


async def caller_of(request: Request) -> Principal:
    """The authenticated caller."""
    return principal_of(request.scope)


CallerDep = Annotated[Principal, Depends(caller_of)]


async def job_key_of(job_id: JobId, caller: CallerDep) -> str:
    """The key of the job in the path, in the caller's project."""
    return caller.key(job_id)


# Of the caller's project, so that no caller can name a job of another project.
JobKey = Annotated[str, Depends(job_key_of)]


def refusals(*statuses: int) -> Responses:
    """OpenAPI responses for these statuses."""
    content = {PROBLEM_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemOut"}}}
    return {
        status: {"description": _REFUSAL_TEXTS[status], "content": content} for status in statuses
    }


# Of every request, and of one that may have a body, which is checked before the route is called.
_USUAL_REFUSALS = (401, 403, 413, 421, 422, 429, 500, 503)
_BODY_REFUSALS = (400, 408, 415)


class ApiRouter(APIRouter):
    """Routes of the API under one tag; an operation has its function's name as its id.

    `responses` of a route need not have the refusals that every route may answer with.
    """

    def __init__(self, tag: str) -> None:
        super().__init__(tags=[tag], generate_unique_id_function=attrgetter("name"))

    @override
    def add_api_route(self, path: str, endpoint: Callable[..., Any], **how: Any) -> None:
        statuses = [*_USUAL_REFUSALS]
        if not SAFE_METHODS.issuperset(how["methods"]):
            statuses += _BODY_REFUSALS
        if "{" in path.replace("{chart}", ""):
            statuses.append(404)  # the path names a stored object
        if "{window}" in path:
            statuses.append(409)  # the window may be open, or its operations deleted
        responses = refusals(*statuses) | (how["responses"] or {})
        how["responses"] = dict(sorted(responses.items(), key=lambda pair: int(pair[0])))
        super().add_api_route(path, endpoint, **how)

    def chart(
        self, path: str, summary: str, responses: Responses = FIGURE_RESPONSE
    ) -> Callable[[DecoratedCallable], DecoratedCallable]:
        """A route that answers with a chart as its whole response."""
        return self.get(path, summary=summary, response_class=Response, responses=responses)
