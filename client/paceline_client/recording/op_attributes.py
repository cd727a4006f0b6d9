"""Optional attributes of an operation: its work, and the state of the GPU when it ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

WORK_ATTRIBUTES = ("tokens", "seq_len_sq", "bytes", "sm_clock_mhz", "temperature_c")
GPU_ATTRIBUTES = ("power_w", "xid")  # only for servers that accept "gpu_health"
WAIT_ATTRIBUTES = ("contains_waits",)  # only for servers that accept "waits"; and the type:
WAIT_OP = "wait"
ALL_ATTRIBUTES = frozenset(WORK_ATTRIBUTES + GPU_ATTRIBUTES + WAIT_ATTRIBUTES)
MAX_ATTRIBUTE = 2**53

NO_ATTRIBUTES: dict[str, int] = {}  # shared by most operations; never written to


def valid_attributes(values: Mapping[str, Any]) -> dict[str, int]:
    """The attributes that the format knows and can hold, as whole numbers; others are left out.

    A tensor on a GPU is not read: that would make training wait for the GPU.
    """
    found = {}
    for name, value in values.items():
        try:
            number = -1 if getattr(value, "is_cuda", False) else int(value)
        except Exception:  # noqa: S112 - a tensor of several elements may raise anything
            continue
        if name in ALL_ATTRIBUTES and 0 <= number <= MAX_ATTRIBUTE:
            found[name] = number
    return found or NO_ATTRIBUTES
