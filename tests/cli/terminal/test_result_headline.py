"""The headline of a result in the terminal."""

from app.cli.terminal.result import headline, percent
from tests.results import finding, window_result

USUAL = {
    "job": {"name": "llm"},
    "slowdown": 1.25,
    "gpu_time_wasted": 0.2,
    "launch_slowdown": 1.0,
    "fidelity": {"discrepancy": 0.01, "verdict": "ok"},
    "launch_delay": {"others_waited": [[0.0, 0.0], [0.0, 0.0]]},
    "findings": [],
}


def headline_lines(ranks=None, **changes):
    return [line.plain for line in headline(window_result(**USUAL | changes), ranks)]


def test_headline_has_the_slowdown_and_the_gpu_time_lost():
    assert headline_lines() == [
        "llm runs at 1.25\u00d7 of its ideal: it loses 20 % of its GPU time."
    ]


def test_tiny_negative_percentages_print_as_zero():
    assert headline_lines(gpu_time_wasted=-1e-17)[0].endswith("it loses 0 % of its GPU time.")
    assert (percent(-1e-17, 1), percent(-0.012, 1)) == ("0.0 %", "-1.2 %")


FOUND = [finding(sentence=text) for text in ("dp 1 on h\x1b[2J is slow", "and so is the network")]


def test_first_finding_is_named_with_control_characters_escaped():
    lost = "llm runs at 1.25\u00d7 of its ideal: it loses 20 % of its GPU time."
    assert headline_lines(findings=FOUND) == [lost, r"dp 1 on h\x1b[2J is slow."]


def test_headline_with_a_finding_omits_zero_loss_and_low_fidelity():
    assert headline_lines(slowdown=1.0, findings=FOUND)[0] == "llm runs at 1.00\u00d7 of its ideal."
    low = {"discrepancy": 0.12, "verdict": "low"}
    assert not any("Low fidelity" in line for line in headline_lines(fidelity=low, findings=FOUND))


def test_low_fidelity_headline_names_no_culprit():
    low = {"discrepancy": 0.12, "verdict": "low"}
    lines = headline_lines(fidelity=low, findings=None)
    assert lines[0] == "llm runs at 1.25\u00d7 of its ideal."
    assert "the simulated steps differ from the recorded ones by 12 %" in lines[1]
    assert len(lines) == 2


def test_host_with_most_of_the_late_launch_waits_is_named():
    waited = {"others_waited": [[0.1, 0.1], [3.0, 0.0]]}
    lines = headline_lines(
        slowdown=1.0, launch_slowdown=1.08, launch_delay=waited, ranks=[[0, 4], [2, 6]]
    )
    assert lines == [
        "llm runs at 1.00\u00d7 of its ideal.",
        "Late launches, which this ratio leaves out, add 8 % to a step; 94 % of what workers "
        "waited for that was for the host "
        "of rank 2 (dp 1, stage 0).",
    ]


def test_evenly_late_launches_name_no_host():
    waited = {"others_waited": [[1.0, 1.1], [1.0, 0.9]]}
    assert (
        headline_lines(launch_slowdown=1.08, launch_delay=waited)[1]
        == "Late launches, which this ratio leaves out, add 8 % to a step."
    )


def test_control_characters_in_the_job_name_are_escaped():
    assert headline_lines(job={"name": "\x1b[2Jllm"})[0].startswith(r"\x1b[2Jllm runs at")
