"""Compile every kernel before a job needs it: at install, and again at the start of a process.

What is compiled is kept on disk, so that later processes only load it.
"""

from functools import cache

import numpy as np

from app.engine.questions.answer import Questions
from app.engine.questions.edits import Edit, Factor, FromWorker, Selection
from app.engine.replays import prepare
from app.engine.report import analyse_replay
from app.engine.run import RUN_KINDS, play
from app.trace.job import Job, Parallelism
from app.trace.ops import OP_CODES
from app.trace.window import Trace, Window

_OPS = ("forward-compute", "optimizer-clip-main-grad", "optimizer", "wait")
# A second each; the wait lies in the second half of the forward.
_START_S = np.array([0.0, 1.0, 2.0, 0.5])


@cache
def warm_up() -> None:
    """Returns once every kernel can be called without being compiled."""
    replay = prepare(_window())
    analyse_replay(replay)
    for kind in RUN_KINDS:
        play(replay.groups[0], 0, kind)
    edits = [
        Edit(Factor(2.0), Selection(dp_ranks=(1,))),
        Edit(FromWorker(0, 0), Selection(dp_ranks=(1,))),
    ]
    Questions(replay).answer(edits)


def _window() -> Window:
    """Two steps of two workers on two hosts, with some operations each."""
    step, dp_rank, op = (axis.ravel() for axis in np.mgrid[0:2, 0:2, 0 : len(_OPS)])
    zeros = np.zeros(step.size, np.int64)
    trace = Trace(
        step=step,
        dp_rank=dp_rank,
        stage=zeros,
        rank=dp_rank,
        optype=np.array([OP_CODES[name] for name in _OPS])[op],
        seq_id=zeros,
        mc=zeros - 1,
        mb_id=zeros - 1,
        start_s=_START_S[op],
        duration_s=np.ones(step.size),
    )
    job, hosts = Job.of("warm-up", Parallelism(2, 1)), {(0, 0): "a", (1, 0): "b"}
    return Window(job, 1, 0, (0, 1), trace, hosts=hosts, origin_ns=(0, 4 * 10**9))


if __name__ == "__main__":
    warm_up()
