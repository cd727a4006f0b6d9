"""Every fault that a simulated job can have, by name."""

from app.synth.faults.fault import Fault
from app.synth.faults.interruptions import (
    AllocatorStalls,
    CheckpointStalls,
    CpuContention,
    DataLoading,
    GcPauses,
    JobStop,
    PlannedGc,
    SilentWorker,
)
from app.synth.faults.sequence_imbalance import SequenceImbalance
from app.synth.faults.slow_compute import (
    LongLastStage,
    MixedGpus,
    SlowHost,
    SlowStage,
    SlowWorker,
    ThrottlingGpu,
    UniformSlowdown,
)
from app.synth.faults.slow_network import FlappingNic, SlowDpGroup, SlowLink, SlowNic

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
        CpuContention,
        CheckpointStalls,
        JobStop,
        UniformSlowdown,
        SilentWorker,
    )
}
