"""All detectors. To add one: a file in app/diagnosis/detectors, and its line here."""

from app.diagnosis.detector import Detector
from app.diagnosis.detectors.allocator_stall import AllocatorStall
from app.diagnosis.detectors.data_loading import DataLoading
from app.diagnosis.detectors.flapping_link import FlappingLink
from app.diagnosis.detectors.gc_pause import GcPause
from app.diagnosis.detectors.late_host import LateHost
from app.diagnosis.detectors.sequence_imbalance import SequenceImbalance
from app.diagnosis.detectors.silent_worker import SilentWorker
from app.diagnosis.detectors.slow_link import SlowLink
from app.diagnosis.detectors.slow_worker import SlowWorker
from app.diagnosis.detectors.stage_imbalance import StageImbalance
from app.diagnosis.detectors.uniform_slowdown import UniformSlowdown
from app.diagnosis.detectors.waited_for import WaitedFor

DETECTORS: tuple[Detector, ...] = (
    SlowWorker(),
    StageImbalance(),
    SequenceImbalance(),
    GcPause(),
    SlowLink(),
    FlappingLink(),
    DataLoading(),
    AllocatorStall(),
    SilentWorker(),
    UniformSlowdown(),
)

# Asked where the others leave waiting for late ranks unexplained.
BY_ARRIVALS: tuple[Detector, ...] = (LateHost(), WaitedFor())
