"""What if the culprit's operations took what they should? The other durations stay recorded."""

from collections.abc import Callable
from dataclasses import dataclass

from app.engine.what_if import Replayer
from app.trace.window import Floats, Ints


@dataclass(frozen=True, slots=True)
class Repaired:
    """New durations of some operations.

    Shapes: `rows` [edited rows] of the replayer's template, each once; `duration_s`
    [edited rows, lanes] with lane = dp_rank * steps + step position, own (transfer) durations.
    """

    rows: Ints
    duration_s: Floats


Repair = Callable[[Replayer], Repaired]
