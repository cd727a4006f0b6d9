"""Operations of a run as slices of a Chrome trace: their tracks, times and text.

No two slices of a track overlap. Times are whole nanoseconds. The text around the numbers is the
same for every worker of a stage: it is made once, and one format operation fills in the numbers of
a whole worker.
"""

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.engine.template import Template
from app.engine.timeline.step_run import StepRun
from app.trace.ops import COMPUTE_STREAM, Axis, OpKind, OpSpec, OpTypes
from app.trace.window import Floats, Ints

STEP_END = "step end"
_FIRST = (COMPUTE_STREAM, "forward-recv", "forward-send", "backward-recv", "backward-send")

# So many siblings are shown right below their track, should there ever be more.
_MAX_SIBLINGS = 100

Siblings = NDArray[np.int64]


@dataclass(frozen=True)
class Tracks:
    """The tracks that any worker of a job may have, in the order in which they are shown.

    `of_code` tells every op type's track, as a position in `names`.
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


def track_name(spec: OpSpec) -> str:
    """The stream of an op type; what meets all dp ranks outside of one has a track of its own."""
    if spec.stream:
        return spec.stream
    return spec.name if spec.axis is Axis.DP else STEP_END


def siblings(track: Ints, start_ns: Ints, end_ns: Ints) -> Siblings:
    """[ops, lanes], 0 where a slice is drawn on its track itself, n on that track's nth sibling.

    Operations that overlap on one stream are rare, and real where they are recorded: the later
    one moves to the first sibling that is free. So does one without a length that begins together
    with another: a viewer would draw it beneath. Shapes: `track` [ops], times [ops, lanes].
    """
    sibling = np.zeros(start_ns.shape, np.int64)
    for ops in (np.flatnonzero(track == each) for each in np.unique(track)):
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
    found = []
    for start, end in zip(start_ns, end_ns, strict=True):
        sibling = next((at for at, free in enumerate(free_ns) if free <= start), len(free_ns))
        free_ns[sibling : sibling + 1] = [end]
        found.append(sibling)
    return found


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
    return OpSlices(
        start_ns,
        end_ns,
        met_ns - began_ns,
        end_ns - met_ns,
        siblings(track, start_ns, end_ns),
    )


def extent_ns(run: StepRun) -> tuple[int, int]:
    """When the first operation of all workers begins and the last one ends."""
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

    def fill(self, found: OpSlices, column: int, process: int, thread_id: Ints, step: int) -> str:
        """The events of the worker in a column of the slices; `thread_id` is [ops]."""
        numbers = np.empty(self.takes.shape)
        numbers[:, 0], numbers[:, 1], numbers[:, 4] = process, thread_id, step
        start_ns = found.start_ns[:, column]
        numbers[:, 2] = start_ns / NS_PER_US
        numbers[:, 3] = (found.end_ns[:, column] - start_ns) / NS_PER_US
        numbers[:, 5] = found.wait_ns[:, column] / NS_PER_US
        numbers[:, 6] = found.transfer_ns[:, column] / NS_PER_US
        return self.text % tuple(numbers[self.takes].tolist())


def has_transfer(spec: OpSpec) -> bool:
    """Whether an operation moves bytes, or may wait for peers."""
    return spec.kind is not OpKind.COMPUTE


def op_labels(template: Template, op: int) -> dict[str, int]:
    """Numbers that identify an operation; micro-batch and chunk only if it has them."""
    spec = template.op_types.by_code[int(template.optype[op])]
    found = {"seq_id": int(template.seq_id[op])}
    if track_name(spec) == STEP_END:  # is of no micro-batch, whatever the record says
        return found
    named = {"microbatch": int(template.mb_id[op]), "chunk": int(template.mc[op])}
    return found | {name: number for name, number in named.items() if number >= 0}


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
