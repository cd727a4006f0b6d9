"""How long do the collectives of each stage's dp ranks take, against those of the other stages?"""

from dataclasses import dataclass

import numpy as np

from app.diagnosis.features import Features, ops_of
from app.diagnosis.selecting import median, smallest
from app.engine.compiled import kernel
from app.trace.ops import Axis, Kind
from app.trace.window import Floats, Ints

# A stage alone is measured by its steps that are faster than the others.
FASTER_STEP = 0.25


@dataclass(frozen=True, slots=True)
class DpGroups:
    """Collectives of a group of steps, all members of one taking the same time.

    Shapes: `rows` [collectives] of the template and their `stage`; `took_s` [collectives, steps],
    the median over members; `usual_s` [collectives], the same collective on the typical stage;
    `pace` [pp, steps], took over usual, of a stage's collectives together.
    """

    rows: Ints
    stage: Ints
    took_s: Floats
    usual_s: Floats
    pace: Floats


def dp_groups(group: Features) -> DpGroups | None:
    """The dp groups of a group of steps; None where dp ranks exchange nothing.

    A stage alone is compared with itself in the faster steps.
    """
    template, own_s = group.replayer.template, group.replayer.durations.recorded_s
    by_code = template.op_types.by_code
    codes = [
        code
        for code in template.present
        if by_code[code].kind is Kind.COLLECTIVE and by_code[code].axis is Axis.DP
    ]
    rows = ops_of(template, codes)
    if not rows.size or group.replayer.dp_size == 1:
        return None
    num_steps = len(group.steps)
    took_s = np.empty((rows.size, num_steps))
    _medians(own_s, rows, took_s)
    stage = template.stage[rows]
    usual_s = _usual(took_s, template.optype[rows] * template.num_ops + template.seq_id[rows])
    shape = (group.replayer.pp_size, num_steps)
    total_s, least_s = np.zeros(shape), np.zeros(shape)
    np.add.at(total_s, stage, took_s)
    np.add.at(least_s, stage, usual_s[:, None])
    if group.replayer.pp_size == 1:
        # Of many collectives some are long in every step: a faster step has its share of them.
        least_s = np.maximum(least_s, np.quantile(total_s, FASTER_STEP, axis=1, keepdims=True))
    pace = np.divide(total_s, least_s, out=np.ones(shape), where=least_s > 0)
    return DpGroups(rows, stage, took_s, usual_s, pace)


def _usual(took_s: Floats, key: Ints) -> Floats:
    """[collectives], the lower median over stages of those with the same key, each its median."""
    usual_s = np.empty(key.size)
    _usual_of_each(took_s, key, usual_s)
    return usual_s


@kernel
def _medians(own_s, rows, took_s):  # type: ignore[no-untyped-def]
    num_steps = took_s.shape[1]
    values = np.empty(own_s.shape[1] // num_steps)
    for at in range(rows.size):
        for step in range(num_steps):
            values[:] = own_s[rows[at], step::num_steps]
            took_s[at, step] = median(values, values.size)


@kernel
def _usual_of_each(took_s, key, usual_s):  # type: ignore[no-untyped-def]
    num_steps = took_s.shape[1]
    of_step, of_stage = np.empty(num_steps), np.empty(key.size)
    order = np.argsort(key)
    first = 0
    while first < key.size:
        end = first + 1
        while end < key.size and key[order[end]] == key[order[first]]:
            end += 1
        share = 0.5 if end - first > 1 else 0.25
        for at in range(first, end):
            of_step[:] = took_s[order[at]]
            of_stage[at - first] = smallest(of_step, num_steps, int(share * (num_steps - 1)))
        usual = smallest(of_stage, end - first, (end - first - 1) // 2)
        for at in range(first, end):
            usual_s[order[at]] = usual
        first = end
