"""Jobs that push while faults are injected, and the verdict once everything has recovered."""

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from app.synth.job import SimulatedJob
from app.trace.job import Parallelism
from tests.harness.http_client import Unreachable
from tests.harness.load import Load, PushHabits
from tests.harness.processes import NotInTime, wait_until
from tests.harness.served import ServedStack
from tests.harness.stack import TOKEN, Stack

RECOVERED_WITHIN_S = 30.0
DRAINED_WITHIN_S = 60.0
FRESH_WITHIN_S = 10.0
_FLOWS_WITHIN_S = 60.0

SMALL_JOB = SimulatedJob(Parallelism(2, 2), 2)
DEFAULT_HABITS = PushHabits(parts=2, resent=0.1, held_back=0.1)


class Trial:
    """Some jobs of one stack, pushed by a thread each until `finish`.

    When the `with` block ends early, the threads end once an API accepts their current batches.
    """

    def __init__(
        self,
        stack: Stack | ServedStack,
        name: str,
        jobs: Sequence[tuple[SimulatedJob, PushHabits]] = ((SMALL_JOB, DEFAULT_HABITS),),
        *,
        seed: int = 1,
        within_s: float | None = None,  # replaces each of the limits above
    ) -> None:
        self._within_s = within_s
        self._stack = stack
        self._oracle = stack.oracle.client()
        self._name = name
        self.faults = 0
        self.loads = [
            self._load(f"{name}-{number}", simulated, habits, seed + number)
            for number, (simulated, habits) in enumerate(jobs)
        ]
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> "Trial":
        for load in self.loads:
            self._register(load)
        self._threads = [
            threading.Thread(target=load.run, args=(self._stop,), name=load.job, daemon=True)
            for load in self.loads
        ]
        for thread in self._threads:
            thread.start()
        self.wait_for_steps()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if any(thread.is_alive() for thread in self._threads):
            with suppress(NotInTime):
                self._stack.heal()
                self._join()
        for load in self.loads:
            load.close()
        self._oracle.close()

    def fault(self, action: Callable[[], object]) -> None:
        """Inject a fault, and count it."""
        action()
        self.faults += 1

    def wait_for_steps(self, num_steps: int = 1) -> None:
        """Returns when every job has had so many more steps acknowledged."""
        past = [load.num_steps + num_steps for load in self.loads]
        wait_until(
            lambda: all(
                load.num_steps >= step for load, step in zip(self.loads, past, strict=True)
            ),
            "steps are acknowledged",
            _FLOWS_WITHIN_S,
        )

    def pause(self) -> None:
        """Stop pushing; returns when batches in flight are acknowledged."""
        self._stop.set()
        self._join()

    def finish(self) -> dict[str, Any]:
        """The verdict: times to recover, and every violation."""
        self._stack.heal()
        late: list[str] = []
        times = {"recovered_s": _within(late, self._recover)}
        self._stop.set()
        times["acknowledged_s"] = _within(late, self._join)
        times["drained_s"] = _within(late, self._drain)
        times["fresh_s"] = _within(late, self._push_fresh_job)
        jobs = [load.job for load in self.loads]
        verdict = times | self._oracle.verdict(self._stack.store_url, jobs)
        verdict["faults"] = self.faults
        verdict["steps"] = sum(load.num_steps for load in self.loads)
        verdict["retries"] = sum(load.retries for load in self.loads)
        verdict["violations"] = [*late, *self._vacuous(verdict), *verdict["violations"]]
        return verdict

    def _load(self, job: str, simulated: SimulatedJob, habits: PushHabits, seed: int) -> Load:
        client = self._stack.oracle.client()
        return Load(self._stack.ports, TOKEN, client, job, simulated, habits, seed)

    def _register(self, load: Load) -> None:
        load.register()
        self._oracle.watch(self._stack.api_ports, TOKEN, load.job)

    def _recover(self) -> float:
        # Recovery of the database itself after kill -9 is not counted.
        self._stack.wait_for_backends()
        return self._stack.wait_until_ready(self._within_s or RECOVERED_WITHIN_S)

    def _join(self) -> float:
        def are_done() -> bool:
            return not any(thread.is_alive() for thread in self._threads)

        limit_s = self._within_s or DRAINED_WITHIN_S
        return wait_until(are_done, "what was under way is acknowledged", limit_s)

    def _drain(self) -> float:
        for load in self.loads:
            load.end()
        limit_s = self._within_s or DRAINED_WITHIN_S
        return wait_until(self._is_drained, "all steps are in closed windows", limit_s)

    def _is_drained(self) -> bool:
        unfinished = self._stack.unfinished()
        return unfinished is not None and not unfinished & {load.job for load in self.loads}

    def _push_fresh_job(self) -> float:
        fresh = self._load(f"{self._name}-fresh", SMALL_JOB, PushHabits(), 1)
        self._register(fresh)
        fresh.push_steps(1)
        fresh.close()
        path = f"/jobs/{fresh.job}/windows"
        return wait_until(lambda: self._shows_any(path), "a fresh step flows", FRESH_WITHIN_S)

    def _shows_any(self, path: str) -> bool:
        """Whether the path lists items; False while the API is still starting."""
        try:
            return bool(self._stack.get(path)["items"])
        except Unreachable:
            return False

    def _vacuous(self, verdict: dict[str, Any]) -> list[str]:
        """Why a trial without violations would prove nothing."""
        wanted = {"fault": self.faults, "acknowledged batch": verdict["batches"]}
        wanted["duplicate"] = verdict["duplicates"]
        return [f"the trial saw no {what}" for what, count in wanted.items() if not count]


def _within(late: list[str], action: Callable[[], float]) -> float | None:
    try:
        return round(action(), 3)
    except NotInTime as error:
        late.append(str(error))
        return None
