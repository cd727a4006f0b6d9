"""Every fault that a made job can have, by its name."""

from app.synth.faults.allocator_stalls import AllocatorStalls
from app.synth.faults.data_loading import DataLoading
from app.synth.faults.fault import Fault
from app.synth.faults.flapping_nic import FlappingNic
from app.synth.faults.gc_pauses import GcPauses
from app.synth.faults.long_last_stage import LongLastStage
from app.synth.faults.mixed_gpus import MixedGpus
from app.synth.faults.planned_gc import PlannedGc
from app.synth.faults.sequence_imbalance import SequenceImbalance
from app.synth.faults.silent_worker import SilentWorker
from app.synth.faults.slow_dp_group import SlowDpGroup
from app.synth.faults.slow_host import SlowHost
from app.synth.faults.slow_link import SlowLink
from app.synth.faults.slow_nic import SlowNic
from app.synth.faults.slow_stage import SlowStage
from app.synth.faults.slow_worker import SlowWorker
from app.synth.faults.throttling_gpu import ThrottlingGpu
from app.synth.faults.uniform_slowdown import UniformSlowdown

FAULTS: dict[str, type[Fault]] = {
    fault.name: fault
    for fault in (
        SlowWorker,
        ThrottlingGpu,
        SlowHost,
        MixedGpus,
        SlowStage,
        LongLastStage,
        SequenceImbalance,
        GcPauses,
        PlannedGc,
        SlowLink,
        SlowNic,
        SlowDpGroup,
        FlappingNic,
        DataLoading,
        AllocatorStalls,
        UniformSlowdown,
        SilentWorker,
    )
}
