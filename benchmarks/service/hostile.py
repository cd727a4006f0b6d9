"""`hostile`: do pushes and /healthz answer while a token that may only read does its worst?

The hostile callers are a process of their own, so that they do not delay what is timed.
"""

import asyncio
import http.client
import itertools
import json
import multiprocessing
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Annotated, Any

import numpy as np
import typer

from app.advice.facts import MAX_LIST_CHARS
from app.alerts.rules.rule_in import MAX_RULES
from app.engine.questions.edits import MAX_EDITS
from benchmarks.measuring import BenchmarkFailed
from benchmarks.service.pushing import StepFeed, stages_of
from benchmarks.service.stack import JOB, StackUnderTest, running_stack
from tests.harness.fuzz.input_families import repeated

BAR_MS = 500.0
_WORKERS = 64
_STEPS_BEFORE = 10
_MICROBATCHES = 8
_QUEUE_BYTES = 4 << 30
_PROBES_PER_S = 20.0
_MOST_AT_ONCE = 64
_TIMEOUT_S = 30.0
_WINDOW_WITHIN_S = 120.0
_WINDOW = f"/api/v1/jobs/{JOB}/windows/latest"
_YAML, _JSON = "application/yaml", "application/json"
_CHECK = "/api/v1/rules/check"
# What an answered, a postponed and a too costly computation end with.
_COMPUTED = ("200", "429", "413")


@dataclass(frozen=True, slots=True)
class HostileKind:
    """One request; `is_valid` if it has to reach what it makes the service compute."""

    method: str
    path: str
    media: str = ""
    body: bytes = b""
    is_valid: bool = True


def _question(edit: Mapping[str, Any]) -> bytes:
    """As many edits as one question may have."""
    return json.dumps({"edits": [edit] * MAX_EDITS}, separators=(",", ":")).encode()


def _asked(path: str) -> HostileKind:
    return HostileKind("GET", path)


_FACTOR = {"kind": "factor", "value": 1.01}
# 1.2 kB each: a hundred of them are nearly the largest body that a question may have.
_SELECT = {
    "op_types": ["compute", "pp-comm", "dp-comm", "comm"] * 3,
    "stages": [0] * 230,
    "dp_ranks": [0] * 230,
}
_RULES = "rules:\n" + "".join(
    f"  - {{name: a{number}, on: slowdown, above: 1.2}}\n" for number in range(MAX_RULES)
)
KINDS: Mapping[str, HostileKind] = {
    "nested rules": HostileKind(
        "POST", _CHECK, _YAML, repeated("[")(128_000).encode(), is_valid=False
    ),
    "long rules": HostileKind(
        "POST", _CHECK, _YAML, repeated("a,", "rules: [", "]")(128_000).encode(), is_valid=False
    ),
    "rules": HostileKind("POST", _CHECK, _YAML, _RULES.encode()),
    "questions": HostileKind("POST", f"{_WINDOW}/what-if", _JSON, _question({"change": _FACTOR})),
    "questions that select": HostileKind(
        "POST", f"{_WINDOW}/what-if", _JSON, _question({"change": _FACTOR, "select": _SELECT})
    ),
    "wrong questions": HostileKind(
        "POST",
        f"{_WINDOW}/what-if",
        _JSON,
        json.dumps({"edits": [{"op": "set", "value": 1.0}] * 5_000}).encode(),
        is_valid=False,
    ),
    "nested json": HostileKind(
        "POST", f"{_WINDOW}/what-if", _JSON, b"[" * 1_000_000, is_valid=False
    ),
    "steps": _asked(f"{_WINDOW}?steps=0-7&per_step=true"),
    "advice": _asked(f"{_WINDOW}/advice?document_lengths={'9,' * (MAX_LIST_CHARS // 2 - 1)}9"),
    "critical path": _asked(f"{_WINDOW}/critical-path"),
    "charts": _asked(f"{_WINDOW}/charts/workers"),
    "pictures": _asked(f"{_WINDOW}/charts/workers.png"),
    "downloads": _asked(f"{_WINDOW}/timeline"),
    "comparison": _asked(f"/api/v1/compare?a={JOB}:latest&b={JOB}:recent"),
    "fleet": _asked("/api/v1/fleet"),
    "search": _asked(f"/api/v1/search?q={'a' * 100}"),
    "metrics": _asked("/metrics"),
}


def check_reached(name: str, kind: HostileKind, answers: Mapping[str, int]) -> None:
    """Return if requests of this kind got as far as they were meant to.

    Raises:
        BenchmarkFailed: a valid kind was only refused, so that nothing it computes was measured.
    """
    if kind.is_valid and not any(answers.get(status) for status in _COMPUTED):
        raise BenchmarkFailed(
            f"{name}: none of its requests was answered {', '.join(_COMPUTED)}: {dict(answers)}"
        )


def hostile(
    callers: Annotated[int, typer.Option(min=1, help="At the same time, of each kind.")] = 100,
    seconds: Annotated[float, typer.Option(min=1, help="Length of each kind.")] = 10.0,
    only: Annotated[str, typer.Option(help="Only kinds whose name has this text.")] = "",
) -> None:
    """Time pushes and /healthz while callers with a read token send one kind of hostile request.

    Every caller sends its next request as soon as it has its answer, and every third one hangs up
    after 50 ms. Exits with 1 where the 99th percentile of either is over 500 ms, or a kind that is
    to be computed was only refused. Starts a stack of its own.

    Example: python -m benchmarks hostile --only rules
    """
    found: dict[str, Any] = {}
    with running_stack(
        workers=_WORKERS, stages=stages_of(_WORKERS), queue_bytes=_QUEUE_BYTES, consumes=True
    ) as target:
        asyncio.run(StepFeed.of(target, _WORKERS, _MICROBATCHES).push(_STEPS_BEFORE))
        probes = _Probes(target)
        token = probes.read_token()
        probes.wait_for_window()
        found["quiet"] = probes.figures(seconds)
        for name, kind in KINDS.items():
            if only in name:
                found[name] = _under(target, token, kind, callers, seconds, probes)
                check_reached(name, kind, found[name]["answers"])
                typer.echo(json.dumps({name: found[name]}), err=True)
    typer.echo(json.dumps(found))
    slowest_ms = max(max(each["push_p99_ms"], each["healthz_p99_ms"]) for each in found.values())
    if slowest_ms > BAR_MS:
        raise typer.Exit(1)


def _under(
    target: StackUnderTest,
    token: str,
    kind: HostileKind,
    callers: int,
    seconds: float,
    probes: "_Probes",
) -> dict[str, Any]:
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe()
    work = context.Process(target=_attack, args=(target.port, token, kind, callers, theirs))
    work.start()
    try:
        if not mine.poll(60):
            raise BenchmarkFailed("the hostile callers did not start")
        mine.recv()
        figures = probes.figures(seconds)
        mine.send("stop")
        statuses = mine.recv() if mine.poll(60) else {}
    finally:
        work.terminate()
        work.join()
    return {**figures, "answers": statuses}


def _attack(port: int, token: str, kind: HostileKind, callers: int, parent: Connection) -> None:
    asyncio.run(_callers(port, token, kind, callers, parent))


async def _callers(
    port: int, token: str, kind: HostileKind, callers: int, parent: Connection
) -> None:
    head = f"{kind.method} {kind.path} HTTP/1.1\r\nhost: localhost\r\n"
    head += f"authorization: Bearer {token}\r\ncontent-length: {len(kind.body)}\r\n"
    head += f"content-type: {kind.media}\r\n" if kind.media else ""
    message = f"{head}connection: close\r\n\r\n".encode() + kind.body
    statuses: Counter[str] = Counter()

    async def call(number: int) -> None:
        while True:
            try:
                async with asyncio.timeout(0.05 if number % 3 == 0 else _TIMEOUT_S):
                    statuses[await _answer(port, message)] += 1
            except TimeoutError:
                statuses["hung up"] += 1
            except OSError:
                statuses["broken"] += 1
                await asyncio.sleep(0.01)

    calls = [asyncio.create_task(call(number)) for number in range(callers)]
    await asyncio.sleep(1.0)
    parent.send("begun")
    await asyncio.to_thread(parent.recv)
    for each in calls:
        each.cancel()
    parent.send(dict(statuses))


async def _answer(port: int, message: bytes) -> str:
    """The status of the answer, read to its end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(message)
        await writer.drain()
        line = await reader.readline()
        while await reader.read(1 << 16):
            pass
        return line[9:12].decode() or "broken"
    finally:
        writer.transport.abort()


class _Probes:
    """Pushes to a job of its own, and asks /healthz, at a steady rate."""

    def __init__(self, target: StackUnderTest) -> None:
        self._target = target
        self._batch_seqs = itertools.count()
        job = {"parallelism": {"dp_size": 1, "pp_size": 1}, "run_key": "probe"}
        self._ask("PUT", "/api/v1/jobs/probe", job)

    def read_token(self) -> str:
        """A new token with the scope read."""
        made = self._ask("POST", "/api/v1/tokens", {"name": "hostile", "scopes": ["read"]})
        return str(made["token"])

    def wait_for_window(self) -> None:
        """Returns once the job that is read has a closed window."""
        end_s = time.monotonic() + _WINDOW_WITHIN_S
        while time.monotonic() < end_s:
            if self._status("GET", f"{_WINDOW}?arrays=false") == 200:
                return
            time.sleep(0.2)
        raise BenchmarkFailed("no window was closed in time")

    def figures(self, seconds: float) -> dict[str, float]:
        """Milliseconds until answers came, pushes and /healthz in two threads."""
        found: dict[str, float] = {}

        def measure(name: str, send: Callable[[], None]) -> None:
            took_s = _at_a_rate(seconds, send)
            found[f"{name}_p50_ms"] = round(1e3 * float(np.percentile(took_s, 50)), 1)
            found[f"{name}_p99_ms"] = round(1e3 * float(np.percentile(took_s, 99)), 1)

        asked = (("push", self._push), ("healthz", self._healthz))
        threads = [threading.Thread(target=measure, args=each) for each in asked]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        return found

    def _push(self) -> None:
        number = next(self._batch_seqs)
        begin_ns = 1_000_000_000 * number
        columns = {
            "step": [number] * 2,
            "optype": ["forward-compute", "backward-compute"],
            "start_ns": [begin_ns, begin_ns + 4_000_000],
            "duration_ns": [3_000_000, 6_000_000],
            "mb_id": [0, 0],
        }
        batch = {"version": 1, "epoch": 1, "rank": 0, "dp_rank": 0, "stage": 0, "host": "a"}
        batch |= {"batch_seq": number, "steps_done": [[number, 2]], "columns": columns}
        self._ask("POST", "/api/v1/jobs/probe/ops", batch)

    def _healthz(self) -> None:
        if self._status("GET", "/healthz") != 200:
            raise BenchmarkFailed("/healthz does not answer 200")

    def _ask(self, method: str, path: str, body: Any) -> Any:
        status, answer = self._answer(method, path, json.dumps(body).encode())
        if status >= 300:
            raise BenchmarkFailed(f"{method} {path} answers {status}: {answer[:300]!r}")
        return json.loads(answer)

    def _status(self, method: str, path: str) -> int:
        return self._answer(method, path, None)[0]

    def _answer(self, method: str, path: str, body: bytes | None) -> tuple[int, bytes]:
        headers = {"authorization": f"Bearer {self._target.token}", "content-type": _JSON}
        port = self._target.port
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT_S)) as sent:
            sent.request(method, path, body, headers)
            answer = sent.getresponse()
            return answer.status, answer.read()


def _at_a_rate(seconds: float, send: Callable[[], None]) -> list[float]:
    """Seconds until each answer, from the moment that its request was due.

    Like workers of a job, none waits for another one's answer.
    """
    began_s = time.perf_counter()

    def one(due_s: float) -> float:
        try:
            send()
        except (OSError, http.client.HTTPException, BenchmarkFailed):
            return _TIMEOUT_S  # no answer, or a refusal, is no quick one
        return time.perf_counter() - due_s

    with ThreadPoolExecutor(_MOST_AT_ONCE) as senders:
        sent = []
        for number in range(int(seconds * _PROBES_PER_S)):
            due_s = began_s + number / _PROBES_PER_S
            time.sleep(max(0.0, due_s - time.perf_counter()))
            sent.append(senders.submit(one, due_s))
        return [each.result() for each in sent]
