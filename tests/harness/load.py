"""The workers of a simulated job, pushing in parts, out of order, some batches twice.

A batch with no answer, 429 or 503 is sent again under its key until it is acknowledged.
"""

import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from app.ingest.wire import codec
from app.synth.job import SimulatedJob
from tests.harness.batches import Batches
from tests.harness.http_client import HttpClient, HttpResponse, Unreachable
from tests.harness.oracle import OracleClient

RETRY_S = 0.05


@dataclass(frozen=True, slots=True)
class PushHabits:
    """How a job's workers push; shares are of batches, 0 to 1."""

    parts: int = 1  # batches a worker and step
    resent: float = 0.0  # sent again after they were acknowledged
    held_back: float = 0.0  # sent only after the next step
    steps_per_s: float | None = None  # at most; as fast as they are taken if None


@dataclass
class Load:
    """One job, pushed from one thread; the APIs at `ports` are used in turn."""

    ports: list[int]
    token: str
    oracle: OracleClient
    job: str
    simulated: SimulatedJob
    habits: PushHabits = field(default_factory=PushHabits)
    seed: int = 1
    retries: int = 0
    retried_503: int = 0
    refusals: Counter[str] = field(default_factory=Counter)  # retried answers by their code
    num_steps: int = 0  # pushed so far, in all runs
    next_step: int = 0
    epoch: int = 0

    def __post_init__(self) -> None:
        self._clients = [HttpClient(port, self.token) for port in self.ports]
        self._query_clients = [HttpClient(port, self.token) for port in self.ports]
        self._turn = 0
        self._rng = np.random.default_rng(self.seed)
        self._needs_duplicate = self.habits.resent > 0  # at random, a short run may have none
        self._held: list[bytes] = []

    def register(self, run_key: str = "run-1") -> None:
        """Begin a run."""
        sizes = self.simulated.parallelism
        job = {
            "parallelism": {"dp_size": sizes.dp_size, "pp_size": sizes.pp_size},
            "run_key": run_key,
        }
        self.epoch = int(self._request_until_answered("PUT", f"/jobs/{self.job}", job)["epoch"])
        self._batches = Batches(self.epoch, self.habits.parts)

    def restart(self, simulated: SimulatedJob, run_key: str, *, from_step: int) -> None:
        """Begin another run, as from a checkpoint, possibly with another size."""
        self._push_held()
        self.simulated, self.next_step = simulated, from_step
        self.register(run_key)

    def run(self, stop: threading.Event) -> None:
        """Push step after step until the event is set."""
        began_s, before = time.monotonic(), self.num_steps
        while not stop.is_set():
            self.push_steps(1)
            if self.habits.steps_per_s is not None:
                due_s = began_s + (self.num_steps - before) / self.habits.steps_per_s
                stop.wait(max(0.0, due_s - time.monotonic()))

    def push_steps(self, count: int) -> None:
        """Push the next steps; held-back batches are pushed with the step after theirs."""
        for _ in range(count):
            bodies = self.bodies()
            is_late = self._rng.random(len(bodies)) < self.habits.held_back
            late = [body for body, held in zip(bodies, is_late, strict=True) if held]
            now = [body for body, held in zip(bodies, is_late, strict=True) if not held]
            self.push_all([*now, *self._held])
            self._held = late

    def bodies(self) -> list[bytes]:
        """The batches of the next step, in random order; advances `next_step`."""
        trace = self.simulated.make([self.next_step])
        bodies = [codec.encode(batch) for batch in self._batches.of_step(trace)]
        self._rng.shuffle(bodies)
        self.next_step += 1
        return bodies

    def push_all(self, bodies: list[bytes]) -> None:
        """Push the batches of one step."""
        for body in bodies:
            self.push(body)
        self.num_steps += 1

    def end(self) -> None:
        """Push held-back batches, then end the job."""
        self._push_held()
        self._request_until_answered("POST", f"/jobs/{self.job}/end", None)

    def close(self) -> None:
        """Free the connections."""
        for client in self._clients + self._query_clients:
            client.close()
        self.oracle.close()

    def push(self, body: bytes) -> None:
        """Returns once the batch is acknowledged and the oracle has recorded that."""
        self._send(body)
        if self._rng.random() < self.habits.resent or self._needs_duplicate:
            self._send(body)
            self._needs_duplicate = False

    def closed_steps(self) -> int:
        """Steps in closed windows as the API says, skipped ones too; 0 if none answers.

        Ask from one thread, which may be another than the one that pushes.
        """
        for client in self._query_clients:
            with suppress(Unreachable):
                return sum(_num_steps(item) for item in self._windows(client) if _is_closed(item))
        return 0

    def _windows(self, client: HttpClient) -> list[dict[str, Any]]:
        items, cursor = [], ""
        while True:
            page = client.ask("GET", f"/jobs/{self.job}/windows?limit=500{cursor}")
            items += page["items"]
            if page["next_cursor"] is None:
                return items
            cursor = f"&cursor={page['next_cursor']}"

    def _push_held(self) -> None:
        for body in self._held:
            self.push(body)
        self._held = []

    def _send(self, body: bytes) -> None:
        while (answer := self._post(body)) is None or answer.status == 429 or answer.status >= 500:
            self.retries += 1
            self._note(answer)
            self._turn += 1  # another API, if there is one
            time.sleep(RETRY_S)
        if answer.status == 202 and not answer.json()["rejected"]:
            self.oracle.owe(self.job, body)
        else:
            self.oracle.refused(f"a sound batch got {answer.status} {answer.body[:200]!r}")

    def _note(self, answer: HttpResponse | None) -> None:
        if answer is None:
            return
        self.retried_503 += answer.status == 503
        self.refusals[_code(answer)] += 1
        if answer.status not in (429, 503) or "retry-after" not in answer.headers:
            self.oracle.refused(f"{answer.status}, {answer.headers}: {answer.body[:300]!r}")

    def _post(self, body: bytes) -> HttpResponse | None:
        try:
            return self._client().request(
                "POST", f"/api/v1/jobs/{self.job}/ops", body, codec.BINARY_TYPE
            )
        except Unreachable:
            return None

    def _request_until_answered(self, method: str, path: str, content: object) -> dict[str, Any]:
        while True:
            try:
                answer: dict[str, Any] = self._client().ask(method, path, content)
            except Unreachable:
                self._turn += 1
                time.sleep(RETRY_S)
            else:
                return answer

    def _client(self) -> HttpClient:
        return self._clients[self._turn % len(self._clients)]


def _code(answer: HttpResponse) -> str:
    try:
        return str(answer.json()["code"])
    except (ValueError, KeyError, TypeError):
        return str(answer.status)


def _is_closed(item: dict[str, Any]) -> bool:
    return bool(item["state"] != "open")


def _num_steps(item: dict[str, Any]) -> int:
    last, first = int(item["last_step"]), int(item["first_step"])
    return last - first + 1
