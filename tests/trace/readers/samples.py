"""Files of every registered format, and what an import of them gives."""

from contextlib import closing

import numpy as np

from app.trace.readers.importing import ImportOptions
from app.trace.readers.registry import FORMATS
from tests.harness.samples import SAMPLES
from tests.harness.samples.job import sample_ops

ALL = FORMATS


def put(format_, folder):
    """The format's good files, the ones to name (a meta file is found by itself)."""
    paths = []
    for name, content in SAMPLES[format_.name]().items():
        (folder / name).write_bytes(content)
        if not name.endswith(".yaml"):
            paths.append(folder / name)
    return paths


def imported(format_, paths, **options):
    """What is described, and every row."""
    with closing(format_.opened(paths, ImportOptions(**options))) as opened:
        described = opened.describe()
        return described, list(opened.chunks())


def ops_of(described, chunks):
    """Operations as tuples, times in microseconds since their step began."""
    names = {code: spec.name for code, spec in described.op_types.by_code.items()}
    found = []
    for chunk in chunks:
        first_ns = 0
        if described.origin_ns is not None:
            first_ns = described.origin_ns[np.searchsorted(described.steps, chunk.step)]
        start_us = (chunk.start_ns - first_ns) // 1000
        columns = (chunk.step, chunk.optype, start_us, chunk.duration_ns // 1000, chunk.seq_id)
        for step, code, start, duration, seq_id in zip(
            *(each.tolist() for each in columns), strict=True
        ):
            place = (chunk.rank, chunk.dp_rank, chunk.stage)
            found.append((*place, step, names[code], start, duration, seq_id))
    return sorted(found)


def expected_ops():
    """The same of the job that every sample of operations is of."""
    ops = sample_ops()
    first_ns = {op.step: min(each.start_ns for each in ops if each.step == op.step) for op in ops}
    return sorted(
        (
            op.rank,
            op.dp_rank,
            op.stage,
            op.step,
            op.optype,
            (op.start_ns - first_ns[op.step]) // 1000,
            op.duration_ns // 1000,
            op.seq_id,
        )
        for op in ops
    )
