"""What each operation would take without stragglers."""

from functools import partial

import numpy as np

from app.engine.compiled import kernel
from app.engine.parallel import all_of
from app.engine.template import Template
from app.trace.window import Floats, Ints


def ideal_durations(template: Template, duration_s: Floats) -> Floats:
    """[ops], seconds: one ideal per op type, over all steps, stages and dp ranks together.

    The mean for compute, since the same work in total has to be done; the median for
    communication, since a flapping link makes outliers that would drag a mean (Section 2).
    """
    ideal_s = np.empty(template.num_ops)
    of_type = [np.flatnonzero(template.optype == code) for code in template.present]
    specs = [template.op_types.by_code[code] for code in template.present]
    found = all_of(
        duration_s.size,
        [
            partial(_mean if spec.idealised_by_mean else _median, duration_s, ops)
            for spec, ops in zip(specs, of_type, strict=True)
        ],
    )
    for ops, typical_s in zip(of_type, found, strict=True):
        ideal_s[ops] = typical_s
    return ideal_s


def _mean(duration_s: Floats, ops: Ints) -> float:
    return float(_row_means(duration_s, ops).mean())


def _median(duration_s: Floats, ops: Ints) -> float:
    return float(np.median(duration_s[ops].ravel(), overwrite_input=True))


@kernel
def _row_means(duration_s, ops):  # type: ignore[no-untyped-def]
    # Row by row, so that the sum of millions of values stays as exact as it should be.
    means_s = np.empty(ops.size)
    for position in range(ops.size):
        total_s = 0.0
        for lane in range(duration_s.shape[1]):
            total_s += duration_s[ops[position], lane]
        means_s[position] = total_s / duration_s.shape[1]
    return means_s
