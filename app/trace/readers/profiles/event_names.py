"""Names of events in profiles of several PyTorch versions and vendors."""

import re

# Roles of events; other events are skipped.
HOST_OP, ANNOTATION, LAUNCH, KERNEL, COPY, MARK = range(6)

# By category in lower case. Until 2021 files said "Kernel", "Memcpy", "Runtime" and "Operator".
# ROCm's profiler keeps the names of CUDA's categories, with HIP functions in them.
ROLES = {
    "cpu_op": HOST_OP,
    "operator": HOST_OP,
    "user_annotation": ANNOTATION,
    "gpu_user_annotation": MARK,
    "cuda_runtime": LAUNCH,
    "cuda_driver": LAUNCH,
    "hip_runtime": LAUNCH,
    "xpu_runtime": LAUNCH,
    "xpu_driver": LAUNCH,
    "privateuse1_runtime": LAUNCH,
    "privateuse1_driver": LAUNCH,
    "mtia_runtime": LAUNCH,
    "runtime": LAUNCH,
    "kernel": KERNEL,
    "gpu_memcpy": COPY,
    "gpu_memset": COPY,
    "memcpy": COPY,
    "memset": COPY,
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

_OPTIMIZER = re.compile(r"Optimizer\.step#")
_COMMUNICATION = re.compile(r"nccl|rccl|mscclpp|oneccl|hccl|deep_ep|nvshmem", re.IGNORECASE)
_TRAINING_OP = re.compile(r"Backward|autograd::engine|Optimizer\.(?:step|zero_grad)#")
# Not "dgrad": transposed convolutions have it in inference, too.
_TRAINING_KERNEL = re.compile(r"backward|_bwd|bwd_|multi_tensor_apply|FusedAdam", re.IGNORECASE)
_SERVING = re.compile(r"vllm|sglang|trtllm|tensorrt_llm|paged_attention", re.IGNORECASE)
_LOADER = re.compile(r"enumerate\(DataLoader\)#|DataLoader.*__next__")
_LAUNCH = re.compile(r"launch|memcpy|memset", re.IGNORECASE)
_ANNOTATED_COLLECTIVE = "nccl:"
COALESCED = "nccl:coalesced"
COMMUNICATION_OP = "record_param_comms"

# What PyTorch, NCCL's kernels and annotations call the same collective, in letters alone.
_KINDS = (
    ("all-reduce", re.compile(r"^allreduce")),
    ("reduce-scatter", re.compile(r"^_?reducescatter")),
    ("all-gather", re.compile(r"^_?allgather")),
    ("all-to-all", re.compile(r"^alltoall")),
    ("broadcast", re.compile(r"^_?broadcast")),
    ("reduce", re.compile(r"^_?reduce")),
    ("gather", re.compile(r"^gather")),
    ("scatter", re.compile(r"^scatter")),
    ("barrier", re.compile(r"^barrier")),
    ("send", re.compile(r"^send")),
    ("recv", re.compile(r"^recv")),
)
_KERNEL_KIND = re.compile(r"(?:nccl|rccl)\w*?Kernel_(\w+?)_", re.IGNORECASE)
ITEM_BYTES = {
    "float": 4,
    "int": 4,
    "double": 8,
    "long": 8,
    "half": 2,
    "bfloat16": 2,
    "short": 2,
    "byte": 1,
    "char": 1,
    "bool": 1,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2fnuz": 1,
    "complexfloat": 8,
    "complexdouble": 16,
}


def is_optimizer(name: str) -> bool:
    """Whether the range is a torch optimizer's step."""
    return bool(_OPTIMIZER.match(name))


def is_communication(kernel: str) -> bool:
    """Whether a kernel of this name communicates with other ranks."""
    return bool(_COMMUNICATION.search(kernel[:256]))


def is_training_op(name: str) -> bool:
    """Whether the operation is of a backward pass or an optimizer."""
    return bool(_TRAINING_OP.search(name))


def is_training_kernel(name: str) -> bool:
    """Whether a kernel of this name belongs to a backward pass or an optimizer."""
    return bool(_TRAINING_KERNEL.search(name[:1024]))


def is_serving(name: str) -> bool:
    """Whether the name is of an LLM inference server."""
    return bool(_SERVING.search(name[:1024]))


def is_loader(name: str) -> bool:
    """Whether the range is the wait for PyTorch's data loader."""
    return bool(_LOADER.match(name))


def is_launch(function: str) -> bool:
    """Whether a runtime or driver call launches GPU work."""
    return bool(_LAUNCH.search(function))


def annotated_collective(name: str) -> str | None:
    """The collective that an annotation of PyTorch such as `nccl:all_reduce` names."""
    found = name.startswith(_ANNOTATED_COLLECTIVE)
    return name.removeprefix(_ANNOTATED_COLLECTIVE) if found else None


def kind_of(collective: str) -> str:
    """Normalised name of a collective; unchanged if unknown."""
    letters = collective.lower().replace("_", "").replace("-", "")[:64]
    found = next((kind for kind, pattern in _KINDS if pattern.match(letters)), "")
    return found or collective[:64]


def kind_of_kernel(kernel: str) -> str:
    """The collective in the name of NCCL's kernel; "" where it names none."""
    found = _KERNEL_KIND.search(kernel[:256])
    if found is None or found[1].lower() in ("generic", "sendrecv"):
        return ""
    return kind_of(found[1])
