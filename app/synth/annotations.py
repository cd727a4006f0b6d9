"""What workers say beside their operations: pauses within them, waits before them."""

import numpy as np

from app.synth.block import Block
from app.synth.drawn import Annotation
from app.synth.instants import times_ns
from app.synth.structure import Op
from app.trace.ops import OP_CODES
from app.trace.window import Floats, Ints


def rows_of(said: list[Annotation], block: Block, began_s: Floats) -> dict[str, Ints]:
    """Rows of what is said of computations; `seq_id` in the order in which it is said."""
    first_s, last_s = np.array([_span(each, block) for each in said]).T
    step = np.array([each.step for each in said])
    start_ns, duration_ns = times_ns(
        first_s[:, None, None], (last_s - first_s)[:, None, None], began_s[step]
    )
    dp_rank, stage = np.array([(each.dp_rank, each.stage) for each in said]).T
    sizes = block.structure.parallelism
    rows = {
        "step": block.drawn.steps[step],
        "dp_rank": dp_rank,
        "stage": stage,
        "rank": (stage * sizes.dp_size + dp_rank) * sizes.tp_size * sizes.dsp_size,
        "optype": np.array([OP_CODES[each.name] for each in said]),
        "mc": np.array([each.chunk for each in said]),
        "mb_id": np.array([each.microbatch for each in said]),
        "start_ns": start_ns,
        "duration_ns": duration_ns,
    }
    rows["seq_id"] = _numbered(rows)
    return rows


def _span(said: Annotation, block: Block) -> tuple[float, float]:
    """When it began and ended, from the beginning of its step."""
    names = [f"{said.direction.value}-compute", f"{said.direction.value}-input-compute"]
    row = next(
        block.structure.row[op]
        for op in (Op(said.stage, name, said.chunk, said.microbatch) for name in names)
        if op in block.structure.row
    )
    start_s = float(block.start_s[row, said.step, said.dp_rank])
    if said.name == "data-wait":
        return start_s - said.duration_s, start_s
    spare_s = float(block.end_s[row, said.step, said.dp_rank]) - start_s - said.duration_s
    return start_s + spare_s / 2, start_s + spare_s / 2 + said.duration_s


def _numbered(rows: dict[str, Ints]) -> Ints:
    """Each worker's of a type in a step from 0, by start."""
    order = np.lexsort([rows[n] for n in ("start_ns", "optype", "stage", "dp_rank", "step")])
    keys = np.stack([rows[name][order] for name in ("step", "dp_rank", "stage", "optype")])
    is_new = np.concatenate([[True], (np.diff(keys, axis=1) != 0).any(axis=0)])
    position = np.arange(order.size)
    seq_id = np.empty_like(order)
    seq_id[order] = position - np.maximum.accumulate(np.where(is_new, position, 0))
    return seq_id
