"""The API against its OpenAPI document: a few requests of each operation, at night all checks."""

import json
import subprocess
import sys

import pytest
import schemathesis
from hypothesis import given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.api import recorded
from tests.api.server import TOKEN
from tests.example_counts import many

COMMAND = [sys.executable, "-m", "benchmarks", "schema"]
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
KNOWN = {"job_id": "llm-70b", "window": "latest", "worker": "1-1"}


def generated(operation):
    """Requests that the description of this operation allows, for objects that there are."""
    cases = []

    @settings(many(2), derandomize=True, database=None)
    @given(operation.as_strategy())
    def collect(case):
        case.path_parameters |= {name: KNOWN[name] for name in case.path_parameters & KNOWN.keys()}
        cases.append(case)

    collect()
    return cases


def sent_by_httpx(case):
    """Arguments of a request with the root token."""
    arguments = case.as_transport_kwargs(base_url="http://localhost")
    arguments.pop("cookies")
    if "data" in arguments:
        arguments["content"] = arguments.pop("data")
    token = {"Authorization": f"Bearer {TOKEN}"}
    return arguments | {"headers": {**arguments["headers"], **token}}


@pytest.mark.anyio
async def test_generated_requests_are_answered_as_described(api):
    await api.register()
    recorded.save(api, recorded.window())
    described = schemathesis.openapi.from_dict(api.app.openapi())
    operations = [found.ok() for found in described.get_all_operations() if isinstance(found, Ok)]
    assert len(operations) > 100
    statuses = set()
    for operation in operations:
        for case in generated(operation):
            api.app.state.service.hub.close()  # otherwise a stream of events has no end
            answer = await api.client.request(**sent_by_httpx(case))
            case.validate_response(answer, checks=CHECKS)
            statuses.add(answer.status_code)
    assert {200, 201, 204, 404, 422} <= statuses


@pytest.mark.nightly
def test_every_answer_matches_the_openapi_document():
    # Five minutes of it are `python -m benchmarks schema --minutes 5`.
    command = [*COMMAND, "--examples", "1", "--seed", "1"]
    ended = subprocess.run(command, capture_output=True, text=True)
    failures = ended.stderr[ended.stderr.find("FAILURES") :]
    assert ended.returncode == 0, failures
    found = json.loads(ended.stdout)
    assert found["passed"] is True
    assert found["failures"] == 0
    assert found["operations"] >= 26
    assert found["requests"] > 1000
