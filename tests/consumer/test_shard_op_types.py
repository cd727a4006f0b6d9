"""A job with custom operation types, from the queue to the stored figures."""

from dataclasses import fields

import numpy as np
import pytest

from app.engine.report import analyse, report_as_json
from app.ingest.assembly.window_codec import unpack_window
from app.ingest.wire import codec
from app.store import windows
from app.synth.job import SimulatedJob
from app.trace import ops
from app.trace.job import Job, Parallelism
from app.trace.ops import OpTypes
from app.trace.window import Trace, Window
from tests.e2e.producers import batch_of

SIZES = Parallelism(4, 2, ep_size=2)
OWN = ops.parse_op_types([{"name": "moe-all-to-all", "kind": "collective", "axis": "ep"}])
JOB = Job.of("job", SIZES, OWN)


def of_type(trace: Trace, name: str) -> Trace:
    return trace.select(trace.optype == OWN.codes[name])


def changed(trace: Trace, optype: str, **columns: np.ndarray) -> Trace:
    values = {field.name: getattr(trace, field.name) for field in fields(Trace)}
    values["optype"] = np.full(trace.num_ops, OWN.codes[optype], np.int16)
    return Trace(**values | columns)


def joined(parts: list[Trace]) -> Trace:
    columns = {f.name: [getattr(part, f.name) for part in parts] for f in fields(Trace)}
    sent = {name: each for name, each in columns.items() if each[0] is not None}
    return Trace(**{name: np.concatenate(each) for name, each in sent.items()})


def recorded(step: int) -> Trace:
    """A simulated step with split backwards and an expert all-to-all beside the forward."""
    made = SimulatedJob(SIZES, 3).make_step(step)
    backward, forward = (of_type(made, f"{way}-compute") for way in ("backward", "forward"))
    half_s = backward.duration_s / 2
    parts = [
        made.select(made.optype != OWN.codes["backward-compute"]),
        changed(backward, "backward-input-compute", duration_s=half_s),
        changed(
            backward,
            "backward-weight-compute",
            start_s=backward.start_s + half_s,
            duration_s=half_s,
        ),
        changed(
            forward,
            "moe-all-to-all",
            start_s=forward.start_s + forward.duration_s / 4,
            duration_s=forward.duration_s / 2,
        ),
    ]
    return joined(parts)


def push(twin, *steps: int) -> None:
    """Acknowledge whole steps, as the API does."""
    for step in steps:
        trace = recorded(step)
        for dp_rank in range(SIZES.dp_size):
            for stage in range(SIZES.pp_size):
                batch = batch_of(trace, 1, dp_rank, stage, step)
                twin.append_bytes("job", codec.encode(batch, OWN))


def saved(twin):
    with twin.store.read() as conn:
        return windows.get(conn, "job", "1-0", per_step=True)


def test_figures_have_custom_and_zero_bubble_types_by_name(twin):
    twin.register("job", SIZES, op_types=OWN)
    push(twin, 0, 1)
    twin.turns(twin.consumer())
    push(twin, 2)
    twin.turns(twin.consumer("another"), each_s=30.0)
    result = saved(twin)
    assert (result["steps"], result["window"]["state"]) == ([0, 1, 2], "complete")
    names = result["optype_slowdown"].keys()
    assert {"moe-all-to-all", "backward-input-compute", "backward-weight-compute"} <= names
    assert "backward-compute" not in names
    trace = joined([recorded(step) for step in range(3)])
    offline = report_as_json(analyse(Window(JOB, 1, 0, (0, 1, 2), trace, (), "complete")))
    assert result["slowdown"] == pytest.approx(offline["slowdown"], rel=1e-6)
    assert result["optype_slowdown"] == pytest.approx(offline["optype_slowdown"], rel=1e-6)


def test_stored_operations_have_custom_types(twin):
    twin.register("job", SIZES, op_types=OWN)
    push(twin, 0, 1, 2)
    twin.turns(twin.consumer())
    [(_, blob)] = twin.windows("first_step", "trace")
    codes, counts = np.unique(unpack_window(blob).ops.optype, return_counts=True)
    by_name = dict(zip(map(OWN.name, codes), counts.tolist(), strict=True))
    assert by_name["moe-all-to-all"] == by_name["forward-compute"] == 3 * 3 * SIZES.num_workers


def test_batch_of_an_unregistered_type_becomes_a_dead_letter(twin):
    twin.register("job", SIZES, op_types=OpTypes())
    push(twin, 0)
    twin.turns(twin.consumer())
    assert twin.windows() == []
    assert twin.queue.reader.backlog(0) == 0
    assert len(twin.rows("dead_letters")) == SIZES.num_workers
