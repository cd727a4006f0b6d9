"""Waits of the compute stream for a collective, where the device's times are recorded."""

from __future__ import annotations

from typing import Any

from ..cuda_span import CudaSpan


def begin_wait(recorder: Any, until: Any) -> CudaSpan | None:
    """The compute stream is about to wait for a collective, which `until` has recorded.

    None where there is nothing to record: hand the result to `CudaSpan.end_with`.
    """
    if not isinstance(until, CudaSpan) or not until.has_ended:
        return None
    begin = getattr(recorder, "begin_wait", None)  # a stand-in for a recorder may have none
    begun = begin() if begin is not None else None
    return begun if isinstance(begun, CudaSpan) else None
