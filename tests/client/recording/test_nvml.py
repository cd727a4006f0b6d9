"""Readings of the GPU that this process uses, from a fake NVML."""

import ctypes
import sys

import pytest
from paceline_client.recorder import Recorder
from paceline_client.recording.buffer import Buffer
from paceline_client.recording.nvml import GpuReadings, device_identity


class FakeNvml:
    """Two GPUs, found by UUID or PCI address; results are written to pointers as in C."""

    def __init__(self):
        self.known = {b"GPU-aa": 1, b"GPU-bb": 2, b"00000000:3B:00.0": 2}
        self.figures = {1: (1980, 40, 120_000), 2: (1200, 88, 699_600)}
        self.xids = []
        self.fails = set()

    def nvmlInit_v2(self):  # noqa: N802
        return 9 if "init" in self.fails else 0

    def _handle(self, name, device):
        if name not in self.known:
            return 6
        device._obj.value = self.known[name]
        return 0

    nvmlDeviceGetHandleByUUID = nvmlDeviceGetHandleByPciBusId_v2 = _handle  # noqa: N815

    def _figure(self, at, device, into):
        if at in self.fails:
            return 3
        into._obj.value = self.figures[device.value][at]
        return 0

    def nvmlDeviceGetClockInfo(self, device, kind, into):  # noqa: N802
        assert kind == 1
        return self._figure(0, device, into)

    def nvmlDeviceGetTemperature(self, device, kind, into):  # noqa: N802
        assert kind == 0
        return self._figure(1, device, into)

    def nvmlDeviceGetPowerUsage(self, device, into):  # noqa: N802
        return self._figure(2, device, into)

    def nvmlEventSetCreate(self, into):  # noqa: N802
        into._obj.value = 77
        return 3 if "events" in self.fails else 0

    def nvmlDeviceRegisterEvents(self, device, kinds, events):  # noqa: N802
        assert (kinds.value, events.value) == (8, 77)
        return 0

    def nvmlEventSetWait_v2(self, events, into, timeout_ms):  # noqa: N802
        assert timeout_ms == 0
        if not self.xids:
            return 10
        into._obj.event_type, into._obj.event_data = 8, self.xids.pop(0)
        return 0


class Properties:
    def __init__(self, **fields):
        self.__dict__.update(fields)


class FakeTorch:
    """The process sees one GPU, index 0; only the UUID identifies it on the host."""

    def __init__(self, **fields):
        self.cuda = self
        self._fields = fields

    def is_initialized(self):
        return True

    def current_device(self):
        return 0

    def get_device_properties(self, number):
        assert number == 0
        return Properties(**self._fields)


def readings_of(library, monkeypatch, **fields):
    monkeypatch.setitem(sys.modules, "torch", FakeTorch(**fields))
    readings = GpuReadings(lambda: library)
    readings.place()
    return readings


def test_gpu_is_found_by_uuid_and_not_by_index(monkeypatch):
    readings = readings_of(FakeNvml(), monkeypatch, uuid="bb")
    readings.poll()
    assert readings.take() == {"sm_clock_mhz": 1200, "temperature_c": 88, "power_w": 700}


def test_gpu_without_a_uuid_is_found_by_its_pci_address(monkeypatch):
    readings = readings_of(FakeNvml(), monkeypatch, pci_bus_id=0x3B, pci_device_id=0)
    readings.poll()
    assert readings.take()["temperature_c"] == 88


@pytest.mark.parametrize(
    ("fields", "identity"),
    [
        ({"uuid": "aa-1"}, "GPU-aa-1"),
        ({"uuid": "GPU-aa"}, "GPU-aa"),
        ({"pci_domain_id": 1, "pci_bus_id": 0xAF, "pci_device_id": 2}, "00000001:AF:02.0"),
        ({"name": "no more is known"}, None),
    ],
)
def test_device_identity_is_the_uuid_or_the_pci_address(fields, identity):
    assert device_identity(Properties(**fields)) == identity


def test_unavailable_readings_are_omitted(monkeypatch):
    library = FakeNvml()
    library.fails |= {0, 2, "events"}
    readings = readings_of(library, monkeypatch, uuid="aa")
    readings.poll()
    assert readings.take() == {"temperature_c": 40}


def test_an_xid_survives_later_polls_and_is_reported_once(monkeypatch):
    library = FakeNvml()
    library.xids = [13, 79]
    readings = readings_of(library, monkeypatch, uuid="aa")
    for _ in range(2):
        readings.poll()
        readings._next_s = 0.0
    assert readings.take()["xid"] == 79
    assert "xid" not in readings.take()


@pytest.mark.parametrize(("uuid", "fails"), [("cc", ""), ("aa", "init")])
def test_unavailable_gpu_gives_no_readings(monkeypatch, uuid, fails):
    library = FakeNvml()
    library.fails.add(fails)
    readings = readings_of(library, monkeypatch, uuid=uuid)
    readings.poll()
    assert readings.take() == {}


def test_missing_nvml_library_gives_no_readings(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", FakeTorch(uuid="aa"))

    def load():
        raise OSError("libnvidia-ml.so.1: cannot open shared object file")

    readings = GpuReadings(load)
    readings.place()
    readings.poll()
    assert readings.take() == {}


def test_readings_join_the_optimizer_and_keep_given_values(monkeypatch):
    readings = readings_of(FakeNvml(), monkeypatch, uuid="aa")
    buffer = Buffer(100, 60.0)
    buffer.readings = readings.take
    run = Recorder(buffer, None, readings=readings)
    readings.poll()
    with run.step(1):
        with run.op("forward-compute"):
            pass
        with run.op("optimizer", sm_clock_mhz=5):
            pass
    taken = buffer.take()
    assert taken is not None
    forward, optimizer = taken.ops
    assert forward[7] is None
    assert optimizer[7] == {"sm_clock_mhz": 5, "temperature_c": 40, "power_w": 120}


def test_event_struct_layout_matches_the_nvml_header():
    from paceline_client.recording.nvml import _Event

    assert ctypes.sizeof(_Event) == 32
    assert (_Event.event_type.offset, _Event.event_data.offset) == (8, 16)
