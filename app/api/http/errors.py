"""Every refusal as a problem document (RFC 9457), without internal details.

A 405 lists all methods of the path: the framework names only those of one route. Query parameters
that a route does not have are refused with the nearest one: a misspelt filter that is ignored would
show everything, as if it all matched.
"""

import json
import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from http import HTTPStatus
from typing import Any, cast
from urllib.parse import quote

import structlog
from fastapi import FastAPI, Request
from fastapi.dependencies.models import Dependant
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Scope
from typing_extensions import override

from app.api.http.bodies import MAX_FIELDS, unreadable_json, unreadable_json_at
from app.api.http.request_log import loggable_path, note_failure
from app.errors import InvalidRequest, InvalidRules, PacelineError, UnsupportedMedia
from app.ingest.wire.body import UnknownFormat

_PARAMETER = re.compile(r"\\{[a-z_]+\\}")


def allowed_methods(app: FastAPI, path: str) -> list[str]:
    """Methods of an API path, sorted; empty for other paths."""
    # Needed for 405 only, so no pattern is cached.
    return sorted(
        {
            method.upper()
            for template, operations in app.openapi()["paths"].items()
            if re.fullmatch(_PARAMETER.sub("[^/]+", re.escape(template)), path)
            for method in operations
        }
    )


log = structlog.get_logger()

PROBLEM_TYPE = "application/problem+json"
MAX_LINES = 500  # of rules
_MAX_MESSAGE_CHARS = 400  # one may repeat what the caller sent
MAX_RETRY_S = 30
# Refused before the body was read: its rest must not be parsed as the next request.
_CLOSE_CONNECTION = {408, 411, 413}
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
    """The problem document of a refused request."""
    scope["problem"] = code  # for the line in the log
    body = {
        "type": f"/docs/api#error-{code}",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
        "code": code,
        "instance": quote(scope.get("path", ""), errors="replace"),
        **more,
    }
    closing = {"connection": "close"} if status in _CLOSE_CONNECTION else {}
    return Problem(body, status, {**closing, **(headers or {})})


def refusal(scope: Scope, error: Exception) -> Problem:
    """The problem document of an error; one that is no `PacelineError` is logged, too."""
    if not isinstance(error, PacelineError) or error.status == HTTPStatus.INTERNAL_SERVER_ERROR:
        log.error("request failed", path=loggable_path(scope.get("path", "")), exc_info=error)
        return problem(scope, 500, "internal", "Something broke here. The log has the reason.")
    headers = {}
    if error.status in (429, 503):
        note_failure(scope, error)
        wait_s = _jittered_wait_s(getattr(error, "retry_after_s", 1), error.status)
        headers["retry-after"] = str(wait_s)
    if error.status == HTTPStatus.UNAUTHORIZED:
        headers["www-authenticate"] = "Bearer"
    if isinstance(error, InvalidRules):
        return _invalid_rules(scope, error)
    known = error.members if isinstance(error, UnknownFormat) else {}
    return problem(scope, error.status, error.code, str(error), headers, **known)


def install_error_handlers(app: FastAPI) -> None:
    """Make the app answer errors with problem documents."""
    app.add_exception_handler(PacelineError, _on_refusal)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(HTTPException, _on_http)


def _jittered_wait_s(retry_after_s: int, status: int) -> int:
    # Jitter: callers that were refused together must not retry together.
    max_wait_s = retry_after_s if status == HTTPStatus.TOO_MANY_REQUESTS else 2 * retry_after_s
    wait_s = random.randint(retry_after_s, max_wait_s)  # noqa: S311
    return min(max(wait_s, 1), MAX_RETRY_S if status != 429 else 60)


def _invalid_rules(scope: Scope, error: InvalidRules) -> Problem:
    """The problem document of invalid rules, with every wrong line."""
    lines = [
        {
            "field": "rules" if line is None else f"line {line}",
            "line": line,
            "message": words[:_MAX_MESSAGE_CHARS],
        }
        for line, words in error.problems[:MAX_LINES]
    ]
    return problem(scope, error.status, error.code, _first_three(lines), errors=lines)


async def _on_refusal(request: Request, error: Exception) -> Response:
    return refusal(request.scope, error)


async def _on_http(request: Request, error: Exception) -> Response:
    http = cast(HTTPException, error)
    if http.status_code == HTTPStatus.BAD_REQUEST and http.__cause__ is not None:
        return refusal(request.scope, unreadable_json(http.__cause__))
    code = _HTTP_CODES.get(http.status_code, "malformed")
    headers = dict(http.headers or {})
    if http.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        # Starlette names the methods of one route alone, in the random order of a set.
        known = sorted(filter(None, headers.get("Allow", "").split(", ")))
        methods = allowed_methods(request.app, request.scope["path"]) or known
        headers |= {"Allow": ", ".join(methods)} if methods else {}
    return problem(request.scope, http.status_code, code, str(http.detail), headers)


async def _on_invalid(request: Request, error: Exception) -> Response:
    errors = cast(RequestValidationError, error).errors()
    for item in errors:
        if item["type"] == "json_invalid":
            return refusal(
                request.scope, unreadable_json_at(item["loc"][-1], str(item["ctx"]["error"]))
            )
    if _has_body_of_another_kind(request, errors):
        return refusal(request.scope, UnsupportedMedia("send application/json"))
    fields = [
        {"field": _field_path(item["loc"]), "message": _words(request, item)[:_MAX_MESSAGE_CHARS]}
        for item in errors[:MAX_FIELDS]
    ]
    detail = _first_three(fields)
    return problem(request.scope, InvalidRequest.status, InvalidRequest.code, detail, errors=fields)


def _first_three(wrong: Sequence[Mapping[str, object]]) -> str:
    return "; ".join(f"{field['field']}: {field['message']}" for field in wrong[:3])


def _words(request: Request, item: ErrorDetails) -> str:
    route = request.scope.get("route")
    is_misfit = item["type"] == "string_pattern_mismatch" and item["loc"][0] != "body"
    # A regular expression is no help to a reader.
    words = misfit_words(route, item["loc"], item["input"]) if is_misfit and route else None
    return words or str(item["msg"])


def _has_body_of_another_kind(request: Request, errors: Sequence[Any]) -> bool:
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    return media != "application/json" and any(
        item["loc"] == ("body",) and item["type"] != "missing" for item in errors
    )


def _field_path(location: tuple[int | str, ...]) -> str:
    return ".".join(str(part)[:64] for part in location)


USED_PARAMETERS = "paceline.used_parameters"  # of a request's scope: those that middleware takes
_MAX_NAME_CHARS = 64


def unknown_parameters(names: Iterable[str], known: Sequence[str]) -> RequestValidationError:
    """The refusal of these parameters, where the `known` ones are allowed."""
    return RequestValidationError(
        [
            {"type": "unknown_parameter", "loc": ("query", name), "msg": _unknown(name, known)}
            for name in dict.fromkeys(names)
        ]
    )


async def refuse_unknown_parameters(request: Request) -> None:
    """A dependency of every route: raises RequestValidationError for parameters it lacks."""
    given = request.query_params.keys()
    if not given:
        return
    known = query_parameters(request.scope["route"])
    used = request.scope.get(USED_PARAMETERS, ())
    unknown = [name for name in given if name not in known and name not in used]
    if unknown:
        raise unknown_parameters(unknown, known)


def query_parameters(route: APIRoute) -> tuple[str, ...]:
    """Names of the route's query parameters, sorted."""
    places = (place for place, _ in _parameters(route.dependant))
    return tuple(sorted({name for where, name in places if where == "query"}))


def misfit_words(route: APIRoute, location: tuple[int | str, ...], value: object) -> str | None:
    """The message for a parameter in path or query whose value does not fit its pattern.

    None if the location is no such parameter.
    """
    info = next((info for place, info in _parameters(route.dependant) if place == location), None)
    if info is None:
        return None
    example = next(iter(info.examples or ()), None)
    described = info.description or ""
    more = f" For example: {example}" if example and "such as" not in described else ""
    return f"{str(value)[:_MAX_NAME_CHARS]!r} does not fit. {described}{more}"


def _parameters(dependant: Dependant) -> Iterator[tuple[tuple[str, str], FieldInfo]]:
    """Parameters in path and query with their places, those of dependencies included."""
    for field in dependant.path_params:
        yield ("path", field.alias), field.field_info
    for field in dependant.query_params:
        model = field.field_info.annotation
        if isinstance(model, type) and issubclass(model, BaseModel):
            yield from ((("query", name), info) for name, info in model.model_fields.items())
        else:
            yield ("query", field.alias), field.field_info
    for inner in dependant.dependencies:
        yield from _parameters(inner)


def _unknown(name: str, known: Sequence[str]) -> str:
    """The message for an unknown parameter, with the nearest known one."""
    if not known:
        return "no such parameter: this takes none"
    near = get_close_matches(name[:_MAX_NAME_CHARS].lower(), known, n=1)
    meant = f"did you mean {near[0]}? " if near else ""
    return f"no such parameter; {meant}this takes {', '.join(known)}"
