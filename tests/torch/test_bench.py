"""What `paceline bench torch` makes of what the runs say; the training is test_pipeline's."""

import importlib.util

import pytest
from typer.testing import CliRunner

from app.cli import app
from app.cli.bench.torch import figures


def _run(step_s, ops=0, recording_s=0.0):
    return {"step_s": step_s, "ops": ops, "recording_s": recording_s}


def test_the_cost_is_operations_of_a_step_times_what_one_costs():
    # Two runs of 4 steps, the first of which is not timed: 8 steps, 240 operations, 2 us each.
    recorded = [_run([0.1, 0.1, 0.1], ops=120, recording_s=240e-6)] * 2
    found = figures(recorded, [_run([0.1, 0.1, 0.1])] * 2)
    assert found["ops_per_step"] == 30
    assert found["cost_per_op_us"] == pytest.approx(2.0)
    assert found["step_s"] == 0.1
    assert found["cost_share"] == pytest.approx(30 * 2e-6 / 0.1)


def test_the_difference_comes_from_neighbouring_runs_with_its_interval():
    # Pairs of 1 %, 3 % and 2 %: mean 2 %, standard error 1 % / sqrt(3), t of 2 degrees 4.303.
    recorded = [_run([each], ops=1, recording_s=1e-6) for each in (1.01, 1.03, 2.04)]
    found = figures(recorded, [_run([1.0]), _run([1.0]), _run([2.0])])
    assert found["difference"] == pytest.approx(0.02)
    half = 4.303 * 0.01 / 3**0.5
    assert found["difference_interval_95"] == pytest.approx([0.02 - half, 0.02 + half])


@pytest.mark.skipif(
    importlib.util.find_spec("torch") is not None, reason="what is said without PyTorch"
)
def test_without_pytorch_one_line_says_what_to_install():
    result = CliRunner().invoke(app, ["bench", "torch"])
    assert result.exit_code != 0
    assert "pip install torch==2.13.0" in f"{result.output}{result.exception}"
