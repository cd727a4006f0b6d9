"""Ask every address again and again, in turn, over one connection that is kept."""

import http.client
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from app.cli.bench.ingest_stack import Target

WITHIN_S = 120.0


class Answer(NamedTuple):
    """Seconds until all of an answer was there; and of these the API's own, None where unknown.

    The API's own are those for which it had a processor: where the machine does other things, too,
    they say what a quiet one would take.
    """

    took_s: float
    busy_s: float | None


def asked(
    target: Target, of_operation: Mapping[str, list[str]], times: int
) -> tuple[dict[str, list[Answer]], dict[str, int]]:
    """The good answers by address, and the status of each address that was refused.

    The first round is not counted: it fills what a process keeps.
    """
    answers: dict[str, list[Answer]] = {}
    refused: dict[str, int] = {}
    connection = http.client.HTTPConnection("127.0.0.1", target.port, timeout=WITHIN_S)
    every = [address for each in of_operation.values() for address in each]
    for turn in range(1 + times):
        for address in every:
            if address in refused:
                continue
            status, answer = _ask(connection, address, target)
            if status >= 300:
                refused[address] = status
            elif turn:
                answers.setdefault(address, []).append(answer)
    connection.close()
    return answers, refused


def document(target: Target) -> dict[str, Any]:
    """The API's description of itself."""
    connection = http.client.HTTPConnection("127.0.0.1", target.port, timeout=WITHIN_S)
    connection.request("GET", "/openapi.json", headers=_headers(target))
    found: dict[str, Any] = json.loads(connection.getresponse().read())
    connection.close()
    return found


def _ask(
    connection: http.client.HTTPConnection, address: str, target: Target
) -> tuple[int, Answer]:
    busy_before_s, began_s = _busy_s(target.api_pid), time.perf_counter()
    connection.request("GET", address, headers=_headers(target))
    answer = connection.getresponse()
    answer.read()
    took_s, busy_s = time.perf_counter() - began_s, _busy_s(target.api_pid)
    if busy_s is None or busy_before_s is None:
        return answer.status, Answer(took_s, None)
    return answer.status, Answer(took_s, busy_s - busy_before_s)


def _busy_s(pid: int | None) -> float | None:
    """For how long a process has had a processor, all its threads; None where nobody tells."""
    times = Path(f"/proc/{pid}/task").glob("*/schedstat")
    found = [int(each.read_text().split()[0]) for each in times]
    return sum(found) / 1e9 if found else None


def _headers(target: Target) -> dict[str, str]:
    return {"authorization": f"Bearer {target.token}"}
