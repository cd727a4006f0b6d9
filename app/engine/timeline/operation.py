"""One operation of a step, held against its ideal and against the same kind on other workers."""

from dataclasses import dataclass

import numpy as np

from app.engine.chain import Link, waited_for
from app.engine.run import Run
from app.engine.timeline.step_view import StepView
from app.engine.timeline.text import labels
from app.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class Neighbour:
    """What an operation waited for, on the same replica."""

    optype: str
    stage: int
    microbatch: int | None


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation as the recorded or the ideal run has it.

    `own_s` is its computation or transfer: what is left of `duration_s` after `waited_s` for
    peers. `peers_s` is the median of `own_s` of its type on all other workers in the same step,
    None where nobody else has one. `delay_s` passed from the end of `after` to its start.
    """

    optype: str
    seq_id: int
    microbatch: int | None
    chunk: int | None
    start_s: float
    duration_s: float
    waited_s: float
    own_s: float
    ideal_s: float
    peers_s: float | None
    after: Neighbour | None
    delay_s: float
    is_critical: bool


def operation(view: StepView, run: Run, stage: int, optype: str, seq_id: int) -> Operation:
    """One operation of the replica that is shown.

    Raises:
        InvalidRequest: the stage has no such operation.
    """
    template, dp_rank = run.template, view.dp_rank
    op = _find(run, stage, optype, seq_id)
    known_by = labels(template, op)
    start_s, met_s, end_s = (float(of[op, dp_rank]) for of in (run.start_s, run.met_s, run.end_s))
    before = waited_for(run, op, dp_rank)
    return Operation(
        optype=optype,
        seq_id=seq_id,
        microbatch=known_by.get("microbatch"),
        chunk=known_by.get("chunk"),
        start_s=start_s,
        duration_s=end_s - start_s,
        waited_s=met_s - start_s,
        own_s=end_s - met_s,
        ideal_s=float(view.replayer.durations.ideal_s[op]),
        peers_s=_of_peers(run, op, dp_rank),
        after=None if before is None else _neighbour(run, before[0]),
        delay_s=start_s - (0.0 if before is None else before[1]),
        is_critical=run is view.recorded and _is_on_path(view, stage, optype, seq_id),
    )


def telling(view: StepView) -> Link | None:
    """Of the replica's operations on the critical path, the one furthest above its ideal."""
    template, ideal_s = view.recorded.template, view.replayer.durations.ideal_s
    own = [link for link in view.path.links if link.dp_rank == view.dp_rank and link.own_s > 0]
    codes = {link.optype: template.op_types.codes[link.optype] for link in own}
    # All operations of a type have one ideal.
    ideal_of = {name: ideal_s[(template.optype == code).argmax()] for name, code in codes.items()}
    return max(own, key=lambda link: link.own_s - ideal_of[link.optype], default=None)


def _find(run: Run, stage: int, optype: str, seq_id: int) -> int:
    template = run.template
    code = template.op_types.codes.get(optype, -1)
    is_it = (template.stage == stage) & (template.optype == code) & (template.seq_id == seq_id)
    found = np.flatnonzero(is_it)
    if not found.size:
        raise InvalidRequest(f"stage {stage} has no operation {optype} {seq_id} in step {run.step}")
    return int(found[0])


def _of_peers(run: Run, op: int, dp_rank: int) -> float | None:
    template = run.template
    same = np.flatnonzero(template.optype == template.optype[op])
    own_s = run.end_s[same] - run.met_s[same]
    others = np.ones(own_s.shape, np.bool_)
    others[template.stage[same] == template.stage[op], dp_rank] = False
    return float(np.median(own_s[others])) if others.any() else None


def _neighbour(run: Run, op: int) -> Neighbour:
    known_by = labels(run.template, op)
    stage = int(run.template.stage[op])
    return Neighbour(run.template.name(op), stage, known_by.get("microbatch"))


def _is_on_path(view: StepView, stage: int, optype: str, seq_id: int) -> bool:
    wanted = (view.dp_rank, stage, optype, seq_id)
    return any(
        (link.dp_rank, link.stage, link.optype, link.seq_id) == wanted for link in view.path.links
    )
