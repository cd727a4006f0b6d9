"""Schemathesis hooks: facts about the server that its description does not have."""

import itertools
from typing import Any

import schemathesis
from schemathesis import Case, HookContext

JOB = "llm-70b"  # as the examples in the description name it

_numbers = itertools.count(1)


@schemathesis.hook
def before_call(_context: HookContext, case: Case[Any], _options: dict[str, Any]) -> None:
    """Give each request another client address, and protect the job that has windows.

    From one address, the eleventh wrong token in a minute gets a 429 where Schemathesis wants a
    401; the server trusts what a proxy on this machine says of addresses. A new run of the job
    would have no windows.
    """
    if case.method == "PUT" and case.path_parameters.get("job_id") == JOB:
        case.path_parameters["job_id"] = f"{JOB}-2"
    number = next(_numbers)
    address = f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"
    case.headers["X-Forwarded-For"] = address
