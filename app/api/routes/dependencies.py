"""What routes share: their router, dependencies by type, documentation of refusals."""

from collections.abc import Callable
from operator import attrgetter
from typing import Annotated, Any, cast

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel, Field
from typing_extensions import override

from app.api.http.auth import SAFE_METHODS
from app.api.http.errors import PROBLEM_TYPE
from app.api.http.fields import JobId
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


# Of the caller's project, so that nobody can name what is another's.
JobKey = Annotated[str, Depends(job_key_of)]


def refusals(*statuses: int) -> Responses:
    """OpenAPI responses for these statuses."""
    schema = {"$ref": "#/components/schemas/ProblemOut"}
    return {
        status: {
            "description": _REFUSAL_TEXTS[status],
            "content": {PROBLEM_TYPE: {"schema": schema}},
        }
        for status in statuses
    }


# Of every request; of one that may have a body, which is checked before the route is called; and of
# one about a job, which may not exist.
_USUAL_REFUSALS = refusals(401, 403, 413, 421, 422, 429, 500, 503)
_BODY_REFUSALS = refusals(400, 408, 413, 415)
_JOB_REFUSALS = refusals(404)


class ApiRouter(APIRouter):
    """Routes of the API under one tag; an operation has its function's name as its id.

    `responses` of a route need not have the refusals that every route may answer with.
    """

    def __init__(self, tag: str) -> None:
        super().__init__(tags=[tag], generate_unique_id_function=attrgetter("name"))

    @override
    def add_api_route(self, path: str, endpoint: Callable[..., Any], **how: Any) -> None:
        of_body = {} if SAFE_METHODS.issuperset(how["methods"]) else _BODY_REFUSALS
        of_job = _JOB_REFUSALS if "{job_id}" in path else {}
        responses = _USUAL_REFUSALS | of_body | of_job | (how["responses"] or {})
        how["responses"] = dict(sorted(responses.items(), key=lambda pair: int(pair[0])))
        super().add_api_route(path, endpoint, **how)
