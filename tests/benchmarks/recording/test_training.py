"""Figures of `python -m benchmarks torch` from what runs print; test_pipeline trains."""

import os

import pytest

from benchmarks.recording.training import figures
from tests.harness.ranks import TrainingFailed, run_ranks

WITHIN_S = 30.0


def _run(step_s, ops=0, recording_s=0.0):
    return {"step_s": step_s, "ops": ops, "recording_s": recording_s}


def test_cost_share_is_operations_per_step_times_cost_per_operation():
    # Two runs of 4 steps, the first of which is not timed: 8 steps, 240 operations, 2 us each.
    recorded = [_run([0.1, 0.1, 0.1], ops=120, recording_s=240e-6)] * 2
    found = figures(recorded, [_run([0.1, 0.1, 0.1])] * 2)
    assert found["ops_per_step"] == 30
    assert found["cost_per_op_us"] == pytest.approx(2.0)
    assert found["step_s"] == 0.1
    assert found["cost_share"] == pytest.approx(30 * 2e-6 / 0.1)


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Writes a module with this `main`; returns its name."""
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")

    def write(*lines):
        body = "\n".join(f"    {line}" for line in lines)
        (tmp_path / "program.py").write_text(f"import os, signal\n\n\ndef main():\n{body}\n")
        return "program"

    return write


def test_failed_rank_ends_the_other_ranks(program, tmp_path):
    module = program(
        'print("here", flush=True)',
        'assert os.environ["RANK"] != "1", "out of memory"',
        "signal.pause()",
    )
    with pytest.raises(TrainingFailed, match="a rank ended with an error") as failed:
        run_ranks(module, [], 3, tmp_path, WITHIN_S)
    assert "out of memory" in failed.value.output


def test_hanging_ranks_are_killed_at_the_time_limit(program, tmp_path):
    module = program("signal.pause()")
    with pytest.raises(TrainingFailed, match=r"not done in 0\.5 s"):
        run_ranks(module, [], 2, tmp_path, 0.5)
