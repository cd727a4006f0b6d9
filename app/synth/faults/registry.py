"""All faults of simulated jobs, by name."""

from app.synth.faults import interruptions, slow_compute, slow_network
from app.synth.faults.fault import Fault
from app.synth.faults.sequence_imbalance import SequenceImbalance

FAULTS: dict[str, type[Fault]] = {
    fault.name: fault
    for fault in (
        slow_compute.SlowWorker,
        slow_compute.ThrottlingGpu,
        slow_compute.SlowHost,
        slow_compute.MixedGpus,
        slow_compute.SlowStage,
        slow_compute.LongLastStage,
        SequenceImbalance,
        interruptions.GcPauses,
        interruptions.PlannedGc,
        slow_network.SlowLink,
        slow_network.SlowNic,
        slow_network.SlowDpGroup,
        slow_network.FlappingNic,
        interruptions.DataLoading,
        interruptions.AllocatorStalls,
        interruptions.CpuContention,
        interruptions.CheckpointStalls,
        interruptions.JobStop,
        slow_compute.UniformSlowdown,
        interruptions.SilentWorker,
    )
}
