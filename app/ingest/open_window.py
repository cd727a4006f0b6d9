"""The window that settled steps are put into, until it is full."""

from app.ingest.step import SettledStep
from app.ingest.trace_codec import OpTable, concatenate
from app.trace.job import Job
from app.trace.window import Window, WindowState


class OpenWindow:
    """Successive settled steps; full with N complete ones, or with N skipped ones.

    `announced` is the revision that is known outside.
    """

    def __init__(self, job: Job, epoch: int, window_steps: int) -> None:
        self._job = job
        self._epoch = epoch
        self._window_steps = window_steps
        self.settled: list[SettledStep] = []
        self.announced = 0

    def add(self, step: SettledStep) -> None:
        """Put in the next step."""
        self.settled.append(step)

    def clear(self) -> None:
        """Begin the next window."""
        self.settled = []
        self.announced = 0

    @property
    def has_news(self) -> bool:
        """Whether steps were put in that nobody has been told of."""
        return len(self.settled) > self.announced

    @property
    def state(self) -> WindowState:
        """What it is by the steps in it."""
        num_skipped = sum(step.skipped is not None for step in self.settled)
        if len(self.settled) - num_skipped >= self._window_steps:
            return "complete"
        return "incomplete" if num_skipped >= self._window_steps else "open"

    @property
    def ended_state(self) -> WindowState:
        """What it is when no further step will come."""
        return "incomplete" if any(step.skipped for step in self.settled) else "complete"

    def table(self) -> OpTable:
        """Every operation in it, those of skipped steps too."""
        return concatenate([step.table for step in self.settled])

    def revised(self, state: WindowState) -> Window:
        """It as the engine wants it, in a new revision."""
        complete = [step for step in self.settled if step.skipped is None]
        steps = tuple(step.step for step in complete)
        self.announced = max(len(self.settled), self.announced + 1)
        return Window(
            job=self._job,
            epoch=self._epoch,
            first_step=self.settled[0].step,
            steps=steps,
            trace=concatenate([step.table for step in complete]).trace(steps),
            skipped=tuple(step.skipped for step in self.settled if step.skipped),
            state=state,
            revision=self.announced,
        )
