"""A send that a worker holds back until its gradients are reduced (docs/replay.md, section 2).

DDP reduces its last buckets inside the last backward of a pipeline stage: the gradient of the
stage's input is there, and is sent on only when that backward returns.
"""

from app.engine.rules import AT_ONCE_S, SAME_MOMENT_S, Edge
from app.engine.rules.beside import GRADIENTS, beside
from app.engine.rules.end_of_step import last_compute
from app.engine.template import Template


def held_send(template: Template, stage: int, computes: dict[int, int]) -> list[Edge]:
    """The send of the last computation waits for gradients that ended between the two.

    `computes` has the computation of each of the stage's sends of one direction.
    """
    last = last_compute(template, stage)
    sends = sorted(computes)  # in recorded order
    held = [send for send in sends if computes[send] in last]
    if not held or not template.parallelism.is_data_parallel:
        return []
    since_s = float(template.end_s[last[0]])
    before = sends[: sends.index(held[0])][-1:]
    free_s = max([since_s, *(float(template.end_s[send]) for send in before)])
    # One that follows the send before it was queued, whatever else had ended by then.
    if template.start_s[held[0]] <= free_s + AT_ONCE_S:
        return []
    until_s = float(template.start_s[held[0]]) + SAME_MOMENT_S
    # Others come at the end of the step, where some wait for what other stages do with the send.
    names = [name for name in GRADIENTS if name in beside(template, stage).types]
    inside = [
        op
        for name in names
        for op in template.ops(stage, name)
        if since_s - SAME_MOMENT_S <= template.end_s[op] <= until_s
    ]
    return [(op, held[0]) for op in sorted(sorted(inside), key=template.end_s.__getitem__)[-1:]]
