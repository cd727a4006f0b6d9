"""What is left of windows once they are old: worked by hand."""

from app.monitor import observe
from app.result import thin
from app.result.stored import split_by_step
from app.result.thin import MAX_SKIPPED, MAX_VALUES, thinned_steps
from app.result.window_result import mean_s, num_steps, total_s
from tests.diagnosis.jobs import made
from tests.diagnosis.windows import made_window
from tests.results import result_of, window_result

SEEN = observe(made_window(made(dp=2, pp=2, microbatches=2), 0, 2))
REAL = split_by_step(SEEN.result)[0].as_json()


def part(first_step, *times_s, reasons=()):
    """A window of steps that took so long, half of it ideally."""
    steps = list(range(first_step, first_step + len(times_s)))
    times = {name: list(times_s) for name in ("recorded", "simulated")}
    times |= {"between": [0.0] * len(steps), "ideal": [each / 2 for each in times_s]}
    return result_of({
        **REAL,
        "window": {**REAL["window"], "id": f"1-{first_step}"},
        "steps": steps,
        "step_time_s": times,
        "step_started_s": [100.0 + step for step in steps],
        "step_slowdown": [2.0] * len(steps),
        "slowdown": 2.0,
        "fidelity": {**REAL["fidelity"], "step_discrepancy": [0.0] * len(steps)},
        "skipped_steps": [{"step": 900 + at, "reason": each} for at, each in enumerate(reasons)],
    })  # fmt: skip


def thinned(*parts, resolution="hour"):
    return thin.thinned_result(parts, resolution)


def test_few_steps_keep_their_values():
    found = thinned(part(0, 1.0, 2.0), part(2, 4.0)).as_json()
    assert found["steps"] == [0, 1, 2]
    assert found["step_time_s"]["recorded"] == [1.0, 2.0, 4.0]
    assert found["thinned"] == {"resolution": "hour", "step_counts": [1, 1, 1], "num_skipped": 0}
    assert (found["window"]["id"], found["window"]["num_windows"]) == ("1-0", 2)


def test_many_steps_become_means_of_successive_ones_that_know_how_many_they_are():
    times = [float(1 + at % 2) for at in range(3 * MAX_VALUES)]  # 1, 2, 1, 2, ...
    result = thinned(part(0, *times[:50]), part(50, *times[50:]))
    assert (num_steps(result), total_s(result, "recorded")) == (72, 108.0)
    assert mean_s(result, "recorded") == 1.5
    found = result.as_json()
    assert found["thinned"]["step_counts"] == [3] * MAX_VALUES
    assert found["steps"] == list(range(0, 3 * MAX_VALUES, 3))
    assert found["step_time_s"]["recorded"][:2] == [4 / 3, 5 / 3]
    assert found["step_time_s"]["ideal"][:2] == [2 / 3, 5 / 6]
    assert found["step_slowdown"][:2] == [2.0, 2.0]
    assert found["step_started_s"][:2] == [100.0, 103.0]


def test_a_thinned_window_weighs_as_much_as_all_its_steps():
    long = thinned(part(0, *[1.0] * 96))
    both = thinned(long, part(96, *[5.0] * 4), resolution="day")
    assert num_steps(both) == 100
    assert mean_s(both, "recorded") == 1.16  # (96 x 1 + 4 x 5) / 100
    assert sum(both.thinned.step_counts) == 100


def test_every_reason_of_skipped_steps_is_listed_and_all_are_counted():
    found = thinned(part(0, 1.0, reasons=["late"] * 30 + ["lost"]), part(1, 1.0))
    assert len(found.skipped_steps) == MAX_SKIPPED
    assert {step.reason for step in found.skipped_steps} == {"late", "lost"}
    again = thinned(found, part(9, 1.0, reasons=["late"]), resolution="day")
    assert again.thinned.num_skipped == 32


def test_the_rows_of_steps_cover_the_window_without_gaps_and_without_overlap():
    found = thinned(part(0, 1.0, 3.0, 2.0), part(3, 2.0))
    one, other = thinned_steps(found, 5, max_values=2)
    assert (one.first_step, one.last_step, one.num_steps, one.recorded_s) == (0, 1, 2, 2.0)
    assert (other.first_step, other.last_step, other.num_steps) == (2, 5, 2)
    assert (one.slowdown, one.started_s) == (2.0, 100.0)


def test_windows_without_figures_stay_without():
    silent = window_result(steps=[], skipped_steps=[{"step": 0, "reason": "rank 1 did not report"}])
    found = thinned(silent, silent)
    assert found.slowdown is None
    assert found.steps == ()
    assert found.thinned.num_skipped == 2
