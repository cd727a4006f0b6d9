"""Which steps, workers and runs of a window does a timeline show?"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from app.engine.replays import WindowReplay
from app.engine.timeline.critical_path import critical_path
from app.engine.timeline.step_run import RUN_KINDS, RunKind
from app.engine.what_if import Replayer
from app.errors import InvalidRequest
from app.trace.window import parse_step_ranges

_MAX_SHOWN_CHARS = 40

WorkerMask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class TimelineSelection:
    """The content of a timeline: `steps` ascending, `workers` [dp, pp], `runs` in usual order."""

    steps: tuple[int, ...]
    workers: WorkerMask
    runs: tuple[RunKind, ...]


def select(
    replay: WindowReplay,
    *,
    steps: str | None = None,
    workers: str | None = None,
    ranks: str | None = None,
    runs: str | None = None,
) -> TimelineSelection:
    """The selection that the texts name; by default the slowest step, all workers, all runs.

    Raises:
        InvalidRequest: one of the texts names nothing in this window.
    """
    if workers is not None and ranks is not None:
        raise InvalidRequest("workers and ranks are two names for the same: give one of them")
    replayer = replay.groups[0]
    shown = all_workers(replayer)
    if workers is not None:
        shown = parse_workers(workers, replayer)
    if ranks is not None:
        shown = parse_ranks(ranks, replayer)
    wanted = RUN_KINDS if runs is None else parse_runs(runs)
    return TimelineSelection(
        (slowest_step(replay, wanted[0]),) if steps is None else parse_steps(steps, replay),
        shown,
        wanted,
    )


def num_slices(replay: WindowReplay, choice: TimelineSelection) -> int:
    """Number of operations that the timeline shows, counted once for every run."""
    workers_of_stage = choice.workers.sum(axis=0)
    groups = [replay.of_step(step) for step in choice.steps]
    ops = sum(int(workers_of_stage[group.template.stage].sum()) for group in groups)
    return ops * len(choice.runs)


def limit_replicas(
    replay: WindowReplay, choice: TimelineSelection, max_ops: int
) -> TimelineSelection:
    """The selection reduced to as many dp ranks as fit `max_ops` operations, at least one.

    Dp ranks on the first step's recorded critical path come first.
    """
    path = critical_path(replay, choice.steps[0], "recorded")
    on_path = [dp_rank for dp_rank, _, _ in path.worker_shares]
    first = dict.fromkeys([*on_path, *range(choice.workers.shape[0])])
    of_one = num_slices(replay, choice) // choice.workers.shape[0]
    shown = list(first)[: max(max_ops // of_one, 1)]
    workers = np.zeros_like(choice.workers)
    workers[shown] = choice.workers[shown]
    return replace(choice, workers=workers)


def parse_steps(text: str, replay: WindowReplay) -> tuple[int, ...]:
    """The steps that "3,5-9" names; of a range, those that are replayed.

    Raises:
        InvalidRequest: that is no list of steps, or one of them is not replayed.
    """
    steps = parse_step_ranges(text, replay.steps)
    for step in steps:
        replay.of_step(step)
    return steps


def parse_workers(text: str, replayer: Replayer) -> WorkerMask:
    """[dp, pp], the workers that "0/1,3/1" names by dp rank and stage; * is every one.

    Raises:
        InvalidRequest: that is no list of workers, or the job does not have one of them.
    """
    named = np.zeros((replayer.dp_size, replayer.pp_size), np.bool_)
    for part in text.split(","):
        dp_rank, slash, stage = part.strip().partition("/")
        if not slash:
            raise InvalidRequest(
                f"workers: {_short(part)} is no DP/STAGE: write 0/1,3/1, or 3/* for every stage"
            )
        named[_place(dp_rank, replayer.dp_size, part), _place(stage, replayer.pp_size, part)] = True
    return named


def parse_ranks(text: str, replayer: Replayer) -> WorkerMask:
    """[dp, pp], the workers with the global ranks that "0,8-11" names.

    Raises:
        InvalidRequest: that is no list of ranks, or no worker has one of them.
    """
    rank = replayer.grid.rank
    named = np.zeros(rank.shape, np.bool_)
    for part in text.split(","):
        first, last = _range(part)
        in_part = (rank >= first) & (rank <= last)
        if not in_part.any():
            raise InvalidRequest(
                f"ranks: no worker recorded as rank {_short(part)}: "
                "name the ranks of the trace, or use workers"
            )
        named |= in_part
    return named


def parse_runs(text: str) -> tuple[RunKind, ...]:
    """The runs that "recorded,ideal" names, once and in usual order; raises InvalidRequest."""
    named = {parse_run(part.strip()) for part in text.split(",")}
    return tuple(run for run in RUN_KINDS if run in named)


def parse_run(text: str) -> RunKind:
    """The run of that name; raises InvalidRequest if there is no such run."""
    for run in RUN_KINDS:
        if run == text:
            return run
    raise InvalidRequest(f"run {_short(text)} is none of {', '.join(RUN_KINDS)}")


def all_workers(replayer: Replayer) -> WorkerMask:
    """[dp, pp], all workers."""
    return np.ones((replayer.dp_size, replayer.pp_size), np.bool_)


def slowest_step(replay: WindowReplay, run: RunKind = "recorded") -> int:
    """The step that took longest, the first of them; for replayed runs, when replayed."""
    times_s = replay.recorded_s if run == "recorded" else replay.simulated_s
    return replay.steps[int(times_s.argmax())]


def _range(part: str) -> tuple[int, int]:
    first, dash, last = part.strip().partition("-")
    numbers = (first, last if dash else first)
    if not all(number.isascii() and number.isdigit() and len(number) < 17 for number in numbers):
        raise InvalidRequest(f"ranks: {_short(part)} is no number or range: write 0,8-11")
    low, high = (int(number) for number in numbers)
    if low > high:
        raise InvalidRequest(f"ranks {_short(part)} end before they begin: write {high}-{low}")
    return low, high


def _place(text: str, size: int, part: str) -> slice | int:
    if text == "*":
        return slice(None)
    if text.isascii() and text.isdigit() and len(text) < 10 and int(text) < size:
        return int(text)
    raise InvalidRequest(
        f"workers: {_short(part)} is no worker of this job: want DP/STAGE, each from 0 "
        f"and this one below {size}"
    )


def _short(text: str) -> str:
    return repr(text.strip()[:_MAX_SHOWN_CHARS])
