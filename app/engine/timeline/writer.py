"""A timeline as Chrome trace events, gzip-compressed, a piece at a time."""

import json
import zlib
from collections.abc import Callable, Iterator

import numpy as np

from app.engine.replays import WindowReplay
from app.engine.template import Template
from app.engine.timeline.selection import TimelineSelection
from app.engine.timeline.slices import (
    EventTemplate,
    Tracks,
    extent_ns,
    metadata,
    op_slices,
    step_mark,
    step_slice,
)
from app.engine.timeline.step_run import RUN_KINDS, RunKind, StepRun, play_step
from app.engine.what_if import Replayer
from app.trace.window import Ints
from app.work_budget import checkpoint

# Process numbers begin here, so that none is the number of a thread: a thread with its process's
# number would be shown as the main one.
STEPS_PROCESS = 100_000
_FIRST_PROCESS = STEPS_PROCESS + 1
_GZIP_LEVEL = 1  # trace events are so repetitive that more effort saves a tenth
_GZIP_WINDOW_BITS = 31
_PIECE_CHARS = 1 << 18


def trace_event_pieces(
    replay: WindowReplay,
    choice: TimelineSelection,
    progress: Callable[[int], None] = lambda _slices: None,
) -> Iterator[bytes]:
    """The timeline as pieces of a .json.gz file; `progress` gets the number of slices written.

    One run of one step is in memory at a time. Steps are laid end to end, and every run of a step
    begins at the same instant.
    """
    compress = zlib.compressobj(_GZIP_LEVEL, zlib.DEFLATED, _GZIP_WINDOW_BITS)
    for text in _pieces(_Writer(replay, choice, progress).events()):
        if piece := compress.compress(text.encode()):
            yield piece
    yield compress.flush()


def process_id(worker: int, kind: RunKind) -> int:
    """Process number: runs of a worker are adjacent; workers count dp_rank * pp_size + stage."""
    return _FIRST_PROCESS + worker * len(RUN_KINDS) + RUN_KINDS.index(kind)


def worker_name(replayer: Replayer, dp_rank: int, stage: int) -> str:
    """Name of a worker's process; alphabetical order is the order of the numbers.

    Perfetto sorts processes by name, so names of one worker's runs share a prefix.
    """
    dp_digits, stage_digits = (len(str(n - 1)) for n in (replayer.dp_size, replayer.pp_size))
    rank = int(replayer.grid.rank[dp_rank, stage])
    return f"dp {dp_rank:0{dp_digits}} stage {stage:0{stage_digits}} (rank {rank})"


def _pieces(texts: Iterator[str]) -> Iterator[str]:
    waiting: list[str] = []
    num_chars = 0
    for text in texts:
        waiting.append(text)
        num_chars += len(text)
        if num_chars >= _PIECE_CHARS:
            yield "".join(waiting)
            waiting, num_chars = [], 0
    yield "".join(waiting)


class _Writer:
    """Generates events; keeps which processes and tracks have been named."""

    def __init__(
        self, replay: WindowReplay, choice: TimelineSelection, progress: Callable[[int], None]
    ) -> None:
        self._replay = replay
        self._choice = choice
        self._progress = progress
        self._tracks = Tracks.of(replay.window.job.op_types)
        self._known: set[tuple[int, int]] = set()
        self._forms: dict[tuple[int, int], EventTemplate] = {}

    def events(self) -> Iterator[str]:
        """The whole document."""
        about = {"job": self._replay.window.job.name, "window": self._replay.window.id}
        yield f'{{"displayTimeUnit":"ms","otherData":{json.dumps(about)},"traceEvents":[\n'
        origin_ns = 0
        for step in self._choice.steps:
            replayer = self._replay.of_step(step)
            extents = [extent_ns(play_step(replayer, step, kind)) for kind in self._choice.runs]
            # A run may begin before its step where a first transfer is negative.
            origin_ns -= min(first_ns for first_ns, _ in extents)
            yield step_mark(step, STEPS_PROCESS, origin_ns)
            for kind, (_, last_ns) in zip(self._choice.runs, extents, strict=True):
                yield self._step_event(step, kind, origin_ns, origin_ns + last_ns)
                yield from self._run_events(replayer, play_step(replayer, step, kind), origin_ns)
            origin_ns += max(last_ns for _, last_ns in extents)
        # Last, so that every other event can end with a comma.
        yield metadata("process_sort_index", STEPS_PROCESS, sort_index=0).rstrip(",\n") + "\n]}\n"

    def _step_event(self, step: int, kind: RunKind, start_ns: int, end_ns: int) -> str:
        """The step itself, on one track a run."""
        thread = 1 + RUN_KINDS.index(kind)
        events = self._name(STEPS_PROCESS, 0, "steps") + self._name(STEPS_PROCESS, thread, kind)
        return events + step_slice(step, STEPS_PROCESS, thread, start_ns, end_ns)

    def _run_events(self, replayer: Replayer, run: StepRun, origin_ns: int) -> Iterator[str]:
        for stage in range(replayer.pp_size):
            dp_ranks = np.flatnonzero(self._choice.workers[:, stage])
            if dp_ranks.size:
                yield from self._stage_events(replayer, run, stage, dp_ranks, origin_ns)

    def _stage_events(
        self, replayer: Replayer, run: StepRun, stage: int, dp_ranks: Ints, origin_ns: int
    ) -> Iterator[str]:
        template = run.template
        ops = np.flatnonzero(template.stage == stage)
        of_code = self._tracks.of_code
        track = np.array([of_code[code] for code in template.optype[ops].tolist()], np.int64)
        found = op_slices(run, ops, dp_ranks, track, origin_ns)
        thread_ids = self._tracks.thread_id(track[:, None], found.sibling)
        form = self._form(template, stage, ops)
        for column, dp_rank in enumerate(dp_ranks.tolist()):
            checkpoint()
            process = process_id(dp_rank * replayer.pp_size + stage, run.kind)
            name = worker_name(replayer, dp_rank, stage)
            yield self._name(process, 0, f"{name} · {run.kind}")
            for thread in np.unique(thread_ids[:, column]).tolist():
                yield self._name(process, thread, self._tracks.name(thread))
            yield form.fill(found, column, process, thread_ids[:, column], run.step)
            self._progress(ops.size)

    def _name(self, process: int, thread: int, name: str) -> str:
        """Metadata events of a process (thread 0) or track at its first use."""
        if (process, thread) in self._known:
            return ""
        self._known.add((process, thread))
        what, index = ("thread", thread) if thread else ("process", process - STEPS_PROCESS)
        return metadata(f"{what}_name", process, thread, name=name) + metadata(
            f"{what}_sort_index", process, thread, sort_index=index
        )

    def _form(self, template: Template, stage: int, ops: Ints) -> EventTemplate:
        key = (id(template), stage)
        if key not in self._forms:
            self._forms[key] = EventTemplate.of(template, ops)
        return self._forms[key]
