"""`paceline bench fuzz-spans`: does any OTLP body break a running API?"""

import gzip
import http.client
import json
import time
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from app.cli.bench.fuzz_files import Damaged
    from app.cli.bench.ingest_stack import Target

MAX_GROWTH_MB = 64.0
_QUEUE_BYTES = 1 << 30
_TIMEOUT_S = 30.0
_WARM_UP = 500
_PACK_EVERY = 5
_TYPES = {"spans.json": "application/json", "spans.pb": "application/x-protobuf"}


def fuzz_spans(
    requests: Annotated[int, typer.Option(min=1, help="Damaged bodies to post.")] = 20_000,
    seed: Annotated[int, typer.Option(min=0, help="The same seed, the same bodies.")] = 1,
) -> None:
    """Post damaged OTLP traces, JSON and protobuf, some packed, to an API with queue and store.

    Exits with 1 after a 5xx, an answer that did not come, or more than 64 MB of growth.

    Example: paceline bench fuzz-spans --requests 2000 --seed 7
    """
    from app.cli.bench.fuzz_files import Damaged
    from app.cli.bench.ingest_stack import running

    with running(workers=1, queue_bytes=_QUEUE_BYTES) as target:
        result = _posted(target, Damaged(samples(), seed), requests)
    typer.echo(json.dumps({"seed": seed, **result}))
    if result["wrong"] or result["rss_growth_mb"] > MAX_GROWTH_MB:
        raise typer.Exit(1)


def samples() -> dict[str, bytes]:
    """A good request in both forms, of a job that has asked for its analysis."""
    from app.trace.readers.otlp_sample import as_json, as_protobuf, resource, spans

    asked = {"paceline.job": "fuzzed", "paceline.host_times": "analyse"}
    of_both = resource(0) | asked, spans(0, range(5, 8))
    return {"spans.json": as_json(*of_both), "spans.pb": as_protobuf(*of_both)}


def _posted(target: "Target", damaged: "Damaged", requests: int) -> dict[str, Any]:
    from app.cli.bench.fuzz_decode import MAX_TOLD, peak_bytes

    by_status: Counter[str] = Counter()
    wrong: list[str] = []
    before_bytes, began_s = 0, time.perf_counter()
    connection = _connection(target)
    for number in range(-_WARM_UP, requests):
        if number == 0:
            before_bytes, began_s = peak_bytes(str(target.api_pid)), time.perf_counter()
            by_status.clear()
        name, body = damaged[number]
        try:
            status = _post(connection, target, _TYPES[name], body, number % _PACK_EVERY == 0)
        except (OSError, http.client.HTTPException) as error:
            status = 500
            wrong.append(f"request {number}: no answer: {error!r}")
            connection.close()
            connection = _connection(target)
        by_status[str(status)] += 1
        if status >= 500 and len(wrong) < MAX_TOLD:
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


def _connection(target: "Target") -> http.client.HTTPConnection:
    return http.client.HTTPConnection("127.0.0.1", target.port, timeout=_TIMEOUT_S)


def _post(
    connection: http.client.HTTPConnection,
    target: "Target",
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
