import subprocess
import sys

# In a process of its own, in which nothing has been compiled or loaded yet.
USES = """
from app.engine.compiled import KERNELS
from app.diagnosis.warm_up import warm_up

warm_up()
seen = {id(each): list(each.signatures) for each in KERNELS}

from app.diagnosis.history import History
from app.monitor import analysed
from app.synth.cluster import Cluster
from app.synth.faults.fault import When
from app.synth.faults.gc_pauses import GcPauses
from app.synth.faults.sequence_imbalance import SequenceImbalance
from app.synth.faults.slow_link import SlowLink
from app.synth.faults.throttling_gpu import ThrottlingGpu
from app.synth.run import MadeJob
from app.trace.job import Parallelism
from tests.engine.arrivals.made_ddp import ddp

FAULTS = (
    (),
    (ThrottlingGpu(0, 1, 2.0, ramp_steps=8, when=When(4)), SlowLink(1, 0, 30.0)),
    (SequenceImbalance(), GcPauses(rate=0.2)),
)
for faults in FAULTS:
    made = MadeJob(Parallelism(4, 2, 8), 6, faults=faults, cluster=Cluster())
    analysed(made.record(range(16)).window(), History())
analysed(ddp([1.0, 1.6, 1.0, 1.0], held=True, steps=8), History())
late = [each.__name__ for each in KERNELS if list(each.signatures) != seen[id(each)]]
assert not late, f"compiled for a window: {late}"
"""


def test_after_the_warm_up_nothing_is_left_to_be_compiled():
    done = subprocess.run(
        [sys.executable, "-c", USES], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
