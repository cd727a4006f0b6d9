"""Figures of `python -m benchmarks torch` from what runs print; test_pipeline trains."""

import importlib.util
import os

import pytest

from app.errors import Unavailable
from benchmarks.recording.training import figures
from examples.torch_pipeline.metered import Metered
from tests.benchmarks.running import run_benchmark
from tests.harness.ranks import TrainingFailed, run_ranks
from tests.torch.test_hooks import Listing

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


def test_operation_of_the_example_ends_when_its_body_raises():
    recorder = Listing()
    metered = Metered(recorder)
    with pytest.raises(ArithmeticError), metered.op("optimizer"):
        raise ArithmeticError("no such gradients")
    assert recorder.said == ["optimizer -1/-1 begins", "optimizer -1/-1 ends"]
    assert metered.num_ops == 1


def test_difference_is_paired_and_has_a_confidence_interval():
    # Pairs of 1 %, 3 % and 2 %: mean 2 %, standard error 1 % / sqrt(3), t of 2 degrees 4.303.
    recorded = [_run([each], ops=1, recording_s=1e-6) for each in (1.01, 1.03, 2.04)]
    found = figures(recorded, [_run([1.0]), _run([1.0]), _run([2.0])])
    assert found["difference"] == pytest.approx(0.02)
    half = 4.303 * 0.01 / 3**0.5
    assert found["difference_interval_95"] == pytest.approx([0.02 - half, 0.02 + half])


def test_runs_without_recorded_operations_are_refused():
    with pytest.raises(Unavailable, match="nothing was recorded"):
        figures([_run([0.1, 0.1])] * 2, [_run([0.1, 0.1])] * 2)


def test_unknown_schedule_is_refused():
    result = run_benchmark("torch", "--schedule", "zigzag")
    assert result.exit_code == 2
    assert "zigzag" in result.output


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Writes a module with this `main`; returns its name."""
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")

    def write(*lines):
        body = "\n".join(f"    {line}" for line in lines)
        (tmp_path / "program.py").write_text(f"import os, signal\n\n\ndef main():\n{body}\n")
        return "program"

    return write


def test_each_rank_gets_its_number_and_its_output_is_returned(program, tmp_path):
    module = program('print(os.environ["RANK"], os.environ["WORLD_SIZE"])')
    assert run_ranks(module, [], 3, tmp_path, WITHIN_S) == ["0 3\n", "1 3\n", "2 3\n"]


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


def test_import_error_of_a_program_is_reported(tmp_path):
    with pytest.raises(TrainingFailed) as failed:
        run_ranks("no_such_program", [], 2, tmp_path, WITHIN_S)
    assert "No module named 'no_such_program'" in failed.value.output


@pytest.mark.skipif(
    importlib.util.find_spec("torch") is not None, reason="the message without PyTorch"
)
def test_missing_pytorch_names_the_package_to_install():
    result = run_benchmark("torch")
    assert result.exit_code != 0
    assert "pip install torch==2.13.0" in result.output
