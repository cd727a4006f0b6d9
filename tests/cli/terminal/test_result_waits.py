"""Waits in the terminal: ranks waited for, and when "Nothing stands out" is printed."""

import io
from typing import Any

import pytest
from msgspec.structs import replace
from rich.console import Console, Group

from app.cli.terminal.result import causes, headline, wait_lines
from app.result.finding import RuledOut
from tests.arrival_results import block
from tests.results import finding, window_result

USUAL: dict[str, Any] = {
    "job": {"name": "llm", "dp_size": 4, "pp_size": 1},
    "slowdown": 1.01,
    "gpu_time_wasted": 0.01,
    "launch_slowdown": 1.0,
    "fidelity": {"discrepancy": 0.01, "verdict": "ok"},
    "steps": [0, 1],
    "step_time_s": {"recorded": [2.0, 2.4]},
    "findings": [],
    "ruled_out": [],
    "arrivals": block(),
    "unexplained_share": 0.0,
    "coverage": 0.9,
}
CALM = block((0.0, 0.02, 0.1, 0.0), culprits=())
FOUND = finding(sentence="rank 2 is slow", culprits=[{"dp_rank": 2, "stage": 0, "rank": 2}])


def result(**changes):
    return window_result(**USUAL | changes)


def with_arrivals(**changes):
    """The result with other columns in its arrivals."""
    usual = result()
    return replace(usual, arrivals=replace(usual.arrivals, **changes))


def printed_lines(part: list[Any]) -> list[str]:
    written = io.StringIO()
    Console(file=written, width=120).print(Group(*part))
    return [line.rstrip() for line in written.getvalue().splitlines()]


def headline_lines(**changes: Any) -> list[str]:
    return [line.plain for line in headline(result(**changes))]


def test_most_waited_for_rank_is_listed_with_worker_and_cost():
    shown = printed_lines(wait_lines(result()))
    assert shown[1] == "Waited for (mean a step, at collectives)"
    worker, figures = "2 dp 2, stage 0 host-2", "500 ms 500 ms 23 % 100 %"
    assert " ".join(shown[3].split()) == f"{worker} {figures}"
    assert shown[4] == "Ranks spent 17 % of their time waiting for later ones, in 2 collectives."
    assert len(shown) == 5


def test_gpu_is_named_where_the_local_rank_is_known():
    known = with_arrivals(local_rank=(0, 1, 5, 7))
    assert "host-2, GPU 5" in "\n".join(printed_lines(wait_lines(known)))


def test_five_ranks_are_listed_and_the_others_counted():
    many = block(tuple(0.5 if rank < 9 else 0.001 for rank in range(64)), culprits=())
    shown = printed_lines(wait_lines(result(arrivals=many)))
    assert len(shown) == 3 + 5 + 2
    assert shown[8] == "4 more ranks, each at 23 % or less"


def test_negligible_waits_are_shown_only_with_an_arrivals_finding():
    assert wait_lines(result(arrivals=CALM)) == []
    assert wait_lines(result(arrivals=None)) == []
    by_arrivals = finding(evidence={"arrivals": {"share": 0.045}})
    assert wait_lines(result(arrivals=CALM, findings=[by_arrivals]))


def test_control_characters_in_a_host_name_are_escaped():
    steering = with_arrivals(host=("host-0", "host-1", "h\x1b[2J", "host-3"))
    assert r"h\x1b[2J" in "\n".join(printed_lines(wait_lines(steering)))


@pytest.mark.parametrize("host", ["[/x]", "[red]a"])
def test_brackets_in_a_host_name_are_not_markup(host):
    named = with_arrivals(host=("host-0", "host-1", host, "host-3"))
    assert host in "\n".join(printed_lines(wait_lines(named)))
    reason = RuledOut("slow-link", f"{host} is calm", insufficient=True)
    assert f"cannot tell: {host} is calm" in "\n".join(
        printed_lines(causes(result(ruled_out=[reason])))
    )


LOUD = [
    (
        {},
        "The other ranks waited for host-2, rank 2 (dp 2, stage 0) for 23 % of the step.",
    ),
    (
        {"arrivals": CALM, "unexplained_share": 0.18},
        "18 % of the step is waiting that no cause explains.",
    ),
    (
        {"arrivals": None, "coverage": 0.43},
        "Recorded operations cover only 43 % of the step: too little for a verdict.",
    ),
]


@pytest.mark.parametrize(("changes", "sentence"), LOUD)
def test_waits_or_low_coverage_suppress_nothing_stands_out(changes, sentence):
    assert sentence in headline_lines(**changes)
    everything = " ".join([*headline_lines(**changes), *printed_lines(causes(result(**changes)))])
    assert "Nothing stands out" not in everything
    assert "None found" not in everything


def test_nothing_stands_out_with_short_waits_and_enough_coverage():
    quiet = {"arrivals": CALM, "unexplained_share": 0.05, "coverage": 0.6}
    assert headline_lines(**quiet) == ["llm runs at 1.01\u00d7 of its ideal. Nothing stands out."]
    assert "None found." in printed_lines(causes(result(**quiet)))


def test_unexplained_waiting_is_printed_beside_a_finding():
    shown = headline_lines(findings=[FOUND], unexplained_share=0.11)
    assert shown == [
        "llm runs at 1.01\u00d7 of its ideal.",
        "rank 2 is slow.",
        "11 % of the step is waiting that no cause explains.",
    ]
