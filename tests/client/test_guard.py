"""Errors of the recorder's own code: training sees none of them."""

import pytest
from paceline_client import guard
from paceline_client.integrations.computing import current_computation

from tests.client.recorders import WITHIN_S, recorder


@pytest.fixture(autouse=True)
def _first_error(monkeypatch):
    monkeypatch.setattr(guard, "_has_warned", False)


def test_an_error_of_its_own_ends_recording_with_one_warning(paceline, caplog):
    run = recorder(paceline.url)
    with run.step(0), run.op("forward-compute"):
        pass
    assert run.flush(WITHIN_S)
    num_ops = len(paceline.ops)
    run._buffer.items = None
    for step in range(1, 4):
        with run.step(step), run.op("forward-compute"):
            pass
    assert not run.is_recording
    assert len(paceline.ops) == num_ops
    ours = [each for each in caplog.records if "an error of its own" in each.getMessage()]
    assert len(ours) == 1


def test_a_hook_whose_recorder_raises_does_not(caplog):
    class Broken:
        def begin(self, *_, **__):
            raise RuntimeError("nobody thought of this")

        end = begin

    computing = current_computation(broken := Broken())
    computing.begin("forward-compute")
    computing.end()
    assert broken is not None
    assert any("nobody thought of this" in each.getMessage() for each in caplog.records)
