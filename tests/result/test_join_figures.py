import math
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from app.engine.report import analyse, report_result, result_without_figures
from app.result import join_figures
from app.result.window_result import FiguresByStep
from app.synth.job import SimulatedJob
from app.trace.job import Parallelism
from app.trace.window import SkippedStep
from tests import window_factory
from tests.engine.questions.jobs import two_stages
from tests.results import result_of
from tests.trace.losses import without_ranks


def report_of(first_step, *, num_steps=2, slow=()):
    """A window of the two-stage job; the stages named take longer on dp rank 0."""
    rows = [
        row.on(duration_s=row.duration_s * 1.5)
        if row.dp_rank == 0 and row.stage in slow and row.optype == "optimizer"
        else row
        for step in range(first_step, first_step + num_steps)
        for row in two_stages(2, step=step)
    ]
    report = analyse(window_factory.window(rows, dp_size=2, pp_size=2))
    return replace(report, lacks_waits=False)


REPORTS = [report_of(0), report_of(2, num_steps=3, slow=(1,)), report_of(5, slow=(0, 1))]


def results():
    return [report_result(each).as_json() for each in REPORTS]


def combine_results(parts):
    return join_figures.combine_results([result_of(part) for part in parts]).as_json()


def ratio(read):
    """Sum over all steps of what the replays took, by the sum of the ideals."""
    total = sum(read(each).sum(axis=-1) for each in REPORTS)
    return total / sum(each.ideal_s.sum() for each in REPORTS)


def test_combined_slowdown_is_total_time_over_total_ideal_time():
    found = combine_results(results())
    assert found["slowdown"] == pytest.approx(
        float(ratio(lambda each: each.simulated_s)), rel=1e-12
    )
    assert found["gpu_time_wasted"] == pytest.approx(1 - 1 / found["slowdown"])


def test_slowdowns_by_worker_rank_and_stage_are_exact():
    found = combine_results(results())
    for name, read in (
        ("worker_slowdown", lambda each: each.worker_step_s),
        ("dp_rank_slowdown", lambda each: each.dp_rank_step_s),
        ("stage_slowdown", lambda each: each.stage_step_s),
    ):
        np.testing.assert_allclose(found[name], ratio(read), rtol=1e-12)
    for name in REPORTS[0].optype_step_s:
        expected = ratio(lambda each, name=name: each.optype_step_s[name])
        assert found["optype_slowdown"][name] == pytest.approx(float(expected), rel=1e-12)
    least = np.minimum.outer(found["dp_rank_slowdown"], found["stage_slowdown"])
    np.testing.assert_allclose(found["worker_slowdown_estimate"], least)


def test_shares_are_weighted_by_the_loss():
    # Worked by hand: 1 s of 2 is won back in one window and 4 s of 8 in the other, so half of 10;
    # and the window that lost nothing has no share to add.
    parts = [by_hand(0, lost_s=2.0, share=0.5), by_hand(1, lost_s=8.0, share=0.5)]
    assert combine_results(parts)["m_s"] == pytest.approx(0.5)
    parts = [by_hand(0, lost_s=2.0, share=1.0), by_hand(1, lost_s=8.0, share=0.25)]
    assert combine_results(parts)["m_s"] == pytest.approx(0.4)
    assert combine_results(parts)["stage_share"] == [pytest.approx(0.4)] * 2
    parts = [by_hand(0, lost_s=0.0, share=None), by_hand(1, lost_s=8.0, share=0.25)]
    assert combine_results(parts)["m_s"] == pytest.approx(0.25)
    nothing = [by_hand(0, lost_s=0.0, share=None), by_hand(1, lost_s=0.0, share=None)]
    assert combine_results(nothing)["m_s"] is None


def by_hand(first_step, *, lost_s, share):
    """A window of one step that would take 10 s."""
    times = {"recorded": [10.0 + lost_s], "simulated": [10.0 + lost_s], "ideal": [10.0]}
    shares = {"m_w": share, "m_w_exact": share, "m_s": share, "stage_share": [share, share]}
    return results()[0] | shares | {"step_time_s": times, "steps": [first_step]}


def test_a_type_absent_from_a_window_costs_nothing_there():
    with_gc, without = by_hand(0, lost_s=2.0, share=0.5), by_hand(1, lost_s=2.0, share=0.5)
    with_gc["optype_slowdown"] = with_gc["optype_slowdown"] | {"gc": 1.2}
    # Both would take 10 s: the mean of 1.2 and 1.
    assert combine_results([with_gc, without])["optype_slowdown"]["gc"] == pytest.approx(1.1)


def test_combined_steps_are_concatenated():
    found = combine_results(results())
    assert found["steps"] == [0, 1, 2, 3, 4, 5, 6]
    assert [len(times) for times in found["step_time_s"].values()] == [7, 7, 7, 7]
    assert len(found["step_slowdown"]) == len(found["fidelity"]["step_discrepancy"]) == 7
    assert found["window"]["id"] == "1-0..1-5"
    assert found["window"]["windows"] == ["1-0", "1-2", "1-5"]


def test_gpu_hours_lost_add_up():
    parts = results()
    lost = sum(each["gpu_hours_lost"] for each in parts)
    assert combine_results(parts)["gpu_hours_lost"] == pytest.approx(lost)


@pytest.mark.parametrize(("num_low", "verdict"), [(0, "ok"), (1, "ok"), (2, "low"), (3, "low")])
def test_low_fidelity_windows_are_counted_and_a_majority_marks_the_result(num_low, verdict):
    parts = results()
    for each in parts[:num_low]:
        each["fidelity"] |= {"verdict": "low"}
    found = combine_results(parts)["fidelity"]
    assert (found["low_windows"], found["verdict"]) == (num_low, verdict)
    assert found["discrepancy"] == combine_results(results())["fidelity"]["discrepancy"]


def test_times_of_operations_are_means_over_steps():
    found, parts = combine_results(results()), results()
    optimizer = [each["optype_time_s"]["optimizer"]["recorded"] for each in parts]
    assert found["optype_time_s"]["optimizer"]["recorded"] == pytest.approx(
        (2 * optimizer[0] + 3 * optimizer[1] + 2 * optimizer[2]) / 7
    )
    assert found["stage_compute_s"] == {
        "forward": [pytest.approx(1.0), pytest.approx(2.0)],
        "backward": [pytest.approx(1.0), pytest.approx(2.0)],
    }


def test_a_single_window_is_unchanged():
    [part] = results()[1:2]
    found = combine_results([part])
    assert found["fidelity"].pop("low_windows") == 0
    for name, value in part.items():
        if name in ("window", "per_step"):
            continue
        assert flat(found[name]) == pytest.approx(flat(value), rel=1e-12), name


def flat(value):
    if isinstance(value, dict):
        return [number for each in value.values() for number in flat(each)]
    if isinstance(value, list):
        return [number for each in value for number in flat(each)]
    return [value] if isinstance(value, int | float) else []


def test_windows_without_figures_add_only_skipped_steps():
    skipped = (SkippedStep(7, "rank 3 did not report", (3,)),)
    window = window_factory.window([], dp_size=2, pp_size=2, skipped=skipped)
    empty = result_without_figures(window).as_json()
    found = combine_results([*results(), empty | {"window": empty["window"] | {"id": "1-7"}}])
    assert found["slowdown"] == pytest.approx(combine_results(results())["slowdown"])
    assert [each["step"] for each in found["skipped_steps"]] == [7]
    assert found["window"]["missing"] == [3]
    assert combine_results([empty])["slowdown"] is None


def test_the_clock_with_the_largest_residual_is_kept():
    parts = results()
    for part, residual_ms in zip(parts, (0.2, 3.0, 1.0), strict=True):
        clock = {"offset_ms": 0.0, "drift_ppm": None, "residual_ms": residual_ms}
        part["clocks"] = {"residual_ms": residual_ms, "hosts": {"a": clock}, "reason": None}
    clocks = combine_results(parts)["clocks"]
    assert clocks["residual_ms"] == clocks["hosts"]["a"]["residual_ms"] == 3.0


def test_step_figures_are_joined_and_an_absent_type_costs_nothing():
    parts = [each["per_step"] for each in results()]
    del parts[1]["optype_slowdown"]["optimizer"]
    joint = join_figures.combine_per_step([msgspec.convert(part, FiguresByStep) for part in parts])
    found = joint.as_json()
    assert [len(found[name]) for name in found if name != "optype_slowdown"] == [7, 7, 7]
    assert found["optype_slowdown"]["optimizer"][2:5] == [1.0, 1.0, 1.0]
    assert all(math.isfinite(each) for each in flat(found))


def test_combined_share_of_imputed_operations_counts_windows_without_losses():
    made = SimulatedJob(Parallelism(4, 2), 4)
    lost = without_ranks(made.record(range(8, 12)), [2]).window()
    found = combine_results(
        [
            report_result(analyse(window)).as_json()
            for window in (made.record(range(8)).window(), lost)
        ]
    )
    assert found["imputed"]["share"] == pytest.approx(1 / 8 * 4 / 12)
    assert found["imputed"]["workers"][0]["num_steps"] == 4
