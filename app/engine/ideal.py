"""What each operation would take without stragglers."""

import numpy as np

from app.engine.template import Template
from app.trace.ops import OP_SPECS
from app.trace.window import Floats


def ideal_durations(template: Template, duration_s: Floats) -> Floats:
    """[ops], seconds: one ideal per op type, over all steps, stages and dp ranks together.

    The mean for compute, since the same work in total has to be done; the median for
    communication, since a flapping link makes outliers that would drag a mean (Section 2).
    """
    ideal_s = np.empty(template.num_ops)
    for code in np.unique(template.optype):
        of_type = template.optype == code
        durations_s = duration_s[of_type]
        by_mean = OP_SPECS[code].idealised_by_mean
        ideal_s[of_type] = durations_s.mean() if by_mean else np.median(durations_s)
    return ideal_s
