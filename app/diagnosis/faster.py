"""Operations of some types, as much faster on every worker as they were before."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from app.diagnosis.case import Case
from app.diagnosis.repair import Repaired
from app.engine.what_if import Replayer
from app.trace.ops import OpSpec
from app.trace.window import Floats

Types = Callable[[OpSpec], bool]


@dataclass(frozen=True)
class Faster:
    """A repair: divide durations by factors [steps of the window], of each kind of types.

    What chance did to each operation is left in. No type is of two kinds.
    """

    case: Case
    kinds: Sequence[tuple[Types, Floats]]

    def __call__(self, group: Replayer) -> Repaired:
        """The group's operations without the factors."""
        at = self.case.at(self.case.group_of(group))
        template = group.template
        rows, durations_s = [], []
        for types, factors in self.kinds:
            chosen = np.flatnonzero(template.op_types.flags(types)[template.optype])
            rows.append(chosen)
            lanes = np.tile(factors[at], group.dp_size)
            durations_s.append(group.durations.recorded_s[chosen] / lanes)
        return Repaired(np.concatenate(rows), np.concatenate(durations_s))
