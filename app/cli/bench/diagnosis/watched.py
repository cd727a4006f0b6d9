"""A made job as the consumer sees it: every window that closes is observed, with its history."""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from app.alerts.facts import WindowFacts
from app.cli.bench.diagnosis.arrivals import Habits, arrivals
from app.cli.bench.diagnosis.windows import closed_windows
from app.diagnosis.diagnose import diagnose
from app.diagnosis.history import History
from app.engine.replays import prepare
from app.engine.report import analyse_replay
from app.engine.result import as_json
from app.errors import InvalidTrace
from app.ingest.batch import OpBatch
from app.monitor import observe
from app.synth.life import Attempt
from app.trace.job import Job
from app.trace.window import Window


@dataclass(frozen=True, slots=True)
class Seen:
    """One closed window and its result, with the history that it was seen with.

    `facts` is what alert rules see of it; `has_failed` says that it has whole steps, which could
    not be analysed.
    """

    window: Window
    result: dict[str, Any]
    facts: WindowFacts
    history: History
    has_failed: bool

    @property
    def place(self) -> tuple[int, int, int]:
        """What comes later in the job's life is larger."""
        return self.window.epoch, self.window.first_step, self.window.revision

    @property
    def num_steps(self) -> int:
        """All of its steps, the skipped ones too."""
        return len(self.window.steps) + len(self.window.skipped)

    @property
    def all_steps(self) -> list[int]:
        """Their numbers, ascending."""
        return sorted([*self.window.steps, *(each.step for each in self.window.skipped)])


def watched(attempt: Attempt, window_steps: int, habits: Habits) -> list[Seen]:
    """All windows of one run of a job as they closed, and again when they were revised."""
    record = attempt.made.record(attempt.steps)
    arriving = arrivals(record, habits, attempt.epoch)
    return list(seen_windows(record.job, attempt.epoch, window_steps, arriving))


def seen_windows(
    job: Job, epoch: int, window_steps: int, arriving: Iterable[tuple[float, OpBatch]]
) -> Iterator[Seen]:
    """The same of batches that arrive at these seconds; each is taken when it is asked for."""
    history = History()
    for window in closed_windows(job, epoch, window_steps, arriving):
        observation = observe(window, history)
        has_failed = bool(window.steps) and observation.report is None
        yield Seen(window, observation.result, observation.facts, history, has_failed)
        if observation.recent is not None:
            history = history.extended(observation.recent)


def judged(windows: Sequence[Seen], window_steps: int) -> Seen:
    """The last window that is full, or is the last at all, as it was in the end."""
    full = [seen for seen in windows if seen.num_steps >= window_steps]
    return max(full or windows, key=lambda seen: seen.place)


def seconds(seen: Seen) -> tuple[float, float]:
    """What analysing the window takes, and what diagnosing it takes after that."""
    if not seen.window.steps:
        return 0.0, 0.0
    began_s = time.perf_counter()
    try:
        replay = prepare(seen.window)
        report = analyse_replay(replay)
        as_json(report)
        analysed_s = time.perf_counter()
        diagnose(replay, report, seen.history).as_json()
    except InvalidTrace:
        return 0.0, 0.0
    return analysed_s - began_s, time.perf_counter() - analysed_s
