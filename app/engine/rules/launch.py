"""When could an operation beside the computation begin, and which computation needs it?

(docs/replay.md, sections 5 and 6.)
"""

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from app.engine.rules import AT_ONCE_S, SAME_MOMENT_S, Edge
from app.engine.rules.milestones import Milestones
from app.engine.template import Template
from app.trace.ops import Axis


@dataclass(frozen=True)
class Users:
    """Some operations of a compute stream, in recorded order, so by start."""

    template: Template
    ops: list[int]

    def first(self, after: int, from_s: float) -> int | None:
        """The first one that comes after an operation and begins no earlier than at a time."""
        begun = bisect_left(self.ops, from_s, key=self.template.start_s.__getitem__)
        # Operations of a worker are numbered in recorded order.
        position = max(begun, bisect_right(self.ops, after))
        return self.ops[position] if position < len(self.ops) else None


@dataclass(frozen=True)
class Launches:
    """Launch and use of operations beside the computation of one stage, with the edges so far."""

    template: Template
    stage: int
    milestones: Milestones
    edges: list[Edge]

    def launch(self, op: int, before: int | None) -> int:
        """Let `op` wait for its launch; `before` is the one before it on its stream.

        Returns the position in the compute stream of the operation that launched it, -1 if none.
        """
        template, computes = self.template, self._computes
        start_s = float(template.start_s[op])
        was_queued = before is not None and start_s <= template.end_s[before] + AT_ONCE_S
        # How far the computation had come when a queued one was asked for, nobody knows.
        running = -1 if was_queued else self._running_at(start_s)
        if running >= 0:
            self.edges.append((self._moment(computes[running], start_s), op))
            return running
        ended = self._last_ended_at(start_s)
        if ended >= 0:
            self.edges.append((computes[ended], op))
        return ended

    def feed(self, op: int, launched: int, users: Users) -> bool:
        """Let the first of `users` that began after `op` had ended wait for it, if there is one.

        Users are of the compute stream and come after the launching one.
        """
        after = self._computes[launched] if launched >= 0 else -1
        user = users.first(after, float(self.template.end_s[op]) - SAME_MOMENT_S)
        if user is None:
            return False
        self.edges.append((op, user))
        return True

    def _running_at(self, time_s: float) -> int:
        """Position in the compute stream of what runs at this moment, -1 if nothing.

        Of several, the last in recorded order that meets nobody.
        """
        end_s, later_s = self.template.end_s, time_s + SAME_MOMENT_S
        position = self._num_begun_before(time_s) - 1
        while position >= 0 and self._ends_so_far_s[position] > later_s:
            op = self._computes[position]
            if end_s[op] > later_s and self._runs_alone(op):
                return position
            position -= 1
        return -1

    def _last_ended_at(self, time_s: float) -> int:
        """Position in the compute stream of the last that had ended, -1 if none."""
        end_s, computes = self.template.end_s, self._computes
        last = self._num_begun_before(time_s + SAME_MOMENT_S)
        while last < len(computes) and end_s[computes[last]] <= time_s + SAME_MOMENT_S:
            last += 1  # of no length: begun and ended at the very moment
        last -= 1
        while last >= 0 and end_s[computes[last]] > time_s + SAME_MOMENT_S:
            last -= 1
        return last

    def _num_begun_before(self, time_s: float) -> int:
        return bisect_left(self._computes, time_s, key=self.template.start_s.__getitem__)

    @cached_property
    def _computes(self) -> list[int]:
        return self.template.computes(self.stage)

    @cached_property
    def _ends_so_far_s(self) -> list[float]:
        """The latest end of each computation and those before it."""
        return list(accumulate((float(self.template.end_s[op]) for op in self._computes), max))

    def _runs_alone(self, op: int) -> bool:
        return self.template.op_types.by_code[int(self.template.optype[op])].axis is Axis.NONE

    def _moment(self, op: int, time_s: float) -> int:
        start_s, end_s = float(self.template.start_s[op]), float(self.template.end_s[op])
        return self.milestones.add(op, (time_s - start_s) / (end_s - start_s))
