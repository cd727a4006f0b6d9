"""Which methods a path takes, all of them: the framework names only those of one route."""

import re
from typing import Any

from fastapi import FastAPI

_PARAMETER = re.compile(r"\\{[a-z_]+\\}")


def allowed_methods(app: FastAPI, path: str) -> list[str]:
    """Methods of a path of the API, in the order of the alphabet; none of another path."""
    found = [methods for pattern, methods in _paths(app.openapi()) if pattern.fullmatch(path)]
    return sorted({method for methods in found for method in methods})


def _paths(document: dict[str, Any]) -> list[tuple[re.Pattern[str], list[str]]]:
    # Only a request with a method that is not allowed comes here: there is no need to keep it.
    return [
        (
            re.compile(_PARAMETER.sub("[^/]+", re.escape(template))),
            [method.upper() for method in operations],
        )
        for template, operations in document["paths"].items()
    ]
