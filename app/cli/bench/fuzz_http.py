"""Damaged batches posted to a running API."""

import http.client
import time
from typing import Any

from app.cli.bench.fuzz_bombs import bombs
from app.cli.bench.fuzz_decode import Findings, peak_bytes
from app.cli.bench.fuzz_payloads import Payload, Payloads
from app.cli.bench.ingest_stack import JOB, Target

_SETTLED_AFTER = 2_000
_TIMEOUT_S = 10.0


def post_all(target: Target, payloads: Payloads, numbers: range) -> dict[str, Any]:
    """Figures of these payloads; a connection that is gone without an answer counts as 500."""
    findings, api = Findings(), str(target.api_pid)
    bombs()  # a connection does not wait until they are made
    connection = _connect(target)
    # So many that kernels and whatever else is loaded beside the first requests are in memory.
    for number in range(1, _SETTLED_AFTER):
        _post(connection, target, payloads.good[number % len(payloads.good)])
    before_bytes = peak_bytes(api)
    for number in numbers:
        payload = payloads[number]
        began_s = time.perf_counter()
        try:
            status = _post(connection, target, payload)
        except (OSError, http.client.HTTPException) as error:
            status = 500
            findings.complain(number, payload, f"no answer: {error!r}")
            connection.close()
            connection = _connect(target)
        if status >= 500 and not findings.wrong:
            findings.complain(number, payload, f"answered with {status}")
        findings.note(payload, status, time.perf_counter() - began_s, 0.0)
    connection.close()
    growth_bytes = peak_bytes(api) - before_bytes
    return {"requests": len(numbers), **findings.as_json(), "rss_growth_mb": growth_bytes / 1e6}


def _connect(target: Target) -> http.client.HTTPConnection:
    return http.client.HTTPConnection("127.0.0.1", target.port, timeout=_TIMEOUT_S)


def _post(connection: http.client.HTTPConnection, target: Target, payload: Payload) -> int:
    headers = {"authorization": f"Bearer {target.token}", "content-type": payload.content_type}
    if payload.content_encoding:
        headers["content-encoding"] = payload.content_encoding
    connection.request("POST", f"/api/v1/jobs/{JOB}/ops", payload.body, headers)
    answer = connection.getresponse()
    answer.read()
    return answer.status
