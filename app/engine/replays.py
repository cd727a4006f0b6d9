"""Prepares a window for replays: groups of steps with equal structure.

`prepare` builds the graphs, measures the clocks, takes waits out of computations and computes
arrivals. Steps whose replicas differ in structure cannot be replayed and are refused.
"""

from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from app.engine.arrivals.arrivals import Arrivals, arrivals_of_replay
from app.engine.arrivals.hidden_waits import without_waits
from app.engine.clocks.measure import ClockCorrection, measure_clocks
from app.engine.graph import ALL_DP_RANKS, NO_PEERS, StepGraph, build_graph
from app.engine.grid import ABSENT, Grid, OtherStructure, has_chunk, is_simulated, lay_out, origin_s
from app.engine.steady_state import with_step_begins
from app.engine.timeline.step_run import play_step
from app.engine.what_if import Replayer, ReplayGroups, replayer
from app.errors import InvalidTrace
from app.trace.imputation import impute
from app.trace.ops import NUM_CODES
from app.trace.uneven_counts import uneven_counts
from app.trace.window import Floats, Ints, SkippedStep, Window
from app.work_budget import checkpoint


def without_waits_for_absent(replay: Replayer) -> Replayer:
    """The steps with shorter transfers where dp ranks met an absent worker that was late.

    The same object where no worker is absent.
    """
    flags = replay.grid.imputed
    if flags is None or not (flags == ABSENT).any():
        return replay
    waited_s = np.zeros_like(replay.durations.recorded_s)
    for position, step in enumerate(replay.steps):
        is_absent = flags[:, position :: len(replay.steps)] == ABSENT
        if is_absent.any():
            start_s = play_step(replay, step, "simulated").start_s
            _wait(replay, start_s, is_absent, waited_s[:, position :: len(replay.steps)])
    if not waited_s.any():
        return replay
    own_s = np.maximum(replay.durations.recorded_s - waited_s, 0.0)
    graph = replay.graph
    own_s[graph.num_ops :] = own_s[graph.milestone_of] * graph.milestone_share[:, None]
    return replayer(replay.grid, graph, own_s)


def _wait(
    replay: Replayer, start_s: Floats, is_absent: NDArray[np.bool_], waited_s: Floats
) -> None:
    """Fill `waited_s` [rows, dp] of one step: from the last recorded arrival to an absent one's.

    Shapes: `start_s` and `is_absent` are [ops, dp]. Only where dp ranks meet.
    """
    graph = replay.graph
    for unit in np.flatnonzero(graph.meets != NO_PEERS):
        rows = graph.unit_ops[graph.unit_ptr[unit] : graph.unit_ptr[unit + 1]]
        rows = rows[rows < graph.num_ops]
        if not is_absent[rows].any():
            continue
        block = replay.peers.block * (graph.meets[unit] != ALL_DP_RANKS)
        for ranks in (np.flatnonzero(block == number) for number in np.unique(block)):
            absent = is_absent[np.ix_(rows, ranks)]
            if absent.any() and not absent.all():
                starts_s = start_s[np.ix_(rows, ranks)]
                late_s = starts_s[absent].max() - starts_s[~absent].max()
                waited_s[np.ix_(rows, ranks)] = max(late_s, 0.0)


def group_by_structure(window: Window) -> tuple[list[tuple[int, ...]], list[SkippedStep]]:
    """Groups of steps with equal structure, by their first steps; steps whose replicas differ.

    The structure of a replica in a step is its set of operations by stage, type, number, and
    chunk where it has one (docs/replay.md, section 7).
    """
    keys, uneven = _Keys(window), uneven_counts(window)
    groups: dict[bytes, list[int]] = {}
    refused = []
    for step in window.steps:
        replicas = [keys.of(step, dp) for dp in range(window.job.parallelism.dp_size)]
        in_bytes = [replica.tobytes() for replica in replicas]
        usual = Counter(in_bytes).most_common(1)[0][0]
        other = next((dp for dp, replica in enumerate(in_bytes) if replica != usual), None)
        if not any(in_bytes):
            reason = "nothing but annotations such as pauses was recorded, and none is replayed"
            refused.append(SkippedStep(step, reason))
            continue
        if other is None:
            groups.setdefault(usual, []).append(step)
            continue
        if uneven is not None and step in uneven.steps:
            difference = uneven.fact
        else:
            difference = keys.difference(other, replicas[other], np.frombuffer(usual, np.int64))
        reason = f"{difference}: replicas of different structure cannot be replayed together"
        refused.append(SkippedStep(step, reason))
    return [tuple(steps) for steps in groups.values()], refused


class _Keys:
    """Every operation of every replica's step as one number, ascending."""

    def __init__(self, window: Window) -> None:
        trace, self._types = window.trace, window.job.op_types
        trace = trace.select(is_simulated(self._types)[trace.optype])
        self._num_seq_ids = int(trace.seq_id.max(initial=0)) + 1
        self._num_chunks = int(trace.mc.max(initial=0)) + 2
        chunk = np.where(has_chunk(self._types)[trace.optype], trace.mc, -1)
        key = trace.stage.astype(np.int64) * NUM_CODES + trace.optype
        key = (key * self._num_seq_ids + trace.seq_id) * self._num_chunks + chunk + 1
        order = np.lexsort((key, trace.dp_rank, trace.step))
        self._key, step, dp_rank = key[order], trace.step[order], trace.dp_rank[order]
        starts = np.flatnonzero(
            (np.diff(step, prepend=-1) != 0) | (np.diff(dp_rank, prepend=-1) != 0)
        )
        places = zip(step[starts].tolist(), dp_rank[starts].tolist(), strict=True)
        bounds = pairwise([*starts.tolist(), step.size])
        self._rows = dict(zip(places, bounds, strict=True))

    def of(self, step: int, dp_rank: int) -> Ints:
        """Operations of one replica in one step."""
        first, end = self._rows.get((step, dp_rank), (0, 0))
        return self._key[first:end]

    def difference(self, dp_rank: int, replica: Ints, usual: Ints) -> str:
        """Text about one operation that a replica has and the others lack, or the reverse."""
        extra, lacking = np.setdiff1d(replica, usual), np.setdiff1d(usual, replica)
        words = "lacks, unlike most others," if lacking.size else "has, unlike most others,"
        if not (extra.size or lacking.size):
            return f"dp rank {dp_rank} has an operation more than once"
        named = self._describe(int((lacking if lacking.size else extra)[0]))
        return f"dp rank {dp_rank} {words} {named}"

    def _describe(self, key: int) -> str:
        key, chunk = divmod(key, self._num_chunks)
        key, seq_id = divmod(key, self._num_seq_ids)
        stage, code = divmod(key, NUM_CODES)
        of_chunk = f" (chunk {chunk - 1})" if chunk else ""
        return f"{self._types.name(code)} {seq_id}{of_chunk} on stage {stage}"


@dataclass(frozen=True)
class WindowReplay(ReplayGroups):
    """A window that is ready for questions: waits are taken out of its computations.

    `arrivals` is None where no collective has several members. `held_up` [ops] of each group has
    for the template's computations whether waiting collectives hold them up (1), do not (-1), or
    may (0); empty where no computation needed the distinction.
    """

    arrivals: Arrivals | None = None
    held_up: tuple[NDArray[np.int8], ...] = ()

    @cached_property
    def lacks_waits(self) -> bool:
        """Whether no collective of several dp ranks was recorded by its members.

        Computations may then contain all waits for a slow rank, and be as long on all ranks.
        """
        if self.window.job.parallelism.dp_size == 1:
            return False
        if self.arrivals is None:
            return True
        occurrences = self.arrivals.occurrences
        known = [-1 if place.dp_rank is None else place.dp_rank for place in occurrences.places]
        dp_rank = np.array(known)[occurrences.member_rank]
        lowest = np.minimum.reduceat(dp_rank, occurrences.first_member)
        return not (np.maximum.reduceat(dp_rank, occurrences.first_member) > lowest).any()


@dataclass(frozen=True, slots=True)
class _GridDraft:
    """Recorded grid and graph of steps with one structure, and the refused steps."""

    laid_out: tuple[Grid, StepGraph] | None
    refused: list[SkippedStep]


# After this many steps whose record gives no valid order, the whole structure is refused.
MAX_BAD_STEPS = 4


def prepare(window: Window) -> WindowReplay:
    """The window's graphs, transfers and ideals; raises InvalidTrace if no step can be replayed."""
    window = impute(window)
    try:
        drafts = [_draft(window, window.steps)]
    except OtherStructure:
        of_structures, differing = group_by_structure(window)
        drafts = [_draft(window, steps) for steps in of_structures]
        drafts.append(_GridDraft(None, differing))
    # The order of operations on a worker is by its own clock: graphs need no corrected clocks.
    correction = measure_clocks(window, [draft.laid_out for draft in drafts if draft.laid_out])
    prepared = [
        _group(window, draft, correction) for draft in _by_one_clock(window, drafts, correction)
    ]
    groups = tuple(group for group, _ in prepared if group is not None)
    refused = [skip for _, skips in prepared for skip in skips]
    if not groups:
        raise InvalidTrace(f"step {refused[0].step}: {refused[0].reason}")
    skipped = sorted([*window.skipped, *refused], key=lambda skip: skip.step)
    recorded = ReplayGroups(window, groups, tuple(skipped), correction.clocks)
    arrivals = arrivals_of_replay(recorded, recorded.recorded_s)
    groups, held_up = without_waits(recorded, arrivals)
    return WindowReplay(window, groups, recorded.skipped, recorded.clocks, arrivals, held_up)


def _group(
    window: Window, draft: _GridDraft, correction: ClockCorrection
) -> tuple[Replayer | None, list[SkippedStep]]:
    """Replayer of the draft's steps; also refuses steps without a valid order by one clock."""
    refused, num_bad = draft.refused, 0
    while draft.laid_out is not None:
        checkpoint()
        grid, graph = draft.laid_out
        try:
            return without_waits_for_absent(_checked(replayer(grid, graph))), refused
        except InvalidTrace as error:
            num_bad += 1
            if num_bad == MAX_BAD_STEPS:
                return None, [*refused, *_refusals(grid.steps, str(error))]
            refused = [*refused, *_refusals(grid.steps[:1], str(error))]
            [draft] = _by_one_clock(window, [_draft(window, grid.steps[1:])], correction)
            refused += draft.refused
    return None, refused


def _by_one_clock(
    window: Window, drafts: list[_GridDraft], correction: ClockCorrection
) -> list[_GridDraft]:
    """The drafts with all times by one clock and with step begins."""
    grids = [correction.of(draft.laid_out[0]) for draft in drafts if draft.laid_out]
    corrected = iter(with_step_begins(grids, window))
    return [
        replace(draft, laid_out=(next(corrected), draft.laid_out[1])) if draft.laid_out else draft
        for draft in drafts
    ]


def _draft(window: Window, steps: tuple[int, ...]) -> _GridDraft:
    """Grid and graph of steps of one structure, without the steps that cannot be replayed.

    The order of operations is read from the first step, or from the next one if it is not valid
    (a clock was set in the middle of the step).
    """
    refused: list[SkippedStep] = []
    remaining, num_bad = steps, 0
    while remaining:
        checkpoint()
        try:
            grid = lay_out(window if remaining == window.steps else window.only(remaining))
            grid = replace(grid, origin_s=origin_s(window, remaining))
        except OtherStructure:
            raise
        except InvalidTrace as error:
            return _GridDraft(None, [*refused, *_refusals(remaining, str(error))])
        earliest_s, latest_s = grid.spans_s
        if (is_still := latest_s <= earliest_s).any():
            still = tuple(np.asarray(grid.steps)[is_still].tolist())
            refused += _refusals(
                still, "all of its operations are recorded at one moment, so it took no time"
            )
            remaining = tuple(step for step in remaining if step not in still)
            continue
        try:
            return _GridDraft((grid, build_graph(grid)), refused)
        except InvalidTrace as error:
            refused += _refusals(remaining[:1], str(error))
            remaining, num_bad = remaining[1:], num_bad + 1
            if num_bad == MAX_BAD_STEPS:
                return _GridDraft(None, [*refused, *_refusals(remaining, str(error))])
    return _GridDraft(None, refused)


def _refusals(steps: tuple[int, ...], reason: str) -> list[SkippedStep]:
    return [SkippedStep(step, reason) for step in steps]


def _checked(group: Replayer) -> Replayer:
    if min(group.simulated_s.mean(), group.ideal_s) <= 0:
        raise InvalidTrace("a step that takes no time, replayed, has no slowdown")
    return group
