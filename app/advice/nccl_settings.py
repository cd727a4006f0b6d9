"""NCCL settings to paste that record more of what its collectives do."""

from app.advice.fix import Paste

RECORD_COLLECTIVES = Paste(
    "NCCL: record every collective, for a look by hand",
    "export NCCL_PROFILER_PLUGIN=/path/to/libnccl-profiler-inspector.so\n"
    "export NCCL_INSPECTOR_ENABLE=1\n"
    "export NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS=500\n"
    "export NCCL_INSPECTOR_DUMP_DIR=DIR",
)
SHOW_COMMUNICATORS = Paste("NCCL: state of the communicators", "ncclras -f json")
FORCE_RING = Paste(
    "NCCL: is the all-reduce a ring? If this makes it slower, it is not", "export NCCL_ALGO=Ring"
)
