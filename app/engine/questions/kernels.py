"""Changes of whole rows of durations: the only part of a question that touches every lane.

Before an edit the durations of row r are `level_s[r]` in all lanes or, where that is NaN, row
`before[r]` of `edited_s` or, where that is negative, row r of `recorded_s`. After it they are row
`after[r]` of `edited_s`. Of row r the lanes are changed where `mask[stage[r]]` holds.
"""

import numpy as np

from app.engine.compiled import kernel


@kernel
def change_rows(  # type: ignore[no-untyped-def]
    recorded_s, edited_s, rows, level_s, before, after, mask, reach, stage,
    factor, shift_s, least_s,
):  # fmt: skip
    """Some `rows`: `factor` times as long and `shift_s[row]` longer, but at least `least_s`.

    What is below `least_s` before may stay so. `reach` [stages, 2] is from where to where the
    mask has anything.
    """
    for row in rows:
        _fill(recorded_s, edited_s, row, level_s, before, after)
        here, mine = stage[row], after[row]
        for lane in range(reach[here, 0], reach[here, 1]):
            was_s = edited_s[mine, lane]
            changed_s = max(min(least_s, was_s), was_s * factor + shift_s[row])
            edited_s[mine, lane] = changed_s if mask[here, lane] else was_s


@kernel
def copy_rows(  # type: ignore[no-untyped-def]
    recorded_s, edited_s, rows, level_s, before, after, mask, reach, stage,
    twin, dp_rank, num_steps,
):  # fmt: skip
    """Some `rows`: as long as row `twin[row]` is on one dp rank in the same step."""
    theirs_s = np.empty(num_steps)
    for row in rows:
        _fill(recorded_s, edited_s, row, level_s, before, after)
        here, mine, other = stage[row], after[row], twin[row]
        # What is copied from is itself only given what it has, so the order of rows is no matter.
        for step in range(num_steps):
            if not np.isnan(level_s[other]):
                theirs_s[step] = level_s[other]
            elif before[other] < 0:
                theirs_s[step] = recorded_s[other, dp_rank * num_steps + step]
            else:
                theirs_s[step] = edited_s[before[other], dp_rank * num_steps + step]
        step = reach[here, 0] % num_steps
        for lane in range(reach[here, 0], reach[here, 1]):
            if mask[here, lane]:
                edited_s[mine, lane] = theirs_s[step]
            step = step + 1 if step + 1 < num_steps else 0


@kernel
def _fill(recorded_s, edited_s, row, level_s, before, after):  # type: ignore[no-untyped-def]
    if not np.isnan(level_s[row]):
        edited_s[after[row], :] = level_s[row]
    elif before[row] < 0:
        edited_s[after[row], :] = recorded_s[row]
