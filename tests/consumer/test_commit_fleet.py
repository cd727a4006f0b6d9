"""Rows for the fleet page: briefs, losses, and hosts of runs."""

from dataclasses import replace

import pytest
from msgspec import structs

from app.result.brief import brief_of
from app.store import hosts, windows
from tests.consumer.jobs import SIZES, SLOW
from tests.consumer.twin import step_batches


def pushed(twin, num_steps):
    twin.register("default/job", SIZES)
    for step in range(num_steps):
        batches = step_batches(SLOW, step)
        twin.append(
            "default/job", *(replace(each, host=f"host-{each.dp_rank}") for each in batches)
        )
    twin.turns(twin.consumer())


def result(twin, window_id):
    with twin.store.read() as conn:
        return windows.get(conn, "default/job", window_id)


def test_open_and_closed_windows_with_figures_have_a_brief(twin):
    pushed(twin, 4)
    saved = twin.rows("window_briefs", "first_step", "brief")
    assert [first_step for first_step, _ in saved] == [0, 3]
    for first_step, brief in saved:
        expected = brief_of(result(twin, f"1-{first_step}"), num_gpus=4)
        assert expected is not None
        assert brief == structs.replace(expected, onset_at_s=brief.onset_at_s)


def test_closed_windows_only_have_losses_equal_to_their_results(twin):
    pushed(twin, 4)
    losses = twin.rows("window_losses", "first_step", "kind", "name", "gpu_s", "slowdown")
    assert {first_step for first_step, *_ in losses} == {0}
    of = {(kind, name): gpu_s for _, kind, name, gpu_s, _ in losses}
    closed = result(twin, "1-0")
    assert of["total", ""] == pytest.approx(3600 * closed.gpu_hours_lost)
    by_type = sum(gpu_s for (kind, _), gpu_s in of.items() if kind == "optype")
    assert by_type == pytest.approx(of["total", ""])
    [finding] = [each for each in closed.findings if each.cause == "slow-worker"]
    assert finding.culprits[0].host == "host-1"
    recorded = sum(closed.step_time_s.recorded) * 4
    assert of["cause", "slow-worker"] == pytest.approx(finding.cost * recorded)
    assert of["host", "host-1"] == of["cause", "slow-worker"]


def test_hosts_of_a_run_are_saved(twin):
    pushed(twin, 1)
    with twin.store.read() as conn:
        assert hosts.jobs_on(conn, "default", "host-0") == {"default/job"}
        [run] = hosts.runs_on(conn, "default", "host-1", limit=9)
    assert (run.job_id, run.epoch) == ("default/job", 1)
