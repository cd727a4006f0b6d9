"""Compile every kernel of engine and diagnosis before a job needs it; see the engine's warm-up."""

from functools import cache

import numpy as np

from app.diagnosis.diagnose import diagnose
from app.diagnosis.history import History
from app.diagnosis.onset import changes
from app.engine import warm_up as engine
from app.engine.replays import prepare
from app.engine.report import analyse_replay
from app.trace.job import Job, Parallelism
from app.trace.ops import OP_CODES
from app.trace.window import Ints, Trace, Window

_NUM_STEPS, _NUM_MICROBATCHES = 8, 4
# What each stage does for a micro-batch, one a second.
_ONE_BY_ONE = (
    ("forward-compute", "forward-send", "backward-recv", "backward-compute"),
    ("forward-recv", "forward-compute", "backward-compute", "backward-send"),
)
_IN_THE_END = ("grads-reduce-scatter", "optimizer")


@cache
def warm_up() -> None:
    """Returns once every kernel can be called without being compiled."""
    engine.warm_up()
    window = _window()
    replay = prepare(window)
    diagnose(replay, analyse_replay(replay), History())
    changes(1 + np.clip(np.arange(40) / 20 - 0.5, 0.0, 1.0))


def _window() -> Window:
    """Steps of two dp ranks with two stages, of which one worker is slow in the end."""
    rows = np.array([(step, dp_rank, *op) for step in range(_NUM_STEPS) for dp_rank in range(2)
                     for op in _ops()], np.int64)  # fmt: skip
    step, dp_rank, stage, optype, seq_id, microbatch, start_s = rows.T
    zeros = np.zeros(step.size, np.int64)
    is_slow = (step >= _NUM_STEPS // 2) & (dp_rank == 1) & (stage == 0)
    trace = Trace(
        step=step,
        dp_rank=dp_rank,
        stage=stage,
        rank=2 * stage + dp_rank,
        optype=optype,
        seq_id=seq_id,
        mc=zeros,
        mb_id=microbatch,
        start_s=start_s.astype(np.float64),
        duration_s=np.where(is_slow, 0.9, 0.5),
        tokens=zeros + 1024,
        seq_len_sq=zeros + 1024**2 + _uneven(seq_id),
    )
    job, steps = Job.of("warm-up", Parallelism(2, 2)), tuple(range(_NUM_STEPS))
    return Window(job, 1, 0, steps, trace)


def _uneven(seq_id: Ints) -> Ints:
    return 4096 * (seq_id % 3)


def _ops() -> list[tuple[int, int, int, int, int]]:
    """Stage, code, seq_id, micro-batch and second of each operation of a replica."""
    found = []
    for microbatch in range(_NUM_MICROBATCHES):
        for stage, names in enumerate(_ONE_BY_ONE):
            for at, name in enumerate(names):
                # The first stage's backward waits for the second's.
                second = 6 * microbatch + at + (stage if at < 2 or stage else 2)
                found.append((stage, OP_CODES[name], microbatch, microbatch, second))
    for stage in range(len(_ONE_BY_ONE)):
        for at, name in enumerate(_IN_THE_END):
            found.append((stage, OP_CODES[name], 0, -1, 6 * _NUM_MICROBATCHES + at))
    return found


if __name__ == "__main__":
    warm_up()
