"""Put the steps of a made job one after the other, and look at each host's own clock."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from app.errors import InvalidRequest
from app.synth.annotations import rows_of
from app.synth.block import Block
from app.synth.instants import BEGAN_NS, NS_PER_S, times_ns
from app.trace.job import Parallelism
from app.trace.ops import NUM_CODES
from app.trace.window import Floats, Ints

# Between the end of one step and the beginning of the next one.
GAP_S = 2e-3

_COMPUTATIONS = (
    "forward-compute",
    "backward-compute",
    "backward-input-compute",
    "backward-weight-compute",
)


@dataclass(frozen=True, slots=True)
class Recorder:
    """Reads blocks by the hosts' clocks.

    Shapes: `offset_s` and `drift` (a share) [dp ranks, stages]. `sizes` are the bytes that
    operations of a type move.
    """

    parallelism: Parallelism
    offset_s: Floats
    drift: Floats
    sizes: Mapping[str, int]

    def columns(self, block: Block, began_s: Floats) -> dict[str, Ints]:
        """What was recorded of a block whose steps began at [steps] `began_s`, row by row."""
        of_ops = block.columns()
        shape = of_ops["start_s"].shape
        start_s, duration_s = of_ops.pop("start_s"), of_ops.pop("duration_s")
        named = of_ops | self._optional(block)
        rows = {name: np.broadcast_to(column, shape).ravel() for name, column in named.items()}
        rows["start_ns"], rows["duration_ns"] = times_ns(start_s, duration_s, began_s)
        heard = ~block.drawn.is_silent.transpose(1, 2, 0)[..., block.structure.columns["stage"]]
        if not heard.all():
            rows = {name: column[heard.ravel()] for name, column in rows.items()}
        rows = self._annotated(rows, block, began_s)
        self._look_at_clocks(rows)
        return rows

    def _look_at_clocks(self, rows: dict[str, Ints]) -> None:
        if not (self.offset_s.any() or self.drift.any()):
            rows["start_ns"] += BEGAN_NS
            return
        at = rows["dp_rank"], rows["stage"]
        drift = self.drift[at]
        offset_ns = np.rint(self.offset_s * NS_PER_S).astype(np.int64)[at]
        offset_ns += np.rint(drift * rows["start_ns"]).astype(np.int64)
        rows["start_ns"] += BEGAN_NS + offset_ns
        rows["duration_ns"] += np.rint(drift * rows["duration_ns"]).astype(np.int64)

    def _optional(self, block: Block) -> dict[str, Ints]:
        """Columns that broadcast to [steps, dp ranks, ops], -1 where an operation has none."""
        drawn, structure = block.drawn, block.structure
        found: dict[str, Ints] = {}
        names = [op.optype for op in structure.ops]
        if self.sizes:
            found["bytes"] = np.array([self.sizes.get(name, -1) for name in names])
        computes = np.isin(names, _COMPUTATIONS)
        for name in ("tokens", "seq_len_sq"):
            if (of_microbatch := getattr(drawn, name)) is not None:
                of_op = of_microbatch.transpose(1, 2, 0)[..., structure.columns["mb_id"]]
                found[name] = np.where(computes, of_op, -1)
        lasts = np.array(names) == "optimizer"
        for name in ("sm_clock_mhz", "temperature_c"):
            if (of_worker := getattr(drawn, name)) is not None:
                of_op = of_worker.transpose(1, 2, 0)[..., structure.columns["stage"]]
                found[name] = np.where(lasts, of_op, -1)
        return found

    def _annotated(self, rows: dict[str, Ints], block: Block, began_s: Floats) -> dict[str, Ints]:
        """The rows with those of the annotations among them."""
        drawn = block.drawn
        said = [a for a in drawn.annotations if not drawn.is_silent[a.stage, a.step, a.dp_rank]]
        if not said:
            return rows
        more = rows_of(said, block, began_s)
        none = np.full(len(said), -1)
        whole = {name: np.concatenate([rows[name], more.get(name, none)]) for name in rows}
        return _in_order(whole)


def successive(blocks: Iterable[Block], since_s: float) -> Iterable[tuple[Block, Floats, float]]:
    """Each block with the true times at which its steps began, and at which the next one would.

    Steps that are left out take as long as the one before them.
    """
    last, at_s, before_s = -1, since_s, 0.0
    for block in blocks:
        began_s = np.empty(block.drawn.steps.size)
        lasting_s = block.step_s() + GAP_S
        for position, step in enumerate(block.drawn.steps.tolist()):
            at_s += (step - last - 1) * before_s
            began_s[position] = at_s
            before_s = float(lasting_s[position])
            at_s += before_s
            last = step
        yield block, began_s, at_s


def joined(parts: Sequence[dict[str, Ints]]) -> dict[str, Ints]:
    """Columns of successive blocks; what is optional may be in some of them only."""
    columns = {}
    for name in dict.fromkeys(name for part in parts for name in part):
        each = [part.get(name, np.full(part["step"].size, -1)) for part in parts]
        columns[name] = np.concatenate(each)
    return columns


def refuse_disorder(steps: Sequence[int]) -> None:
    """Returns if the steps follow one another.

    Raises:
        InvalidRequest: they do not, or there is none.
    """
    if not steps:
        raise InvalidRequest("no steps: name at least one to make")
    if any(after <= before for before, after in pairwise(steps)):
        raise InvalidRequest(
            "steps are recorded one after the other: name them in order, each once"
        )


def _in_order(rows: dict[str, Ints]) -> dict[str, Ints]:
    """By step, dp rank, stage, op type, seq_id."""
    key = np.zeros(rows["step"].size, np.int64)
    for name in ("step", "dp_rank", "stage", "optype", "seq_id"):
        key *= NUM_CODES if name == "optype" else int(np.ptp(rows[name])) + 1
        key += rows[name] - rows[name].min()
    order = np.argsort(key, kind="stable")
    return {name: column[order] for name, column in rows.items()}
