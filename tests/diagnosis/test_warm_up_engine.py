import subprocess
import sys

import pytest

# In a process of its own, in which nothing has been compiled or loaded yet.
USES = """
import tempfile
from pathlib import Path
from app.engine.kernels import KERNELS
from app.diagnosis.warm_up import warm_up_engine

warm_up_engine()
seen = {id(each): list(each.signatures) for each in KERNELS}
assert KERNELS

from app.engine.questions.answer import Questions
from app.engine.questions.edits import Edit, Factor, FromWorker, Ideal, Selection, Set
from app.engine.replays import prepare
from app.engine.report import analyse_replay
from app.engine.timeline.step_run import RUN_KINDS, play_step
from app.synth.job import SimulatedJob
from app.trace.job import Parallelism
from app.trace.readers.published import trace_files
from app.trace.window import Window
from tests.engine.arrivals.ddp_windows import ddp

made = SimulatedJob(Parallelism(4, 2, ep_size=2), 3)
folder = Path(tempfile.mkdtemp())
trace_files.write(made.make([3, 4]), made.job, folder / "trace-made.parquet")
held = Window(made.job, 1, 3, (3, 4), made.make([3, 4]))
# With `wait` spans, a late rank, and kernels that hold up its peers.
late = ddp([1.0, 1.6, 1.0, 1.0], held=True, steps=5)
for window in (held, trace_files.read(folder / "trace-made.parquet"), late):
    replay = prepare(window)
    analyse_replay(replay)
    if window is late:
        continue
    for kind in RUN_KINDS:
        play_step(replay.groups[0], 4, kind)
    edits = [
        Edit(Set(0.0), Selection(op_types=("pp-comm",))),
        Edit(Factor(0.5), Selection(workers=((1, 1),))),
        Edit(Ideal(), Selection(steps=(3,))),
        Edit(FromWorker(0, 0), Selection(dp_ranks=(2,))),
    ]
    Questions(replay).answer(edits)
from tests.ingest.factories import assembler, feed, step_batches

feed(assembler(), step_batches(0))
late = [each.__name__ for each in KERNELS if list(each.signatures) != seen[id(each)]]
assert not late, f"compiled for a request: {late}"
"""


@pytest.mark.nightly
def test_engine_warm_up_compiles_every_engine_kernel():
    done = subprocess.run(
        [sys.executable, "-c", USES], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
