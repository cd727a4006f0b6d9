"""The window that settled steps are put into, until it is full."""

from app.ingest.group_table import GroupTable
from app.ingest.op_table import OpTable, concatenate
from app.ingest.roll import Roll
from app.ingest.step import SettledStep
from app.trace.job import Job
from app.trace.window import SkippedStep, Window, WindowState

# Evaluations and the like close no window, unless there are very many of them in a row.
MAX_LEFT_OUT = 256
# A window of very many operations would not fit into a consumer's memory: it closes earlier.
MAX_OPS = 16_000_000


class OpenWindow:
    """Successive settled steps; full with N complete ones, or with N that lack something.

    `revision` is the newest that is known outside, `has_news` whether there is more to tell.
    """

    def __init__(self, job: Job, epoch: int, window_steps: int, *, revision: int = 0) -> None:
        self._job = job
        self._epoch = epoch
        self._window_steps = window_steps
        self._table: OpTable | None = None
        self.settled: list[SettledStep] = []
        self.revision = revision
        self.has_news = False

    def add(self, step: SettledStep) -> None:
        """Put in the next step."""
        self.settled.append(step)
        self._table, self.has_news = None, True

    def replace(self, step: SettledStep) -> None:
        """Put it in the place of what was known of the same step."""
        at = next(at for at, each in enumerate(self.settled) if each.step == step.step)
        self.settled[at] = step
        self._table, self.has_news = None, True

    def skipped(self, number: int) -> SettledStep | None:
        """The step of this number, if it is in the window and was skipped."""
        for each in self.settled:
            if each.step == number:
                return each if each.skipped else None
        return None

    @property
    def state(self) -> WindowState:
        """What it is by the steps in it."""
        num_lacking = sum(_lacks_something(step) for step in self.settled)
        num_left_out = sum(_is_left_out(step) for step in self.settled)
        num_complete = len(self.settled) - num_lacking - num_left_out
        is_over = num_left_out >= MAX_LEFT_OUT
        if num_complete >= self._window_steps or (num_complete and (is_over or self._is_large())):
            return "complete"
        return "incomplete" if is_over or num_lacking >= self._window_steps else "open"

    @property
    def ended_state(self) -> WindowState:
        """What it is when no further step will come."""
        is_lacking = any(map(_lacks_something, self.settled))
        is_without = all(map(_is_left_out, self.settled))
        return "incomplete" if is_lacking or is_without else "complete"

    @property
    def table(self) -> OpTable:
        """Every operation in it, those of skipped steps too."""
        if self._table is None:
            self._table = concatenate([step.table for step in self.settled])
        return self._table

    @property
    def steps_with_groups(self) -> list[int]:
        """Steps of which collectives inside groups are kept."""
        return [step.step for step in self.settled if has_groups(step.skipped)]

    def revised(self, state: WindowState, roll: Roll, groups: GroupTable | None = None) -> Window:
        """It as the engine wants it, in a new revision; the roll is the run's."""
        steps = tuple(step.step for step in self.settled if step.skipped is None)
        self.revision = max(len(self.settled), self.revision + 1)
        self.has_news = False
        skipped = tuple(step.skipped for step in self.settled if step.skipped)
        origin_ns = self.table.origins_ns(steps)
        return Window(
            job=self._job,
            epoch=self._epoch,
            first_step=self.settled[0].step,
            steps=steps,
            trace=self.table.trace(steps),
            skipped=skipped,
            state=state,
            revision=self.revision,
            hosts=roll.hosts(),
            places=roll.places({rank for step in skipped for rank in step.missing}),
            origin_ns=origin_ns,
            collectives=None if groups is None else groups.collectives(steps, origin_ns),
        )

    def _is_large(self) -> bool:
        """Whether one more step like the last would be too much."""
        sizes = [step.table.num_ops for step in self.settled]
        return sum(sizes) + sizes[-1] > MAX_OPS


def has_groups(skipped: SkippedStep | None) -> bool:
    """Whether collectives inside groups are kept of a step: of evaluations nothing is."""
    return skipped is None or skipped.kind is None


def _is_left_out(step: SettledStep) -> bool:
    """Whether it is no training step, of which nothing is missing."""
    return step.skipped is not None and step.skipped.kind is not None


def _lacks_something(step: SettledStep) -> bool:
    return step.skipped is not None and step.skipped.kind is None
