"""Optional attributes of an operation: its work, and the state of the GPU when it ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

WORK_ATTRIBUTES = ("tokens", "seq_len_sq", "bytes", "sm_clock_mhz", "temperature_c")
GPU_ATTRIBUTES = ("power_w", "xid")  # only for servers that accept "gpu_health"
WAIT_ATTRIBUTES = ("contains_waits",)  # only for servers that accept "waits"; and the type:
WAIT_OP = "wait"
LAUNCH_ATTRIBUTES = ("launch_lag_us",)  # only for servers that accept "launches"
ALL_ATTRIBUTES = frozenset(WORK_ATTRIBUTES + GPU_ATTRIBUTES + WAIT_ATTRIBUTES + LAUNCH_ATTRIBUTES)
# Of a lag 6 bits are sent, at least multiples of 16 us: two bytes an operation when packed. What
# counts is whether an operation was launched before or late within the one before it.
LAUNCH_LAG_BITS, LAUNCH_LAG_UNIT_BITS = 6, 4
MAX_LAUNCH_LAG_US = 2**24
MAX_ATTRIBUTE = 2**53

NO_ATTRIBUTES: dict[str, int] = {}  # shared by most operations; never written to


class MeasuredAttributes(dict[str, int]):
    """Attributes that the client measured itself, so that nothing has to be checked."""

    __slots__ = ()


def launch_attributes(lag_ns: int) -> MeasuredAttributes:
    """How long after its launch by the host an operation began on the GPU."""
    lag_us = min(max(0, lag_ns // 1000), MAX_LAUNCH_LAG_US)
    spare_bits = max(LAUNCH_LAG_UNIT_BITS, lag_us.bit_length() - LAUNCH_LAG_BITS)
    return MeasuredAttributes(launch_lag_us=lag_us >> spare_bits << spare_bits)


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
