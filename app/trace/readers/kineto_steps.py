"""Which of the profiler's steps does an operation belong to?"""

from collections.abc import Sequence

import numpy as np

from app.errors import InvalidTrace
from app.trace.window import Ints

Windows = Sequence[tuple[int, int, int]]  # step, start, end
OUTSIDE = -1


class StepWindows:
    """Steps of one file by one clock.

    Raises:
        InvalidTrace: a step is there twice.
    """

    def __init__(self, where: str, windows: Windows, *, has_streams: bool = False) -> None:
        found: dict[int, tuple[int, int]] = {}
        for step, start, end in windows:
            if step in found and not has_streams:
                raise InvalidTrace(f"{where}: ProfilerStep#{step} is there twice: export one cycle")
            # The GPU has one a stream: a step begins with the first of them.
            before = found.get(step, (start, end))
            found[step] = min(before[0], start), max(before[1], end)
        ordered = sorted((start, step, end) for step, (start, end) in found.items())
        self.steps = np.array([step for _, step, _ in ordered], np.int64)
        self._starts = np.array([start for start, _, _ in ordered], np.int64)
        self._end = ordered[-1][2] if ordered else 0

    def steps_of(self, start_ns: Ints) -> Ints:
        """[rows], the step that had begun last when each row began, `OUTSIDE` for none.

        What begins between two steps belongs to the first: a GPU finishes it later than its host.
        """
        if not self.steps.size:
            return np.full(start_ns.size, OUTSIDE, np.int64)
        at = np.searchsorted(self._starts, start_ns, "right") - 1
        is_outside = (at < 0) | (start_ns > self._end)
        return np.where(is_outside, OUTSIDE, self.steps[at])
