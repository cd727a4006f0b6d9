import subprocess
import sys

import pytest

# In a process of its own, in which nothing has been compiled or loaded yet.
USES = """
from app.engine.kernels import KERNELS
from app.diagnosis.warm_up import warm_up

warm_up()
seen = {id(each): list(each.signatures) for each in KERNELS}

from app.diagnosis.job_history import History
from app.engine.questions.answer import Questions
from app.engine.questions.edits import Edit, Factor, FromWorker, Selection, Set
from app.engine.replays import prepare
from app.engine.timeline.step_run import RUN_KINDS, play_step
from app.monitor import analysed
from app.synth.cluster import Cluster
from app.synth.faults.fault import FaultSteps
from app.synth.faults.interruptions import GcPauses
from app.synth.faults.sequence_imbalance import SequenceImbalance
from app.synth.faults.slow_network import SlowLink
from app.synth.faults.slow_compute import ThrottlingGpu
from app.synth.job import SimulatedJob
from app.trace.job import Parallelism
from tests.engine.arrivals.ddp_windows import ddp
from tests.ingest.factories import assembler, feed, step_batches

FAULTS = (
    (),
    (ThrottlingGpu(0, 1, 2.0, ramp_steps=8, when=FaultSteps(4)), SlowLink(1, 0, 30.0)),
    (SequenceImbalance(), GcPauses(rate=0.2)),
)
for faults in FAULTS:
    made = SimulatedJob(Parallelism(4, 2, 8), 6, faults=faults, cluster=Cluster())
    analysed(made.record(range(16)).window(), History())
replay = prepare(made.record(range(2)).window())
for kind in RUN_KINDS:
    play_step(replay.groups[0], 1, kind)
Questions(replay).answer([
    Edit(Set(0.0), Selection(op_types=("pp-comm",))),
    Edit(Factor(0.5), Selection(workers=((1, 1),))),
    Edit(FromWorker(0, 0), Selection(dp_ranks=(2,))),
])
feed(assembler(), step_batches(0))
analysed(ddp([1.0, 1.6, 1.0, 1.0], held=True, steps=8), History())
late = [each.__name__ for each in KERNELS if list(each.signatures) != seen[id(each)]]
assert not late, f"compiled for a window or a request: {late}"
"""


@pytest.mark.nightly
def test_warm_up_compiles_every_kernel():
    done = subprocess.run(
        [sys.executable, "-c", USES], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]


# A daemon thread that ends inside of the compiler aborts the process.
STOPPED = """
import threading
from app.diagnosis.warm_up import WarmUp
from app.engine.kernels import KERNELS

started = []
start = threading.Thread.start
threading.Thread.start = lambda thread: (started.append(thread), start(thread))
stop = threading.Event()
stop.set()
WarmUp(stop)
[warming] = started
assert not warming.daemon
warming.join()
assert not any(each.signatures for each in KERNELS)
"""


def test_stopped_warm_up_compiles_nothing_and_a_process_waits_for_it():
    subprocess.run([sys.executable, "-c", STOPPED], check=True)
