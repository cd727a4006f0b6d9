"""A timeline as Chrome trace events, gzip-compressed, a piece at a time.

First operations as slices: their tracks, times and text. No two slices of a track overlap. Times
are whole nanoseconds. The text around the numbers is the same for every worker of a stage: it is
made once, and one format operation fills in the numbers of a whole worker.
"""

import json
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.engine.replays import WindowReplay
from app.engine.template import Template
from app.engine.timeline.selection import TimelineSelection
from app.engine.timeline.step_run import (
    RUN_KINDS,
    STEP_END,
    RunKind,
    StepRun,
    op_labels,
    play_step,
    track_name,
)
from app.engine.what_if import Replayer
from app.trace.ops import COMPUTE_STREAM, OpKind, OpSpec, OpTypes
from app.trace.window import Floats, Ints
from app.work_budget import checkpoint

_FIRST = (COMPUTE_STREAM, "forward-recv", "forward-send", "backward-recv", "backward-send")

# So many siblings are shown right below their track, should there ever be more.
_MAX_SIBLINGS = 100

Siblings = NDArray[np.int64]


@dataclass(frozen=True)
class Tracks:
    """The tracks that any worker of a job may have, in the order in which they are shown.

    `of_code` has the track of every op type, as a position in `names`.
    """

    names: tuple[str, ...]
    of_code: dict[int, int]

    @classmethod
    def of(cls, op_types: OpTypes) -> "Tracks":
        """One track a stream; operations without one stand at the end of the step."""
        named = {code: track_name(spec) for code, spec in op_types.by_code.items()}
        middle = [name for name in named.values() if name not in (*_FIRST, STEP_END)]
        names = tuple(dict.fromkeys((*_FIRST, *middle, STEP_END)))
        return cls(names, {code: names.index(name) for code, name in named.items()})

    def thread_id(self, track: Ints, sibling: Siblings) -> Ints:
        """A number of its own for every track and sibling, from 1; viewers sort by it."""
        layer, place = np.divmod(sibling, _MAX_SIBLINGS)
        return np.asarray(1 + (layer * len(self.names) + track) * _MAX_SIBLINGS + place, np.int64)

    def name(self, thread_id: int) -> str:
        """Name of the track with this number."""
        beside, place = divmod(thread_id - 1, _MAX_SIBLINGS)
        layer, track = divmod(beside, len(self.names))
        sibling = layer * _MAX_SIBLINGS + place
        return f"{self.names[track]} ({sibling + 1})" if sibling else self.names[track]


def siblings(track: Ints, start_ns: Ints, end_ns: Ints) -> Siblings:
    """[ops, lanes], 0 where a slice is drawn on its track itself, n on that track's nth sibling.

    Operations that overlap on one stream are rare, and real where they are recorded: the later
    one moves to the first sibling that is free. So does one without a length that begins together
    with another: a viewer would draw it beneath. Shapes: `track` [ops], times [ops, lanes].
    """
    sibling = np.zeros(start_ns.shape, np.int64)
    for ops in (np.flatnonzero(track == number) for number in np.unique(track)):
        begin_ns, stop_ns = start_ns[ops], end_ns[ops]
        order = np.lexsort((begin_ns - stop_ns, begin_ns), axis=0)  # of a start, longest first
        begin_ns = np.take_along_axis(begin_ns, order, axis=0)
        stop_ns = np.maximum(np.take_along_axis(stop_ns, order, axis=0), begin_ns + 1)
        free_ns = np.maximum.accumulate(stop_ns, axis=0)
        for lane in np.flatnonzero((begin_ns[1:] < free_ns[:-1]).any(axis=0)):
            sibling[ops[order[:, lane]], lane] = _first_free(
                begin_ns[:, lane].tolist(), stop_ns[:, lane].tolist()
            )
    return sibling


def _first_free(start_ns: list[int], end_ns: list[int]) -> list[int]:
    """Slices by start: the first sibling on which the one before has ended."""
    free_ns: list[int] = []
    chosen = []
    for start, end in zip(start_ns, end_ns, strict=True):
        sibling = next((at for at, free in enumerate(free_ns) if free <= start), len(free_ns))
        free_ns[sibling : sibling + 1] = [end]
        chosen.append(sibling)
    return chosen


@dataclass(frozen=True, slots=True)
class OpSlices:
    """Operations of one stage on some dp ranks.

    Shapes: all [ops, dp ranks]. A slice ends when its operation does; `wait_ns` is what it waited
    for peers and `transfer_ns` the rest, both negative if hosts' clocks disagree.
    """

    start_ns: Ints
    end_ns: Ints
    wait_ns: Ints
    transfer_ns: Ints
    sibling: Siblings


def op_slices(run: StepRun, ops: Ints, dp_ranks: Ints, track: Ints, origin_ns: int) -> OpSlices:
    """The slices of some operations, with the run's beginning at `origin_ns`.

    `track` is [ops]. Times are rounded one by one, so what met to the nanosecond still does.
    An operation whose transfer is negative may end before it began: it is drawn at its end,
    without a length.
    """
    cells = np.ix_(ops, dp_ranks)
    began_ns = nanoseconds(run.start_s[cells]) + origin_ns
    met_ns = nanoseconds(run.met_s[cells]) + origin_ns
    end_ns = nanoseconds(run.end_s[cells]) + origin_ns
    start_ns = np.minimum(began_ns, end_ns)
    sibling = siblings(track, start_ns, end_ns)
    return OpSlices(start_ns, end_ns, met_ns - began_ns, end_ns - met_ns, sibling)


def extent_ns(run: StepRun) -> tuple[int, int]:
    """Start of the first operation of all workers and end of the last one."""
    first_s = min(0.0, float(run.start_s.min()), float(run.end_s.min()))
    bounds = nanoseconds(np.array([first_s, float(run.end_s.max())]))
    return int(bounds[0]), int(bounds[1])


def nanoseconds(seconds: Floats) -> Ints:
    """Seconds as whole nanoseconds, rounded."""
    return np.rint(seconds * 1e9).astype(np.int64)


NS_PER_US = 1000.0


@dataclass(frozen=True, slots=True)
class EventTemplate:
    """The events of one stage with blanks for their numbers.

    `takes` [ops, 7]: which of process, thread, start, duration, step, wait and transfer an
    operation's line has; the first five always.
    """

    text: str
    takes: NDArray[np.bool_]

    @classmethod
    def of(cls, template: Template, ops: Ints) -> "EventTemplate":
        """The form for some operations, in this order."""
        specs = [template.op_types.by_code[code] for code in template.optype[ops].tolist()]
        waits = [has_transfer(spec) for spec in specs]
        takes = np.ones((len(specs), 7), np.bool_)
        takes[:, 5:] = np.array(waits, np.bool_)[:, None]
        lines = [_line(template, op, spec) for op, spec in zip(ops.tolist(), specs, strict=True)]
        return cls("".join(lines), takes)

    def fill(self, slices: OpSlices, column: int, process: int, thread_id: Ints, step: int) -> str:
        """The events of the worker in a column of the slices; `thread_id` is [ops]."""
        numbers = np.empty(self.takes.shape)
        numbers[:, 0], numbers[:, 1], numbers[:, 4] = process, thread_id, step
        start_ns = slices.start_ns[:, column]
        numbers[:, 2] = start_ns / NS_PER_US
        numbers[:, 3] = (slices.end_ns[:, column] - start_ns) / NS_PER_US
        numbers[:, 5] = slices.wait_ns[:, column] / NS_PER_US
        numbers[:, 6] = slices.transfer_ns[:, column] / NS_PER_US
        return self.text % tuple(numbers[self.takes].tolist())


def has_transfer(spec: OpSpec) -> bool:
    """Whether an operation moves bytes, or may wait for peers."""
    return spec.kind is not OpKind.COMPUTE


def metadata(name: str, process: int, thread: int = 0, /, **arguments: Any) -> str:
    """An event that names or sorts a process or a thread."""
    # Perfetto shows what JSON escapes as it is written, so nothing is escaped without need.
    event = {"ph": "M", "name": name, "pid": process, "tid": thread, "args": arguments}
    return json.dumps(event, separators=(",", ":"), ensure_ascii=False) + ",\n"


def step_slice(step: int, process: int, thread: int, start_ns: int, end_ns: int) -> str:
    """A whole step as one slice."""
    where = f'"ph":"X","name":"step {step}","pid":{process},"tid":{thread}'
    when = f'"ts":{_us(start_ns)},"dur":{_us(end_ns - start_ns)}'
    return f'{{{where},{when},"args":{{"step":{step}}}}},\n'


def step_mark(step: int, process: int, start_ns: int) -> str:
    """A flag above all processes where a step begins."""
    where = f'"ph":"i","s":"g","name":"step {step}","pid":{process},"tid":0'
    return f'{{{where},"ts":{_us(start_ns)},"args":{{"step":{step}}}}},\n'


def _us(nanoseconds: int) -> str:
    return f"{nanoseconds / NS_PER_US:.3f}"


def _line(template: Template, op: int, spec: OpSpec) -> str:
    name, group = (json.dumps(text).replace("%", "%%") for text in (spec.name, spec.group))
    known_by = "".join(f',"{key}":{number}' for key, number in op_labels(template, op).items())
    waits = ',"wait_us":%.3f,"transfer_us":%.3f' if has_transfer(spec) else ""
    return (
        f'{{"ph":"X","name":{name},"cat":{group},"pid":%d,"tid":%d,"ts":%.3f,"dur":%.3f,'
        f'"args":{{"step":%d{known_by}{waits}}}}},\n'
    )


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
    tracks = Tracks.of(replay.window.job.op_types)
    for text in _pieces(_Writer(replay, choice, progress, tracks).events()):
        if piece := compress.compress(text.encode()):
            yield piece
    yield compress.flush()


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


@dataclass(eq=False)
class _Writer:
    """Generates events; keeps which processes and tracks have been named."""

    replay: WindowReplay
    choice: TimelineSelection
    progress: Callable[[int], None]
    tracks: Tracks
    known: set[tuple[int, int]] = field(default_factory=set)
    forms: dict[tuple[int, int], EventTemplate] = field(default_factory=dict)

    def events(self) -> Iterator[str]:
        """The whole document."""
        about = {"job": self.replay.window.job.name, "window": self.replay.window.id}
        yield f'{{"displayTimeUnit":"ms","otherData":{json.dumps(about)},"traceEvents":[\n'
        origin_ns = 0
        for step in self.choice.steps:
            replayer = self.replay.of_step(step)
            extents = [extent_ns(play_step(replayer, step, kind)) for kind in self.choice.runs]
            # A run may begin before its step where a first transfer is negative.
            origin_ns -= min(first_ns for first_ns, _ in extents)
            yield step_mark(step, STEPS_PROCESS, origin_ns)
            for kind, (_, last_ns) in zip(self.choice.runs, extents, strict=True):
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
            dp_ranks = np.flatnonzero(self.choice.workers[:, stage])
            if dp_ranks.size:
                yield from self._stage_events(replayer, run, stage, dp_ranks, origin_ns)

    def _stage_events(
        self, replayer: Replayer, run: StepRun, stage: int, dp_ranks: Ints, origin_ns: int
    ) -> Iterator[str]:
        template = run.template
        ops = np.flatnonzero(template.stage == stage)
        of_code = self.tracks.of_code
        track = np.array([of_code[code] for code in template.optype[ops].tolist()], np.int64)
        slices = op_slices(run, ops, dp_ranks, track, origin_ns)
        thread_ids = self.tracks.thread_id(track[:, None], slices.sibling)
        form = self._form(template, stage, ops)
        for column, dp_rank in enumerate(dp_ranks.tolist()):
            checkpoint()
            worker = dp_rank * replayer.pp_size + stage  # its runs are adjacent
            process = _FIRST_PROCESS + worker * len(RUN_KINDS) + RUN_KINDS.index(run.kind)
            name = worker_name(replayer, dp_rank, stage)
            yield self._name(process, 0, f"{name} · {run.kind}")
            for thread in np.unique(thread_ids[:, column]).tolist():
                yield self._name(process, thread, self.tracks.name(thread))
            yield form.fill(slices, column, process, thread_ids[:, column], run.step)
            self.progress(ops.size)

    def _name(self, process: int, thread: int, name: str) -> str:
        """Metadata events of a process (thread 0) or track at its first use."""
        if (process, thread) in self.known:
            return ""
        self.known.add((process, thread))
        named, index = ("thread", thread) if thread else ("process", process - STEPS_PROCESS)
        return metadata(f"{named}_name", process, thread, name=name) + metadata(
            f"{named}_sort_index", process, thread, sort_index=index
        )

    def _form(self, template: Template, stage: int, ops: Ints) -> EventTemplate:
        key = (id(template), stage)
        if key not in self.forms:
            self.forms[key] = EventTemplate.of(template, ops)
        return self.forms[key]
