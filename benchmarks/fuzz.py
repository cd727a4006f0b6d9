"""`fuzz` and `fuzz-spans`: does any body break the service, take its memory or hold it up?"""

import gzip
import http.client
import json
import time
from collections import Counter
from typing import Annotated, Any

import typer

from benchmarks.service.stack import JOB, StackUnderTest, running_stack
from tests.harness.fuzz import decoding, importing
from tests.harness.fuzz.bombs import bombs
from tests.harness.fuzz.damaged_files import DamagedFiles
from tests.harness.fuzz.decoding import MAX_REPORTED, FuzzFindings, peak_bytes
from tests.harness.fuzz.payloads import Payload, Payloads
from tests.harness.samples.otlp import as_json, as_protobuf, resource, spans

QUEUE_BYTES = 4 << 30
MAX_GROWTH_MB = 64.0
_SETTLED_AFTER = 2_000
_PAYLOAD_TIMEOUT_S = 10.0
MAX_SPANS_GROWTH_MB = 64.0
_SPANS_QUEUE_BYTES = 1 << 30
_SPANS_TIMEOUT_S = 30.0
_SPANS_WARM_UP = 500
_PACK_EVERY = 5
_TYPES = {"spans.json": "application/json", "spans.pb": "application/x-protobuf"}


def fuzz(
    payloads: Annotated[int, typer.Option(min=1, help="Damaged batches to read.")] = 1_000_000,
    seed: Annotated[int, typer.Option(min=0, help="The same seed, the same payloads.")] = 1,
    http_every: Annotated[
        int, typer.Option(min=0, help="Every which one is also posted to an API; 0: none.")
    ] = 101,
    format_: Annotated[
        str | None,
        typer.Option("--format", help="Damage files of this import format instead; all: of each."),
    ] = None,
    mutations: Annotated[int, typer.Option(min=1, help="Damaged files of a format.")] = 200_000,
) -> None:
    """Read damaged batches and decompression bombs as the API does, and post some to a real one.

    Exits with 1 after a crash, a 5xx or more than 64 MB of growth; times are only reported. With
    --format, files are damaged and imported: one has to be taken, or refused in one line.

    Example: python -m benchmarks fuzz --payloads 20000 --seed 7
    """
    if format_ is not None:
        _fuzz_importing(format_, mutations, seed)
        return
    result = decoding.decode_in_process(seed, payloads)
    # Not concurrently: each would slow the other down.
    posted = _posted_payloads(payloads, seed, http_every) if http_every else None
    typer.echo(json.dumps({"seed": seed, **result, "http": posted}))
    if not all(_is_within_limits(each) for each in (result, posted) if each is not None):
        raise typer.Exit(1)


def _fuzz_importing(name: str, mutations: int, seed: int) -> None:
    are_within_limits = True
    for each in importing.formats(name):
        result = importing.import_in_process(each, mutations, seed)
        typer.echo(json.dumps({"seed": seed, **result}))
        are_within_limits &= _is_within_limits(result)
    if not are_within_limits:
        raise typer.Exit(1)


def _posted_payloads(payloads: int, seed: int, every: int) -> dict[str, Any]:
    damaged = Payloads(seed)
    with running_stack(workers=1, queue_bytes=QUEUE_BYTES) as target:
        return post_payloads(target, damaged, range(0, payloads, every))


def _is_within_limits(result: dict[str, Any]) -> bool:
    return not result["wrong"] and result["rss_growth_mb"] <= MAX_GROWTH_MB


def post_payloads(target: StackUnderTest, payloads: Payloads, numbers: range) -> dict[str, Any]:
    """Figures of these payloads; a connection that is gone without an answer counts as 500."""
    findings, api = FuzzFindings(), str(target.api_pid)
    bombs()  # created before the connection opens, which would time out
    connection = _connect_to(target)
    # Enough that kernels and everything else loaded by the first requests are in memory.
    for number in range(1, _SETTLED_AFTER):
        _post_payload(connection, target, payloads.good[number % len(payloads.good)])
    before_bytes = peak_bytes(api)
    for number in numbers:
        payload = payloads[number]
        began_s = time.perf_counter()
        try:
            status = _post_payload(connection, target, payload)
        except (OSError, http.client.HTTPException) as error:
            status = 500
            findings.report(number, payload, f"no answer: {error!r}")
            connection.close()
            connection = _connect_to(target)
        if status >= 500 and not findings.wrong:
            findings.report(number, payload, f"answered with {status}")
        findings.note(payload, status, time.perf_counter() - began_s, 0.0)
    connection.close()
    growth_bytes = peak_bytes(api) - before_bytes
    return {"requests": len(numbers), **findings.as_json(), "rss_growth_mb": growth_bytes / 1e6}


def _connect_to(target: StackUnderTest) -> http.client.HTTPConnection:
    return http.client.HTTPConnection("127.0.0.1", target.port, timeout=_PAYLOAD_TIMEOUT_S)


def _post_payload(
    connection: http.client.HTTPConnection, target: StackUnderTest, payload: Payload
) -> int:
    headers = {"authorization": f"Bearer {target.token}", "content-type": payload.content_type}
    if payload.content_encoding:
        headers["content-encoding"] = payload.content_encoding
    connection.request("POST", f"/api/v1/jobs/{JOB}/ops", payload.body, headers)
    answer = connection.getresponse()
    answer.read()
    return answer.status


def fuzz_spans(
    requests: Annotated[int, typer.Option(min=1, help="Damaged bodies to post.")] = 20_000,
    seed: Annotated[int, typer.Option(min=0, help="The same seed, the same bodies.")] = 1,
) -> None:
    """Post damaged OTLP traces, JSON and protobuf, some packed, to an API with queue and store.

    Exits with 1 after a 5xx, an answer that did not come, or more than 64 MB of growth.

    Example: python -m benchmarks fuzz-spans --requests 2000 --seed 7
    """
    with running_stack(workers=1, queue_bytes=_SPANS_QUEUE_BYTES) as target:
        result = _posted_spans(target, DamagedFiles(samples(), seed), requests)
    typer.echo(json.dumps({"seed": seed, **result}))
    if result["wrong"] or result["rss_growth_mb"] > MAX_SPANS_GROWTH_MB:
        raise typer.Exit(1)


def samples() -> dict[str, bytes]:
    """A good request in both forms, of a job that has asked for its analysis."""
    attributes = {"paceline.job": "fuzzed", "paceline.host_times": "analyse"}
    resource_and_spans = resource(0) | attributes, spans(0, range(5, 8))
    return {
        "spans.json": as_json(*resource_and_spans),
        "spans.pb": as_protobuf(*resource_and_spans),
    }


def _posted_spans(target: StackUnderTest, damaged: DamagedFiles, requests: int) -> dict[str, Any]:
    by_status: Counter[str] = Counter()
    wrong: list[str] = []
    before_bytes, began_s = 0, time.perf_counter()
    connection = _spans_connection(target)
    for number in range(-_SPANS_WARM_UP, requests):
        if number == 0:
            before_bytes, began_s = peak_bytes(str(target.api_pid)), time.perf_counter()
            by_status.clear()
        name, body = damaged[number]
        try:
            status = _post_spans(connection, target, _TYPES[name], body, number % _PACK_EVERY == 0)
        except (OSError, http.client.HTTPException) as error:
            status = 500
            wrong.append(f"request {number}: no answer: {error!r}")
            connection.close()
            connection = _spans_connection(target)
        by_status[str(status)] += 1
        if status >= 500 and len(wrong) < MAX_REPORTED:
            wrong.append(f"request {number}: answered with {status}")
    connection.close()
    grown = (peak_bytes(str(target.api_pid)) - before_bytes) / 1e6
    seconds = time.perf_counter() - began_s
    return {
        "requests": requests,
        "by_status": dict(by_status),
        "seconds": seconds,
        "wrong": wrong,
        "rss_growth_mb": grown,
    }


def _spans_connection(target: StackUnderTest) -> http.client.HTTPConnection:
    return http.client.HTTPConnection("127.0.0.1", target.port, timeout=_SPANS_TIMEOUT_S)


def _post_spans(
    connection: http.client.HTTPConnection,
    target: StackUnderTest,
    media_type: str,
    body: bytes,
    is_packed: bool,
) -> int:
    headers = {"authorization": f"Bearer {target.token}", "content-type": media_type}
    if is_packed:
        headers["content-encoding"], body = "gzip", gzip.compress(body, 1)
    connection.request("POST", "/v1/traces", body, headers)
    answer = connection.getresponse()
    answer.read()
    return answer.status
