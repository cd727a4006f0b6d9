"""Changes of whole rows of durations: the only part of a question that touches every lane.

Before an edit the durations of row r are `level_s[r]` in all lanes or, where that is NaN, row
`before[r]` of `edited_s` or, where that is negative, row r of `recorded_s`. After it they are row
`after[r]` of `edited_s`. Of row r the lanes are changed where `mask[stage[r]]` holds.
"""

import numpy as np

from app.engine.compiled import kernel


@kernel
def change_rows(  # type: ignore[no-untyped-def]
    recorded_s, edited_s, rows, level_s, before, after, mask, stage, factor, shift_s, least_s
):
    """Some `rows`: `factor` times as long and `shift_s[row]` longer, but at least `least_s`."""
    for row in rows:
        mine_s, here = edited_s[after[row]], mask[stage[row]]
        if not np.isnan(level_s[row]):
            mine_s[:] = level_s[row]
        elif before[row] < 0:
            mine_s[:] = recorded_s[row]
        for lane in range(mine_s.size):
            changed_s = max(least_s, mine_s[lane] * factor + shift_s[row])
            mine_s[lane] = changed_s if here[lane] else mine_s[lane]


@kernel
def copy_rows(  # type: ignore[no-untyped-def]
    recorded_s, edited_s, rows, level_s, before, after, mask, stage, twin, dp_rank, num_steps
):
    """Some `rows`: as long as row `twin[row]` is on one dp rank in the same step."""
    for row in rows:
        mine_s, here, other = edited_s[after[row]], mask[stage[row]], twin[row]
        if not np.isnan(level_s[row]):
            mine_s[:] = level_s[row]
        elif before[row] < 0:
            mine_s[:] = recorded_s[row]
        # What is copied from is itself only given what it has, so the order of rows is no matter.
        for lane in range(mine_s.size):
            if here[lane]:
                at = dp_rank * num_steps + lane % num_steps
                if not np.isnan(level_s[other]):
                    mine_s[lane] = level_s[other]
                elif before[other] < 0:
                    mine_s[lane] = recorded_s[other, at]
                else:
                    mine_s[lane] = edited_s[before[other], at]
