"""Query parameters that a route does not have are refused with the nearest one; so are bad ids.

A misspelt filter that is ignored would show everything, as if it all matched.
"""

from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches

from fastapi import Request, params
from fastapi._compat import ModelField
from fastapi.dependencies.models import Dependant
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute

USED_PARAMETERS = "paceline.used_parameters"  # of a request's scope: those that middleware takes
_MAX_NAME_CHARS = 64


def unknown_parameters(names: Iterable[str], known: Sequence[str]) -> RequestValidationError:
    """The refusal of these parameters, where the `known` ones are allowed."""
    return RequestValidationError(
        [
            {"type": "unknown_parameter", "loc": ("query", name), "msg": _words(name, known)}
            for name in dict.fromkeys(names)
        ]
    )


async def refuse_unknown_parameters(request: Request) -> None:
    """A dependency of every route of the API.

    Raises:
        RequestValidationError: the query has parameters that the route does not have.
    """
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
    fields = map(_place, _fields_of(route.dependant))
    return tuple(sorted({name for where, name in fields if where == "query"}))


def _fields_of(dependant: Dependant) -> Iterator[ModelField]:
    """Parameters in path and query, those of dependencies included."""
    yield from (*dependant.path_params, *dependant.query_params)
    for each in dependant.dependencies:
        yield from _fields_of(each)


def misfit_words(route: APIRoute, location: tuple[int | str, ...], value: object) -> str | None:
    """What a parameter in the path or query has to be, where its value does not fit its pattern.

    None of anything else than such a parameter.
    """
    field = next((each for each in _fields_of(route.dependant) if _place(each) == location), None)
    if field is None:
        return None
    example = next(iter(field.field_info.examples or ()), None)
    described = field.field_info.description or ""
    more = f" For example: {example}" if example and "such as" not in described else ""
    return f"{str(value)[:_MAX_NAME_CHARS]!r} does not fit. {described}{more}"


def _place(field: ModelField) -> tuple[str, str]:
    is_in_path = isinstance(field.field_info, params.Path)
    return ("path" if is_in_path else "query", field.alias)


def _words(name: str, known: Sequence[str]) -> str:
    """What is wrong with an unknown parameter, and what to write instead."""
    if not known:
        return "no such parameter: this takes none"
    near = get_close_matches(name[:_MAX_NAME_CHARS].lower(), known, n=1)
    meant = f"did you mean {near[0]}? " if near else ""
    return f"no such parameter; {meant}this takes {', '.join(known)}"
