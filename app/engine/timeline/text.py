"""Slices as the text of trace events, one line each.

The text around the numbers is the same for every worker of a stage: it is made once, and one
format operation fills in the numbers of a whole worker.
"""

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.engine.template import Template
from app.engine.timeline.slices import Slices
from app.engine.timeline.tracks import STEP_END, track_name
from app.trace.ops import Kind, OpSpec
from app.trace.window import Ints

NS_PER_US = 1000.0


@dataclass(frozen=True, slots=True)
class Form:
    """The events of one stage with blanks for their numbers.

    `takes` [ops, 7]: which of process, thread, start, duration, step, wait and transfer an
    operation's line has; the first five always.
    """

    text: str
    takes: NDArray[np.bool_]

    @classmethod
    def of(cls, template: Template, ops: Ints) -> "Form":
        """The form for some operations, in this order."""
        specs = [template.op_types.by_code[code] for code in template.optype[ops].tolist()]
        waits = [has_transfer(spec) for spec in specs]
        takes = np.ones((len(specs), 7), np.bool_)
        takes[:, 5:] = np.array(waits, np.bool_)[:, None]
        lines = [_line(template, op, spec) for op, spec in zip(ops.tolist(), specs, strict=True)]
        return cls("".join(lines), takes)

    def fill(self, found: Slices, column: int, process: int, thread_id: Ints, step: int) -> str:
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
    return spec.kind is not Kind.COMPUTE


def labels(template: Template, op: int) -> dict[str, int]:
    """The numbers that an operation is known by; micro-batch and chunk only where it has them."""
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
    known_by = "".join(f',"{key}":{number}' for key, number in labels(template, op).items())
    waits = ',"wait_us":%.3f,"transfer_us":%.3f' if has_transfer(spec) else ""
    return (
        f'{{"ph":"X","name":{name},"cat":{group},"pid":%d,"tid":%d,"ts":%.3f,"dur":%.3f,'
        f'"args":{{"step":%d{known_by}{waits}}}}},\n'
    )
