"""`api`: how soon does the API answer what pages ask, with many jobs and windows stored?

Addresses are generated from the API's own description, and requested repeatedly over one
connection.
"""

import asyncio
import http.client
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Annotated, Any, NamedTuple
from urllib.parse import quote, urlencode

import numpy as np
import typer

from app.errors import InvalidRequest
from app.store.database import Store
from benchmarks.service import pushing
from benchmarks.service.ingest import copy_s
from benchmarks.service.stack import JOB, StackUnderTest
from benchmarks.service.stored_jobs import fill_store

STEPS = 20  # of the job that is pushed: two windows are closed, a third is open
# An endless stream, a whole file that a reader asks for to keep, one row of a list, and a picture
# whose link only a notification has.
EXCLUDED = ("stream_events", "get_window_timeline", "get_saved_question", "get_linked_picture")
# Further queries of the fleet's page.
MORE_QUERIES = {
    "get_fleet": (
        "limit=200",
        "q=node-1",
        "cause=slow-worker",
        "order=since",
        "order=name&dir=desc",
    )
}
_API_PREFIX = "/api/v1/"
KnownValues = Mapping[str, Sequence[str]]
WITHIN_S = 120.0
BAR_MS = 100.0


def api(
    jobs: Annotated[int, typer.Option(min=2, help="Jobs that are stored.")] = 1000,
    windows: Annotated[int, typer.Option(min=2, help="Windows that are stored, of all.")] = 10_000,
    workers: Annotated[
        int, typer.Option(min=4, help="Workers of the job whose pages are asked for.")
    ] = 1024,
    times: Annotated[int, typer.Option(min=1, help="How often each address is asked.")] = 100,
) -> None:
    """Ask every address that a page may ask, of a store with many jobs and windows.

    One job is pushed as a real one is, and its addresses are asked; the others are put into the
    store. Addresses come from the API's own description; one that is refused is listed. The
    `busy_` figures are the times for which the API had a processor: on a machine that does other
    things, too, they say more than the others.

    Example: python -m benchmarks api --jobs 1000 --windows 10000
    """
    with pushing.page_stack(workers) as target:
        asyncio.run(pushing.StepFeed.of(target, workers, microbatches=8).push(STEPS))
        _fill(target, jobs - 1, windows)
        answers, refused = timed_responses(target, _known_addresses(target), times)
    found = {"jobs": jobs, "windows": windows, "workers": workers, "times": times}
    typer.echo(json.dumps(found | figures(answers, refused) | {"copy_100mb_s": copy_s()}))


def _fill(target: StackUnderTest, jobs: int, windows: int) -> None:
    store = Store(target.store_url)
    try:
        fill_store(store, num_jobs=jobs, num_windows=windows, now_s=time.time())
    finally:
        store.close()


def _known_addresses(target: StackUnderTest) -> dict[str, list[str]]:
    known = {
        "job_id": [JOB],
        "window": ["latest", "1-0", "1-0..1-8"],
        "worker": ["1-1"],
        "host": ["node-0"],
        "stage": ["1"],
        "optype": ["forward-compute"],
        "seq_id": ["0"],
        "a": [f"{JOB}:1-0"],
        "b": [f"{JOB}:1-8"],
    }
    return addresses(openapi_document(target), known)


def addresses(document: Mapping[str, Any], known: KnownValues) -> dict[str, list[str]]:
    """Addresses by the operation's name, one for each choice that its path has.

    `known` has values of parameters by name; of others every value that the description lists is
    taken, or its example. Parameters of the query are given only where they are required.

    Raises:
        InvalidRequest: of a parameter that has to be given, no value is known.
    """
    found: dict[str, list[str]] = {}
    for path, operations in document["paths"].items():
        operation = operations.get("get")
        if operation and path.startswith(_API_PREFIX) and operation["operationId"] not in EXCLUDED:
            name = operation["operationId"]
            further = [f"{path}?{query}" for query in MORE_QUERIES.get(name, ())]
            found[name] = [*_addresses_of(path, operation, known), *further]
    return found


def _addresses_of(path: str, operation: Mapping[str, Any], known: KnownValues) -> Iterator[str]:
    needed = [each for each in operation.get("parameters", ()) if each.get("required")]
    choices = [_values(path, each, known) for each in needed]
    for chosen in product(*choices):
        address, query = path, {}
        for parameter, value in zip(needed, chosen, strict=True):
            if parameter["in"] == "path":
                address = address.replace(f"{{{parameter['name']}}}", quote(value, safe=""))
            else:
                query[parameter["name"]] = value
        yield f"{address}?{urlencode(query)}" if query else address


def _values(path: str, parameter: Mapping[str, Any], known: KnownValues) -> Sequence[str]:
    schema = parameter["schema"]
    listed: Sequence[str] = known.get(parameter["name"]) or schema.get("enum") or ()
    examples: Sequence[str] = listed or schema.get("examples") or ()
    if not examples:
        raise InvalidRequest(f"{path}: no value is known of {parameter['name']!r}")
    return listed or [str(examples[0])]


class TimedResponse(NamedTuple):
    """Seconds until all of an answer was there; and of these the API's own, None where unknown.

    The API's own are those for which it had a processor: where the machine does other things, too,
    they estimate the times of an idle one.
    """

    took_s: float
    busy_s: float | None


def timed_responses(
    target: StackUnderTest, by_operation: Mapping[str, list[str]], times: int
) -> tuple[dict[str, list[TimedResponse]], dict[str, int]]:
    """The good answers by address, and the status of each address that was refused.

    The first round is not counted: it fills what a process keeps.
    """
    answers: dict[str, list[TimedResponse]] = {}
    refused: dict[str, int] = {}
    connection = http.client.HTTPConnection("127.0.0.1", target.port, timeout=WITHIN_S)
    all_addresses = [address for each in by_operation.values() for address in each]
    for turn in range(1 + times):
        for address in all_addresses:
            if address in refused:
                continue
            status, answer = _ask(connection, address, target)
            if status >= 300:
                refused[address] = status
            elif turn:
                answers.setdefault(address, []).append(answer)
    connection.close()
    return answers, refused


def openapi_document(target: StackUnderTest) -> dict[str, Any]:
    """The API's description of itself."""
    connection = http.client.HTTPConnection("127.0.0.1", target.port, timeout=WITHIN_S)
    connection.request("GET", "/openapi.json", headers=_headers(target))
    found: dict[str, Any] = json.loads(connection.getresponse().read())
    connection.close()
    return found


def _ask(
    connection: http.client.HTTPConnection, address: str, target: StackUnderTest
) -> tuple[int, TimedResponse]:
    busy_before_s, began_s = _busy_s(target.api_pid), time.perf_counter()
    connection.request("GET", address, headers=_headers(target))
    answer = connection.getresponse()
    answer.read()
    took_s, busy_s = time.perf_counter() - began_s, _busy_s(target.api_pid)
    if busy_s is None or busy_before_s is None:
        return answer.status, TimedResponse(took_s, None)
    return answer.status, TimedResponse(took_s, busy_s - busy_before_s)


def _busy_s(pid: int | None) -> float | None:
    """Processor time of all threads of a process; None where the system has no schedstat."""
    times = Path(f"/proc/{pid}/task").glob("*/schedstat")
    found = [int(each.read_text().split()[0]) for each in times]
    return sum(found) / 1e9 if found else None


def _headers(target: StackUnderTest) -> dict[str, str]:
    return {"authorization": f"Bearer {target.token}"}


def figures(
    answers: Mapping[str, Sequence[TimedResponse]], refused: Mapping[str, int]
) -> dict[str, Any]:
    """Percentiles in milliseconds, of all answers, of each address, and of the slowest one."""
    by_address = {address: _percentiles(each) for address, each in answers.items()}
    slowest = max(by_address, key=lambda address: by_address[address]["p99_ms"])
    return {
        "addresses": len(by_address),
        **_percentiles([answer for each in answers.values() for answer in each]),
        "slowest": slowest,
        "slowest_p99_ms": by_address[slowest]["p99_ms"],
        "over_100_ms": _slower_than_bar(by_address, "p99_ms"),
        "busy_over_100_ms": _slower_than_bar(by_address, "busy_p99_ms"),
        "refused": dict(refused),
        "by_address": by_address,
    }


def _percentiles(answers: Sequence[TimedResponse]) -> dict[str, float]:
    """Until all of an answer was there; and for how long the API was busy, if that is known."""
    kinds = {"": [each.took_s for each in answers]}
    busy_s = [each.busy_s for each in answers if each.busy_s is not None]
    if busy_s:
        kinds["busy_"] = busy_s
    return {
        f"{kind}p{percent}_ms": round(1e3 * float(np.percentile(seconds, percent)), 2)
        for kind, seconds in kinds.items()
        for percent in (50, 99)
    }


def _slower_than_bar(by_address: Mapping[str, Mapping[str, float]], name: str) -> list[str]:
    return [address for address, each in by_address.items() if each.get(name, 0.0) >= BAR_MS]
