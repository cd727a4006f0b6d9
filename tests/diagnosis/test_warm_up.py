import subprocess
import sys

# In a process of its own, in which nothing has been compiled or loaded yet.
USES = """
from app.engine.kernels import KERNELS
from app.diagnosis.warm_up import warm_up

warm_up()
seen = {id(each): list(each.signatures) for each in KERNELS}

from app.diagnosis.job_history import History
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

FAULTS = (
    (),
    (ThrottlingGpu(0, 1, 2.0, ramp_steps=8, when=FaultSteps(4)), SlowLink(1, 0, 30.0)),
    (SequenceImbalance(), GcPauses(rate=0.2)),
)
for faults in FAULTS:
    made = SimulatedJob(Parallelism(4, 2, 8), 6, faults=faults, cluster=Cluster())
    analysed(made.record(range(16)).window(), History())
analysed(ddp([1.0, 1.6, 1.0, 1.0], held=True, steps=8), History())
late = [each.__name__ for each in KERNELS if list(each.signatures) != seen[id(each)]]
assert not late, f"compiled for a window: {late}"
"""


def test_warm_up_compiles_every_kernel():
    done = subprocess.run(
        [sys.executable, "-c", USES], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_warm_up_that_is_stopped_compiles_nothing_more():
    used = "import threading\nfrom app.engine.kernels import KERNELS\n"
    used += "from app.diagnosis.warm_up import start_warm_up\n"
    used += "stop = threading.Event()\nstop.set()\nstart_warm_up(stop)\n"
    used += "[thread.join() for thread in threading.enumerate() if thread.name == 'warm-up']\n"
    used += "assert not any(each.signatures for each in KERNELS)\n"
    subprocess.run([sys.executable, "-c", used], check=True)


def test_process_waits_for_its_warm_up():
    # A daemon thread that ends inside of the compiler aborts the process.
    used = "import threading\nfrom app.diagnosis.warm_up import start_warm_up\n"
    used += "start_warm_up(threading.Event())\n"
    used += "assert not any(thread.daemon for thread in threading.enumerate())\n"
    subprocess.run([sys.executable, "-c", used], check=True)
