"""A window, ready to be replayed: steps of equal structure together, others apart."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from app.engine.arrivals.arrivals import Arrivals, arrivals_of
from app.engine.arrivals.hidden_waits import without_waits
from app.engine.clocks.clocks import Clocks
from app.engine.clocks.measure import Correction, measured
from app.engine.graph import StepGraph, build
from app.engine.grid import Grid, OtherStructure, lay_out, origin_s
from app.engine.parallel import all_of
from app.engine.simulate import Keep
from app.engine.steady_state import between_s, with_periods
from app.engine.structures import structures
from app.engine.what_if import Mask, Replayer, replayer
from app.errors import InvalidRequest, InvalidTrace
from app.trace.window import Floats, SkippedStep, Window, ranges

Question = Callable[[Replayer], Floats]


@dataclass(frozen=True)
class WindowReplay:
    """A window's steps in groups of equal structure, each with graph and ideals of its own.

    `skipped` are the window's own skipped steps and those that cannot be replayed, ascending.
    Times of the groups are by one clock, as far as `clocks` are measured, and waits are taken out
    of their computations. `arrivals` say whom the others waited for; None where no collective has
    several members. `held_up` [ops] of each group says of the template's computations whether
    waiting collectives hold them up (1), do not (-1), or may (0); empty where that did not matter.
    """

    window: Window
    groups: tuple[Replayer, ...]
    skipped: tuple[SkippedStep, ...]
    clocks: Clocks = field(default_factory=Clocks)
    arrivals: Arrivals | None = None
    held_up: tuple[NDArray[np.int8], ...] = ()

    @cached_property
    def steps(self) -> tuple[int, ...]:
        """All replayed steps, ascending."""
        return tuple(sorted(step for group in self.groups for step in group.steps))

    @property
    def size(self) -> int:
        """Number of recorded operations."""
        return sum(group.grid.start_s.size for group in self.groups)

    @cached_property
    def recorded_s(self) -> Floats:
        """[steps], seconds from each step's begin (steady_state.py) to its latest end."""
        return self.joined(lambda group: group.grid.spans_s[1] - group.grid.began_s)

    @cached_property
    def between_s(self) -> Floats:
        """[steps], seconds before the first operation in which nobody works; part of `recorded_s`.

        A replay of one step leaves it out.
        """
        return self.joined(lambda group: between_s(group.grid))

    @cached_property
    def simulated_s(self) -> Floats:
        """[steps], seconds, every operation at its recorded duration: T."""
        return self.joined(lambda group: group.simulated_s)

    @cached_property
    def ideal_s(self) -> Floats:
        """[steps], seconds, every operation ideal: T_ideal of each step's structure."""
        return self.joined(lambda group: np.full(len(group.steps), group.ideal_s))

    def of_step(self, step: int) -> Replayer:
        """The group that a step belongs to.

        Raises:
            InvalidRequest: the step is not among those replayed.
        """
        for group in self.groups:
            if step in group.steps:
                return group
        reasons = {skip.step: f": {skip.reason}" for skip in self.skipped}
        raise InvalidRequest(
            f"step {step} of window {self.window.id} is not replayed"
            + reasons.get(step, f": choose from {ranges(self.steps)}")
        )

    def joined(self, ask: Question) -> Floats:
        """Answers of all groups, [..., steps], in the order of `steps`."""
        answers = [ask(group) for group in self.groups]
        if len(answers) == 1:
            return answers[0]
        order = np.argsort([step for group in self.groups for step in group.steps])
        return np.concatenate(answers, axis=-1)[..., order]

    def each(self, questions: list[Question]) -> list[Floats]:
        """Answers to questions that do not know of each other, side by side where it pays."""
        return all_of(self.size, [_bound(self.joined, question) for question in questions])


@dataclass(frozen=True, slots=True)
class _Draft:
    """Steps of one structure as they were recorded, and those that cannot be replayed."""

    laid_out: tuple[Grid, StepGraph] | None
    refused: list[SkippedStep]


Group = tuple[Replayer | None, list[SkippedStep]]

# Steps whose own record gives no order that they could be replayed in: so many are left out
# before the whole structure is refused.
MAX_BAD_STEPS = 4


def prepare(window: Window) -> WindowReplay:
    """The window's graphs, transfer durations and ideals.

    Raises:
        InvalidTrace: no step can be replayed; the message names the operations.
    """
    try:
        drafts = [_draft(window, window.steps)]
    except OtherStructure:
        sorted_out = structures(window)
        drafts = [_draft(window, steps) for steps in sorted_out.groups]
        drafts.append(_Draft(None, list(sorted_out.refused)))
    # The order of operations on a worker is by its own clock, so the graphs are known before.
    correction = measured(window, [each.laid_out for each in drafts if each.laid_out])
    found = [_group(window, each, correction) for each in _by_one_clock(drafts, correction)]
    groups = tuple(group for group, _ in found if group is not None)
    refused = [skip for _, skips in found for skip in skips]
    if not groups:
        raise InvalidTrace(f"step {refused[0].step}: {refused[0].reason}")
    skipped = sorted([*window.skipped, *refused], key=lambda skip: skip.step)
    replay = WindowReplay(window, groups, tuple(skipped), correction.clocks)
    return without_waits(replay, arrivals_of(replay, replay.recorded_s))


def _group(window: Window, draft: _Draft, correction: Correction) -> Group:
    """The draft's steps; those that by one clock cannot be replayed are refused, too."""
    refused, num_bad = draft.refused, 0
    while draft.laid_out is not None:
        grid, graph = draft.laid_out
        try:
            return _checked(replayer(grid, graph)), refused
        except InvalidTrace as error:
            num_bad += 1
            if num_bad == MAX_BAD_STEPS:
                return None, [*refused, *_all_refused(grid.steps, str(error))]
            refused = [*refused, *_all_refused(grid.steps[:1], str(error))]
            [draft] = _by_one_clock([_draft(window, grid.steps[1:])], correction)
            refused += draft.refused
    return None, refused


def _by_one_clock(drafts: list[_Draft], correction: Correction) -> list[_Draft]:
    """The drafts with all times by one clock, and the begin of each step."""
    grids = [correction.of(each.laid_out[0]) for each in drafts if each.laid_out]
    corrected = iter(with_periods(grids))
    return [
        replace(each, laid_out=(next(corrected), each.laid_out[1])) if each.laid_out else each
        for each in drafts
    ]


def _draft(window: Window, steps: tuple[int, ...]) -> _Draft:
    """Steps of one structure, but for those that cannot be replayed.

    The order of operations is read from the first step. Where that one's makes no sense, since a
    clock was set in the middle of it, the next one's is taken.
    """
    refused: list[SkippedStep] = []
    left, num_bad = steps, 0
    while left:
        try:
            grid = lay_out(window if left == window.steps else window.only(left))
            grid = replace(grid, origin_s=origin_s(window, left))
        except OtherStructure:
            raise
        except InvalidTrace as error:
            return _Draft(None, [*refused, *_all_refused(left, str(error))])
        if still := _of_no_length(grid):
            refused += _all_refused(
                still, "all of its operations are recorded at one moment, so it took no time"
            )
            left = tuple(step for step in left if step not in still)
            continue
        try:
            return _Draft((grid, build(grid.template)), refused)
        except InvalidTrace as error:
            refused += _all_refused(left[:1], str(error))
            left, num_bad = left[1:], num_bad + 1
            if num_bad == MAX_BAD_STEPS:
                return _Draft(None, [*refused, *_all_refused(left, str(error))])
    return _Draft(None, refused)


def _all_refused(steps: tuple[int, ...], reason: str) -> list[SkippedStep]:
    return [SkippedStep(step, reason) for step in steps]


def _of_no_length(grid: Grid) -> tuple[int, ...]:
    earliest_s, latest_s = grid.spans_s
    return tuple(np.asarray(grid.steps)[latest_s <= earliest_s].tolist())


def _checked(group: Replayer) -> Replayer:
    if min(group.simulated_s.mean(), group.ideal_s) <= 0:
        raise InvalidTrace("a step that takes no time, replayed, has no slowdown")
    return group


def keeping(make: Callable[[Replayer], Keep]) -> Question:
    """Step times with only the operations of a mask at their recorded durations."""
    return lambda group: group.step_times(make(group))


def fixing(make: Callable[[Replayer], Keep]) -> Question:
    """Step times with only the operations of a mask ideal."""
    return lambda group: group.step_times(~make(group))


def one_replica_kept(stages: Mask | None = None) -> Question:
    """[dp, steps], with one replica's operations at their recorded durations."""
    return lambda group: group.one_replica_kept(stages)


def _bound(joined: Callable[[Question], Floats], question: Question) -> Callable[[], Floats]:
    return lambda: joined(question)
