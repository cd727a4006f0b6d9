"""One step of one replica, recorded and ideal, with its critical path; and single operations of it.

An operation is compared with its ideal and with the same type on other workers.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from app.engine.replays import WindowReplay
from app.engine.template import Template
from app.engine.timeline.critical_path import CriticalPath, PathLink, path_of_run, waited_for
from app.engine.timeline.step_run import StepRun, length_s, op_labels, play_step
from app.engine.what_if import Replayer
from app.errors import InvalidRequest


@dataclass(frozen=True)
class StepView:
    """The step as recorded and as it would be without stragglers."""

    replayer: Replayer
    step: int
    dp_rank: int
    recorded: StepRun
    ideal: StepRun
    path: CriticalPath

    @cached_property
    def recorded_s(self) -> float:
        """From the first operation of all workers to the end of the last."""
        return length_s(self.recorded)

    @cached_property
    def ideal_s(self) -> float:
        """To the end of the last optimizer, every operation ideal."""
        return length_s(self.ideal)

    @property
    def size_bytes(self) -> int:
        """Memory that its times take."""
        columns = ("start_s", "met_s", "end_s")
        runs = (self.recorded, self.ideal)
        return sum(int(getattr(run, name).nbytes) for run in runs for name in columns)

    def of(self, dp_rank: int | None) -> "StepView":
        """The same step of another replica (None: this one); raises InvalidRequest without it."""
        if dp_rank is None:
            return self
        if dp_rank >= self.replayer.dp_size:
            last = self.replayer.dp_size - 1
            raise InvalidRequest(f"dp {dp_rank}: this job has dp ranks 0 to {last}")
        return replace(self, dp_rank=dp_rank)

    @property
    def lost_s(self) -> float:
        """Recorded minus ideal step time; negative if the step was faster than its ideal."""
        return self.recorded_s - self.ideal_s


def step_view(replay: WindowReplay, step: int) -> StepView:
    """A step, shown by the replica with the largest share of the critical path.

    Raises:
        InvalidRequest: the window does not have the step.
    """
    replayer = replay.of_step(step)
    recorded, ideal = play_step(replayer, step, "recorded"), play_step(replayer, step, "ideal")
    path = path_of_run(recorded, replayer.grid.rank)
    return StepView(replayer, step, _dominant_dp_rank(path), recorded, ideal, path)


def _dominant_dp_rank(path: CriticalPath) -> int:
    """The dp rank with most time on the critical path, the lowest if equal."""
    shares: dict[int, float] = {}
    for (dp_rank, _, _), share in path.worker_shares.items():
        shares[dp_rank] = shares.get(dp_rank, 0.0) + share
    return min(shares, key=lambda dp_rank: (-shares[dp_rank], dp_rank))


@dataclass(frozen=True, slots=True)
class Predecessor:
    """Predecessor of an operation on the same replica."""

    optype: str
    stage: int
    microbatch: int | None


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation as the recorded or the ideal run has it.

    `own_s` is its computation or transfer: what is left of `duration_s` after `waited_s` for
    peers. `peers_s` is the median of `own_s` of its type on all other workers in the same step,
    None if there are none. `delay_s` is the time from the end of `after` to its start.
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
    after: Predecessor | None
    delay_s: float
    is_critical: bool


def find_operation(view: StepView, run: StepRun, stage: int, optype: str, seq_id: int) -> Operation:
    """One operation of the replica that is shown; raises InvalidRequest if there is none."""
    template, dp_rank = run.template, view.dp_rank
    op = _find(run, stage, optype, seq_id)
    known_by = op_labels(template, op)
    times_s = (run.start_s, run.met_s, run.end_s)
    start_s, met_s, end_s = (float(column[op, dp_rank]) for column in times_s)
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
        after=None if before is None else _predecessor(template, before[0]),
        delay_s=start_s - (0.0 if before is None else before[1]),
        is_critical=run is view.recorded and _is_on_path(view, stage, optype, seq_id),
    )


def most_delayed_link(view: StepView) -> PathLink | None:
    """The replica's operation on the critical path with the largest excess over its ideal."""
    template, ideal_s = view.recorded.template, view.replayer.durations.ideal_s
    own = [link for link in view.path.links if link.dp_rank == view.dp_rank and link.own_s > 0]
    codes = {link.optype: template.op_types.codes[link.optype] for link in own}
    # All operations of a type have one ideal.
    ideal_of = {name: ideal_s[(template.optype == code).argmax()] for name, code in codes.items()}
    return max(own, key=lambda link: link.own_s - ideal_of[link.optype], default=None)


def _find(run: StepRun, stage: int, optype: str, seq_id: int) -> int:
    template = run.template
    code = template.op_types.codes.get(optype, -1)
    is_match = (template.stage == stage) & (template.optype == code) & (template.seq_id == seq_id)
    if not is_match.any():
        raise InvalidRequest(f"stage {stage} has no operation {optype} {seq_id} in step {run.step}")
    return int(is_match.argmax())


def _of_peers(run: StepRun, op: int, dp_rank: int) -> float | None:
    template = run.template
    same = np.flatnonzero(template.optype == template.optype[op])
    own_s = run.end_s[same] - run.met_s[same]
    others = np.ones(own_s.shape, np.bool_)
    others[template.stage[same] == template.stage[op], dp_rank] = False
    return float(np.median(own_s[others])) if others.any() else None


def _predecessor(template: Template, op: int) -> Predecessor:
    microbatch = op_labels(template, op).get("microbatch")
    return Predecessor(template.name(op), int(template.stage[op]), microbatch)


def _is_on_path(view: StepView, stage: int, optype: str, seq_id: int) -> bool:
    wanted = (view.dp_rank, stage, optype, seq_id)
    return any(
        (link.dp_rank, link.stage, link.optype, link.seq_id) == wanted for link in view.path.links
    )
