"""Which operations a selection means in one window."""

from collections.abc import Callable, Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.engine.questions.checks import check_names, listed
from app.engine.questions.edits import Edit
from app.engine.questions.op_names import named_codes
from app.engine.replays import WindowReplay
from app.engine.what_if import Replayer
from app.errors import InvalidRequest
from app.trace.window import Ints

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Region:
    """Operations of one group of steps: rows of the template, and for each stage some lanes.

    Shapes: `rows` [ops], `lanes` [pp, dp, steps].
    """

    rows: Mask
    lanes: Mask

    def num_ops(self, stage: Ints) -> int:
        """Number of operations, counted in every lane; `stage` is the template's."""
        per_stage = np.bincount(stage[self.rows], minlength=self.lanes.shape[0])
        return int(per_stage @ self.lanes.sum(axis=(1, 2)))


def regions(replay: WindowReplay, edit: Edit, number: int) -> list[Region]:
    """What the edit changes in each of the replay's groups; `number` names it in messages.

    Raises:
        InvalidRequest: a name or number that the window does not have, or nothing is selected.
    """
    check_names(replay, edit, number)
    found = [_everything(group) for group in replay.groups]
    for field, narrowed in _FIELDS.items():
        wanted = getattr(edit.select, field)
        if not wanted:
            continue
        pairs = zip(replay.groups, found, strict=True)
        found = [narrowed(group, region, wanted) for group, region in pairs]
        counts = zip(replay.groups, found, strict=True)
        if not any(region.num_ops(group.template.stage) for group, region in counts):
            raise InvalidRequest(
                f"edit {number} selects no operation: none that its other fields leave "
                f"has {_WORDS[field]} {listed(wanted)}"
            )
    return found


def _everything(group: Replayer) -> Region:
    template = group.template
    lanes = np.ones((group.pp_size, group.dp_size, len(group.steps)), np.bool_)
    return Region(np.ones(template.num_ops, np.bool_), lanes)


def _of_types(group: Replayer, region: Region, names: Collection[str]) -> Region:
    template = group.template
    codes = set().union(*(named_codes(name, template.op_types) for name in names))
    return Region(region.rows & np.isin(template.optype, sorted(codes)), region.lanes)


def _of_stages(group: Replayer, region: Region, stages: Collection[int]) -> Region:
    return Region(region.rows & np.isin(group.template.stage, list(stages)), region.lanes)


def _of_microbatches(group: Replayer, region: Region, numbers: Collection[int]) -> Region:
    return Region(region.rows & np.isin(group.template.mb_id, list(numbers)), region.lanes)


def _of_dp_ranks(group: Replayer, region: Region, dp_ranks: Collection[int]) -> Region:
    chosen = np.isin(np.arange(group.dp_size), list(dp_ranks))
    return _in_lanes(group, region, chosen[None, :, None])


def _of_workers(group: Replayer, region: Region, workers: Collection[tuple[int, int]]) -> Region:
    chosen = np.zeros((group.pp_size, group.dp_size), np.bool_)
    for dp_rank, stage in workers:
        chosen[stage, dp_rank] = True
    return _in_lanes(group, region, chosen[:, :, None])


def _of_steps(group: Replayer, region: Region, steps: Collection[int]) -> Region:
    return _in_lanes(group, region, np.isin(group.steps, list(steps)))


def _in_lanes(group: Replayer, region: Region, chosen: Mask) -> Region:
    lanes = region.lanes & chosen
    # A row that is left with no lane is no longer selected: nothing need be held for it.
    on_stage = np.asarray(lanes.any(axis=(1, 2)))
    return Region(region.rows & on_stage[group.template.stage], lanes)


# In this order they are applied, so that a message names the field that left nothing.
_FIELDS: dict[str, Callable[..., Region]] = {
    "op_types": _of_types,
    "stages": _of_stages,
    "microbatches": _of_microbatches,
    "dp_ranks": _of_dp_ranks,
    "workers": _of_workers,
    "steps": _of_steps,
}
_WORDS = {
    "op_types": "the op type",
    "stages": "the stage",
    "microbatches": "the micro-batch",
    "dp_ranks": "the dp rank",
    "workers": "the worker (dp rank, stage)",
    "steps": "the step",
}
