"""Every refusal as a problem of RFC 9457; nothing internal ever reaches a caller."""

import json
import random
from http import HTTPStatus
from typing import Any, cast
from urllib.parse import quote

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Scope
from typing_extensions import override

from app.api.allowed import allowed_methods
from app.api.json_body import unreadable, unreadable_at
from app.errors import InvalidRequest, InvalidRules, PacelineError, UnsupportedMedia
from app.ingest.unknown import UnknownFormat

log = structlog.get_logger()

PROBLEM_TYPE = "application/problem+json"
MAX_FIELDS = 20
MAX_LINES = 500  # of rules
_LONGEST_MESSAGE = 400  # one may repeat what the caller sent
LONGEST_RETRY_S = 30
# Refused before the body was read: the rest of it must not be taken for the next request.
_CLOSING = {408, 411, 413}
_HTTP_CODES = {404: "not_found", 405: "method_not_allowed"}


class Problem(Response):
    """A problem document."""

    media_type = PROBLEM_TYPE

    @override
    def render(self, content: Any) -> bytes:
        # ASCII only: a caller's text may hold surrogates, which no encoding can write.
        return json.dumps(content, allow_nan=False).encode()


def problem(
    scope: Scope,
    status: int,
    code: str,
    detail: str,
    headers: dict[str, str] | None = None,
    **more: Any,
) -> Problem:
    """The answer to a request that is refused."""
    scope["problem"] = code  # for the line in the log
    body = {
        "type": f"/docs#error-{code}",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
        "code": code,
        "instance": quote(scope.get("path", ""), errors="replace"),
        **more,
    }
    closing = {"connection": "close"} if status in _CLOSING else {}
    return Problem(body, status, {**closing, **(headers or {})})


def refusal(scope: Scope, error: PacelineError) -> Problem:
    """The answer that one of our own errors becomes."""
    if error.status == HTTPStatus.INTERNAL_SERVER_ERROR:
        return failure(scope, error)
    headers = {}
    if error.status in (429, 503):
        headers["retry-after"] = str(_spread(getattr(error, "retry_after_s", 1), error.status))
    if error.status == HTTPStatus.UNAUTHORIZED:
        headers["www-authenticate"] = "Bearer"
    if isinstance(error, InvalidRules):
        return _invalid_rules(scope, error)
    known = error.members if isinstance(error, UnknownFormat) else {}
    return problem(scope, error.status, error.code, str(error), headers, **known)


def failure(scope: Scope, error: Exception) -> Problem:
    """The answer to a request that broke something here; the log has the reason."""
    log.error("request failed", path=scope.get("path"), exc_info=error)
    return problem(scope, 500, "internal", "Something broke here. The log has the reason.")


def install(app: FastAPI) -> None:
    """Make the app answer with problems."""
    app.add_exception_handler(PacelineError, _on_refusal)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(HTTPException, _on_http)


def _spread(retry_after_s: int, status: int) -> int:
    # Callers that were refused together must not come back together.
    most = retry_after_s if status == HTTPStatus.TOO_MANY_REQUESTS else 2 * retry_after_s
    wait_s = random.randint(retry_after_s, most)  # noqa: S311
    return min(max(wait_s, 1), LONGEST_RETRY_S if status != 429 else 60)


def _invalid_rules(scope: Scope, error: InvalidRules) -> Problem:
    """All lines that are wrong: who edits a text wants to see every one of them."""
    lines = [
        {
            "field": "rules" if line is None else f"line {line}",
            "line": line,
            "message": words[:_LONGEST_MESSAGE],
        }
        for line, words in error.problems[:MAX_LINES]
    ]
    detail = "; ".join(f"{each['field']}: {each['message']}" for each in lines[:3])
    return problem(scope, error.status, error.code, detail, errors=lines)


async def _on_refusal(request: Request, error: Exception) -> Response:
    return refusal(request.scope, cast(PacelineError, error))


async def _on_http(request: Request, error: Exception) -> Response:
    http = cast(HTTPException, error)
    if http.status_code == HTTPStatus.BAD_REQUEST and http.__cause__ is not None:
        return refusal(request.scope, unreadable(http.__cause__))
    code = _HTTP_CODES.get(http.status_code, "malformed")
    headers = dict(http.headers or {})
    if http.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        methods = allowed_methods(request.app, request.scope["path"])
        headers |= {"Allow": ", ".join(methods)} if methods else {}
    return problem(request.scope, http.status_code, code, str(http.detail), headers)


async def _on_invalid(request: Request, error: Exception) -> Response:
    found = cast(RequestValidationError, error).errors()
    for item in found:
        if item["type"] == "json_invalid":
            return refusal(request.scope, unreadable_at(item["loc"][-1], str(item["ctx"]["error"])))
    if _has_body_of_another_kind(request, found):
        return refusal(request.scope, UnsupportedMedia("send application/json"))
    fields = [
        {"field": _path(item["loc"]), "message": item["msg"][:_LONGEST_MESSAGE]}
        for item in found[:MAX_FIELDS]
    ]
    detail = "; ".join(f"{field['field']}: {field['message']}" for field in fields[:3])
    return problem(request.scope, InvalidRequest.status, InvalidRequest.code, detail, errors=fields)


def _has_body_of_another_kind(request: Request, found: Any) -> bool:
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    return media != "application/json" and any(
        item["loc"] == ("body",) and item["type"] != "missing" for item in found
    )


def _path(location: tuple[int | str, ...]) -> str:
    return ".".join(str(part)[:64] for part in location)
