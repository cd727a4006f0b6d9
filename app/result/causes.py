"""The causes that a finding may name."""

CAUSES = (
    "slow-worker",
    "late-host",
    "stage-imbalance",
    "sequence-imbalance",
    "expert-imbalance",
    "gc-pause",
    "slow-link",
    "flapping-link",
    "data-loading",
    "allocator-stall",
    "cpu-contention",
    "checkpoint-stall",
    "job-stop",
    "uniform-slowdown",
    "silent-worker",
)

# The cause that names missing workers.
SILENT = "silent-worker"
