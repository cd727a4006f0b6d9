"""What may be told of an operation beside its times: of its work, and of the GPU when it ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

TOLD = ("tokens", "seq_len_sq", "bytes", "sm_clock_mhz", "temperature_c")
GPU_HEALTH = ("power_w", "xid")  # only for servers that say that they know these columns
WAITS = ("contains_waits",)  # likewise; and operations of this type:
WAIT = "wait"
KNOWN = frozenset(TOLD + GPU_HEALTH + WAITS)
LARGEST = 2**53

NOTHING: dict[str, int] = {}  # told of most operations: one for all, never written to


def told_of(values: Mapping[str, Any]) -> dict[str, int]:
    """Those that the format knows and can hold, as whole numbers.

    One that is none, say of a GPU that does not answer, must not cost the operation its times. A
    tensor on a GPU is not looked at: that would make training wait for the GPU.
    """
    found = {}
    for name, value in values.items():
        try:
            number = -1 if getattr(value, "is_cuda", False) else int(value)
        except Exception:  # noqa: S112 - a tensor of several elements raises what it likes
            continue
        if name in KNOWN and 0 <= number <= LARGEST:
            found[name] = number
    return found or NOTHING
