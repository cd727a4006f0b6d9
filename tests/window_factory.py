"""Handmade windows with defaults for all fields that a test leaves out."""

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from app.trace.job import Job, Parallelism
from app.trace.ops import BUILT_IN, OpTypes
from app.trace.window import SkippedStep, Trace, Window, WindowState

_WITH_CHUNK = {
    "forward-compute",
    "backward-compute",
    "backward-input-compute",
    "backward-weight-compute",
    "params-all-gather",
    "grads-reduce-scatter",
}


@dataclass(frozen=True)
class Row:
    """One operation; its number defaults to the order of starts on its worker."""

    optype: str
    start_s: float = 0.0
    duration_s: float = 1.0
    stage: int = 0
    dp_rank: int = 0
    step: int = 0
    seq_id: int | None = None
    mc: int | None = None
    mb_id: int = -1
    rank: int | None = None

    @property
    def end_s(self) -> float:
        return self.start_s + self.duration_s

    def on(self, **changes: object) -> "Row":
        """The same operation with other fields."""
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]


def numbered(rows: Iterable[Row]) -> list[Row]:
    """The rows with their missing numbers filled in by start time."""
    rows, counts = list(rows), dict[tuple, int]()
    found = list(rows)
    for position in sorted(range(len(rows)), key=lambda position: rows[position].start_s):
        row = rows[position]
        key = (row.step, row.dp_rank, row.stage, row.optype)
        seq_id = counts.get(key, 0) if row.seq_id is None else row.seq_id
        counts[key] = seq_id + 1
        found[position] = row.on(seq_id=seq_id)
    return found


def replicas(rows: Iterable[Row], dp_size: int) -> list[Row]:
    """The same operations on every dp rank."""
    rows = list(rows)
    return [row.on(dp_rank=dp_rank) for dp_rank in range(dp_size) for row in rows]


def in_row(*timed: tuple[str, float], start_s: float = 0.0, stage: int = 0) -> list[Row]:
    """Operations of one stage, each starting when the one before ends: (optype, seconds)."""
    found = []
    for optype, duration_s in timed:
        found.append(Row(optype, start_s, duration_s, stage=stage))
        start_s += duration_s
    return found


def trace(rows: Iterable[Row], sizes: Parallelism, op_types: OpTypes = BUILT_IN) -> Trace:
    """The rows as columns, in the order given."""
    rows = numbered(rows)

    def ints(values: Iterable[int | None]) -> np.ndarray:
        return np.array(list(values), np.int64)

    return Trace(
        step=ints(row.step for row in rows),
        dp_rank=ints(row.dp_rank for row in rows),
        stage=ints(row.stage for row in rows),
        rank=ints(
            sizes.usual_rank(row.dp_rank, row.stage) if row.rank is None else row.rank
            for row in rows
        ),
        optype=np.array([op_types.codes[row.optype] for row in rows], np.int16),
        seq_id=ints(row.seq_id for row in rows),
        mc=ints(
            (0 if row.optype in _WITH_CHUNK else -1) if row.mc is None else row.mc for row in rows
        ),
        mb_id=ints(row.mb_id for row in rows),
        start_s=np.array([row.start_s for row in rows], float),
        duration_s=np.array([row.duration_s for row in rows], float),
    )


def window(
    rows: Iterable[Row],
    *,
    dp_size: int = 1,
    pp_size: int = 1,
    tp_size: int = 1,
    vpp_size: int = 1,
    dsp_size: int = 1,
    ep_size: int = 1,
    op_types: OpTypes = BUILT_IN,
    state: WindowState = "complete",
    skipped: tuple[SkippedStep, ...] = (),
) -> Window:
    """A window of all steps that the rows name."""
    rows = list(rows)
    sizes = Parallelism(dp_size, pp_size, tp_size, vpp_size, dsp_size, ep_size)
    steps = tuple(sorted({row.step for row in rows}))
    job = Job.of("a-job", sizes, op_types)
    first_step = steps[0] if steps else 0
    return Window(job, 1, first_step, steps, trace(rows, sizes, op_types), skipped, state)


def scaled(base: Window, factor: float) -> Window:
    """The window with every time multiplied by the factor."""
    times = {
        "start_s": base.trace.start_s * factor,
        "duration_s": base.trace.duration_s * factor,
    }
    return with_columns(base, **times)


def with_columns(base: Window, **columns: np.ndarray) -> Window:
    """The window with some columns of its trace replaced."""
    return dataclasses.replace(base, trace=dataclasses.replace(base.trace, **columns))


def rows_of(base: Window, rows: np.ndarray) -> Window:
    """The window with only these rows of its trace, in this order."""
    return dataclasses.replace(base, trace=base.trace.select(rows))


def there_and_back() -> list[Row]:
    """One micro-batch there and back again over two stages."""
    return [
        Row("forward-compute", 0, 1),
        Row("forward-send", 1, 1),
        Row("forward-recv", 0, 2, stage=1),
        Row("forward-compute", 2, 1, stage=1),
        Row("backward-compute", 3, 2, stage=1),
        Row("backward-send", 5, 1, stage=1),
        Row("backward-recv", 3, 3),
        Row("backward-compute", 6, 2),
        Row("optimizer", 8, 1),
        Row("optimizer", 6, 1, stage=1),
    ]
