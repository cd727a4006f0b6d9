"""Names of events in the files of torch.profiler, by several PyTorch versions and vendors."""

import re
from functools import lru_cache

from app.trace.collectives import RECEIVE, SEND

# Roles of events; other events are skipped.
HOST_OP, ANNOTATION, GPU_ANNOTATION, LAUNCH, KERNEL, COPY = range(6)

# Categories in lower case. Until 2021 files said "Kernel", "Memcpy", "Runtime" and "Operator".
# ROCm's profiler keeps the names of CUDA's categories, with HIP functions in them.
CATEGORIES = {
    HOST_OP: ("cpu_op", "operator"),
    ANNOTATION: ("user_annotation",),
    GPU_ANNOTATION: ("gpu_user_annotation",),
    LAUNCH: (
        *("runtime", "cuda_runtime", "hip_runtime", "xpu_runtime", "privateuse1_runtime"),
        *("mtia_runtime", "cuda_driver", "xpu_driver", "privateuse1_driver"),
    ),
    KERNEL: ("kernel",),
    COPY: ("gpu_memcpy", "gpu_memset", "memcpy", "memset"),
}
# Device events of formats that are not supported, with the device.
UNREAD_DEVICES = {
    "mtia_ccp_events": "MTIA",
    "mtia_workloadd": "MTIA",
    "mtia_insight": "MTIA",
    "hpu_op": "Gaudi (HPU)",
    "glow_runtime": "Glow",
    "tpu_op": "TPU",
}

# Beginnings of the names of ranges on the host.
STEP = re.compile(r"ProfilerStep\s*#\s*(\d{1,15})$")
OPTIMIZER = re.compile(r"Optimizer\.step#")
LOADER = re.compile(r"enumerate\(DataLoader\)#")
LOADER_OR_ITS_ITERATOR = re.compile(rf"{LOADER.pattern}|DataLoader.*__next__")
# torch.distributed.pipelining's schedules from a plan: stage of the whole model, kind, micro-batch.
PIPELINING = re.compile(r"PP:(\d{1,5})([FBIW])(\d{1,9})$")
PIPELINING_TYPES = {
    "F": "forward-compute",
    "B": "backward-compute",
    "I": "backward-input-compute",
    "W": "backward-weight-compute",
}
# Ranges of the profiler and of frameworks around operations or within them, which can be skipped.
WRAPPING = re.compile(
    r"Optimizer\.zero_grad#|PP:|FSDP::|nccl:|c10d::|PyTorch Profiler|DistributedDataParallel\."
)
COMMUNICATION_OP = "record_param_comms"
COALESCED = re.compile(r"nccl:coalesced")
ANNOTATED = re.compile(r"nccl:(?!coalesced)([^ ]*)")  # another collective

# Anywhere in a name.
COMMUNICATION = re.compile(r"nccl|rccl|mscclpp|oneccl|hccl|deep_ep|nvshmem", re.IGNORECASE)
TRAINING_OP = re.compile(r"Backward|autograd::engine|Optimizer\.(?:step|zero_grad)#")
# Not "dgrad": transposed convolutions have it in inference as well.
TRAINING_KERNEL = re.compile(r"backward|_bwd|bwd_|multi_tensor_apply|FusedAdam", re.IGNORECASE)
SERVING = re.compile(r"vllm|sglang|trtllm|tensorrt_llm|paged_attention", re.IGNORECASE)
GPU_LAUNCH = re.compile(r"launch|memcpy|memset", re.IGNORECASE)

# Kinds of collectives: names in PyTorch, NCCL's kernels and annotations begin with their letters.
_KINDS = (
    *("all-reduce", "reduce-scatter", "all-gather", "all-to-all", "broadcast"),
    *("reduce", "gather", "scatter", "barrier", SEND, RECEIVE),
)
_KERNEL_KIND = re.compile(r"(?:nccl|rccl)\w*?Kernel_(\w+?)_", re.IGNORECASE)
_FLOAT8 = ("e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz")
_TYPES_OF_BYTES = {
    1: ("byte", "char", "bool", *(f"float8_{kind}" for kind in _FLOAT8)),
    2: ("half", "bfloat16", "short"),
    4: ("float", "int"),
    8: ("double", "long", "complexfloat"),
    16: ("complexdouble",),
}
ITEM_BYTES = {name: size for size, names in _TYPES_OF_BYTES.items() for name in names}


def step_number(name: str) -> int | None:
    """The N of `ProfilerStep#N`; None for any other name."""
    step = STEP.match(name)
    return int(step[1]) if step else None


@lru_cache(1 << 10)
def kind_of(collective: str) -> str:
    """The kind of a collective by its name; the name itself, cut, if unknown."""
    letters = collective.lower().replace("_", "").replace("-", "")[:64]
    known = (kind for kind in _KINDS if letters.startswith(kind.replace("-", "")))
    return next(known, collective[:64])


def kind_of_kernel(kernel: str) -> str:
    """The collective in the name of an NCCL kernel, "" if there is none."""
    match = _KERNEL_KIND.search(kernel, 0, 256)
    return "" if match is None or match[1].lower() in ("generic", "sendrecv") else kind_of(match[1])
