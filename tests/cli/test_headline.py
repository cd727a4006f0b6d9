"""What a person reads first."""

import copy
from typing import Any

from app.cli.headline import headline, num_slowest

RESULT: dict[str, Any] = {
    "job": {"name": "llm", "dp_size": 2, "pp_size": 2},
    "slowdown": 1.25,
    "gpu_time_wasted": 0.2,
    "launch_slowdown": 1.0,
    "fidelity": {"discrepancy": 0.01, "verdict": "ok"},
    "launch_delay": {"others_waited": [[0.0, 0.0], [0.0, 0.0]]},
    "m_w_exact": 0.1,
    "stage_share": [0.2, 0.2],
    "worker_slowdown": [[1.0, 1.01], [1.02, 1.0]],
}


def said(ranks=None, **changes):
    result = copy.deepcopy(RESULT) | changes
    return [line.plain for line in headline(result, ranks)]


def test_a_loss_is_told_with_its_cost():
    assert said() == ["llm runs at 1.25\u00d7 of its ideal: it loses 20 % of its GPU time."]


def test_the_worker_that_explains_most_of_it_is_named_by_rank_and_place():
    lines = said(m_w_exact=0.9, worker_slowdown=[[1.0, 1.0], [1.23, 1.0]], ranks=[[0, 2], [1, 3]])
    assert lines[1] == (
        "The slowest worker accounts for 90 % of the lost time; "
        "it is rank 1 (dp 1, stage 0) at 1.23\u00d7."
    )


def test_of_several_workers_the_slowest_is_named():
    job = RESULT["job"] | {"dp_size": 50}
    slowdowns = [[1.0, 1.0]] * 49 + [[1.0, 1.5]]
    (_, line) = said(m_w_exact=1.02, worker_slowdown=slowdowns, job=job)
    assert line.startswith("The slowest 3 workers account for 100 % of the lost time; the slowest")
    assert num_slowest({"job": job}) == 3


def test_a_stage_is_named_where_no_worker_explains_it():
    assert said(stage_share=[0.1, 0.8])[1] == "Stage 1 accounts for 80 % of the lost time."


def test_what_cannot_be_trusted_blames_nobody():
    low = {"discrepancy": 0.12, "verdict": "low"}
    lines = said(fidelity=low, m_w_exact=0.9)
    assert lines[0] == "llm runs at 1.25\u00d7 of its ideal."
    assert "differ by 12 %" in lines[1]
    assert len(lines) == 2


def test_the_host_that_launched_late_is_named_where_it_held_up_most():
    waited = {"others_waited": [[0.1, 0.1], [3.0, 0.0]]}
    lines = said(slowdown=1.0, launch_slowdown=1.08, launch_delay=waited, ranks=[[0, 4], [2, 6]])
    assert lines == [
        "llm runs at 1.00\u00d7 of its ideal.",
        "Late launches add 8 % to a step; 94 % of what workers waited for that was for the host "
        "of rank 2 (dp 1, stage 0).",
    ]


def test_late_launches_everywhere_name_no_host():
    waited = {"others_waited": [[1.0, 1.1], [1.0, 0.9]]}
    assert said(launch_slowdown=1.08, launch_delay=waited)[1] == "Late launches add 8 % to a step."


def test_a_name_that_would_steer_the_terminal_is_written_out():
    job = RESULT["job"] | {"name": "\x1b[2Jllm"}
    assert said(job=job)[0].startswith(r"\x1b[2Jllm runs at")
