"""OTLP traces: the way in for jobs that have OpenTelemetry already."""

from typing import Annotated, Any

from fastapi import APIRouter, Header, Request, Response
from pydantic import ConfigDict, Field

from app.api.deps import OF_BODIES, CallerDep, ServiceDep, refusals
from app.api.fields import Answer
from app.api.otlp_body import JSON_TYPE, PROTOBUF_TYPE, form_of
from app.api.principal import TRACES_PATH
from app.api.span_batch import LIVE_NAMES
from app.api.span_feed import SpanFeed

router = APIRouter(tags=["ops"])

_EXAMPLE = {
    "resourceSpans": [
        {
            "resource": {
                "attributes": [{"key": "paceline.job", "value": {"stringValue": "llm-70b"}}]
            },
            "scopeSpans": [{"spans": []}],
        }
    ]
}
_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            JSON_TYPE: {"schema": {"type": "object"}, "example": _EXAMPLE},
            PROTOBUF_TYPE: {"schema": {"type": "string", "format": "binary"}},
        },
    }
}


class PartialSuccessOut(Answer):
    """What was not taken of a request, and why; final, as all of OTLP's answers with 200."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    rejected_spans: int = Field(alias="rejectedSpans")
    error_message: str = Field(alias="errorMessage")


class TracesOut(Answer):
    """Empty where everything was taken."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    partial_success: PartialSuccessOut | None = Field(None, alias="partialSuccess")


@router.post(
    TRACES_PATH,
    operation_id="push_spans",
    summary="Push OpenTelemetry spans (OTLP/HTTP)",
    response_model=TracesOut,
    responses=refusals(*OF_BODIES),
    openapi_extra=_BODY,
)
async def push_spans(
    request: Request,
    service: ServiceDep,
    caller: CallerDep,
    content_type: Annotated[str, Header(include_in_schema=False)] = "",
    content_encoding: Annotated[str, Header(include_in_schema=False)] = "",
) -> Response:
    """Spans as Megatron-LM names them: host-side times, analysed for jobs that ask for it.

    Answers in the form that was sent. 200 may name spans that were not taken; other spans than
    those of operations are left out without a word. The body may be packed with gzip or zstd.
    """
    form = form_of(content_type)
    body = await request.body()
    found = await service.span_bodies.read(body, form, content_encoding, LIVE_NAMES.__contains__)
    outcome = await SpanFeed(service, caller).take(found)
    answer = form.answer(outcome.refused, outcome.message)
    return Response(answer, media_type=form.media_type)
