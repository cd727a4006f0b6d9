"""GPU health (clock, temperature, power, XID) from NVML, by ctypes."""

from __future__ import annotations

import ctypes
import logging
import os
import sys
import time
from collections.abc import Callable
from typing import Any

LIBRARY = "libnvidia-ml.so.1"
READ_EVERY_S = 1.0  # NVML averages over as long; one reading takes 0.1 ms
CLOCK_OF_SM, TEMPERATURE_OF_GPU, XID_EVENT = 1, 0, 0x8

log = logging.getLogger("paceline_client")


class _Event(ctypes.Structure):
    _fields_ = (
        ("device", ctypes.c_void_p),
        ("event_type", ctypes.c_ulonglong),
        ("event_data", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class Gpu:
    """One GPU; readings that it does not support are left out."""

    def __init__(self, library: Any, device: ctypes.c_void_p) -> None:
        self._library = library
        self._device = device
        self._events = self._xid_events()

    def reading(self) -> dict[str, int]:
        """Current clock, temperature and power, and the last XID since the previous reading."""
        ask, device = self._query, self._device
        milliwatts = ask("nvmlDeviceGetPowerUsage", device)
        found = {
            "sm_clock_mhz": ask("nvmlDeviceGetClockInfo", device, CLOCK_OF_SM),
            "temperature_c": ask("nvmlDeviceGetTemperature", device, TEMPERATURE_OF_GPU),
            "power_w": None if milliwatts is None else round(milliwatts / 1000),
            "xid": self._last_xid(),
        }
        return {name: value for name, value in found.items() if value is not None}

    def _query(self, function: str, *arguments: Any) -> int | None:
        value = ctypes.c_uint()
        failed = getattr(self._library, function)(*arguments, ctypes.byref(value))
        return None if failed else int(value.value)

    def _xid_events(self) -> ctypes.c_void_p | None:
        events, library = ctypes.c_void_p(), self._library
        if library.nvmlEventSetCreate(ctypes.byref(events)):
            return None
        kind = ctypes.c_ulonglong(XID_EVENT)
        failed = library.nvmlDeviceRegisterEvents(self._device, kind, events)
        return None if failed else events

    def _last_xid(self) -> int | None:
        """The newest XID (an error number); None without an error."""
        xid, event = None, _Event()
        while self._events is not None:
            if self._library.nvmlEventSetWait_v2(self._events, ctypes.byref(event), 0):
                break
            if event.event_type == XID_EVENT:
                xid = int(event.event_data)
        return xid


class GpuReadings:
    """The newest reading of this process's GPU; read on the sender's thread."""

    def __init__(self, load: Callable[[], Any] | None = None) -> None:
        self._load = load or (lambda: ctypes.CDLL(LIBRARY))
        self._device_id: str | None = None
        self._gpu: Gpu | None = None
        self._next_s = 0.0
        self._newest: dict[str, int] = {}
        self.is_placed = False

    def place(self) -> None:
        """Find out which GPU training uses, once CUDA is initialised; runs on training's thread."""
        torch = sys.modules.get("torch")
        if torch is None or not torch.cuda.is_initialized():
            return
        self.is_placed = True
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        self._device_id = device_identity(properties)

    def poll(self) -> None:
        """Read if that is due; a GPU that failed once is not read again."""
        if not self.is_placed or self._device_id is None or time.monotonic() < self._next_s:
            return
        self._next_s = time.monotonic() + READ_EVERY_S
        try:
            self._gpu = self._gpu or open_gpu(self._load(), self._device_id)
            # An XID stays until it is taken, unless there is a newer one.
            self._newest = {**_xid_alone(self._newest), **self._gpu.reading()}
        except Exception as error:
            self._device_id, self._newest = None, {}
            log.debug("paceline: no readings of the GPU: %s", error)

    def take(self) -> dict[str, int]:
        """The newest reading; an XID is returned once."""
        newest = self._newest
        self._newest = {name: value for name, value in newest.items() if name != "xid"}
        return newest


def device_identity(properties: Any) -> str | None:
    """UUID or PCI address of a CUDA device.

    Not its index: CUDA numbers only the devices in CUDA_VISIBLE_DEVICES, in its own order.
    """
    uuid = getattr(properties, "uuid", None)
    if uuid is not None:
        text = str(uuid)
        return text if text.startswith(("GPU-", "MIG-")) else f"GPU-{text}"
    bus = getattr(properties, "pci_bus_id", None)
    if bus is None:
        return None
    domain = getattr(properties, "pci_domain_id", 0)
    return f"{domain:08X}:{bus:02X}:{getattr(properties, 'pci_device_id', 0):02X}.0"


def open_gpu(library: Any, device_id: str) -> Gpu:
    """The GPU of a UUID or PCI address.

    Raises:
        OSError: NVML does not work here, or knows no such GPU.
    """
    if library.nvmlInit_v2():
        raise OSError("NVML cannot be initialised")
    device = ctypes.c_void_p()
    by_uuid = device_id.startswith(("GPU-", "MIG-"))
    find = (
        library.nvmlDeviceGetHandleByUUID if by_uuid else library.nvmlDeviceGetHandleByPciBusId_v2
    )
    if find(os.fsencode(device_id), ctypes.byref(device)):
        raise OSError(f"NVML knows no GPU {device_id}")
    return Gpu(library, device)


def _xid_alone(reading: dict[str, int]) -> dict[str, int]:
    return {name: value for name, value in reading.items() if name == "xid"}
