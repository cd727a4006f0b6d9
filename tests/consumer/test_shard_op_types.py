"""A job with custom operation types, from the queue to the stored figures."""

from dataclasses import fields

import numpy as np

from app.ingest.assembly.window_codec import unpack_window
from app.ingest.wire import codec
from app.synth.job import SimulatedJob
from app.trace import ops
from app.trace.job import Parallelism
from app.trace.ops import OpTypes
from app.trace.window import Trace
from tests.e2e.producers import batch_of

SIZES = Parallelism(4, 2, ep_size=2)
OWN = ops.parse_op_types([{"name": "moe-all-to-all", "kind": "collective", "axis": "ep"}])


def recorded(step: int) -> Trace:
    """A simulated step with an expert all-to-all beside each forward."""
    made = SimulatedJob(SIZES, 3).make([step])
    forward = made.select(made.optype == OWN.codes["forward-compute"])
    values = {each.name: getattr(forward, each.name) for each in fields(Trace)}
    values |= {
        "optype": np.full(forward.num_ops, OWN.codes["moe-all-to-all"], np.int16),
        "start_s": forward.start_s + forward.duration_s / 4,
        "duration_s": forward.duration_s / 2,
    }
    columns = {name: [getattr(made, name), each] for name, each in values.items()}
    sent = {name: each for name, each in columns.items() if each[0] is not None}
    return Trace(**{name: np.concatenate(each) for name, each in sent.items()})


def push(twin, *steps: int) -> None:
    """Acknowledge whole steps, as the API does."""
    for step in steps:
        trace = recorded(step)
        for dp_rank in range(SIZES.dp_size):
            for stage in range(SIZES.pp_size):
                batch = batch_of(trace, 1, dp_rank, stage, step)
                twin.append_bytes("job", codec.encode(batch, OWN))


def test_stored_operations_have_custom_types(twin):
    twin.register("job", SIZES, op_types=OWN)
    push(twin, 0, 1, 2)
    twin.turns(twin.consumer())
    [(result, blob)] = twin.windows("result", "trace")
    assert "moe-all-to-all" in result.optype_slowdown
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
