"""Figures of published traces equal those of the published analyser."""

import json
from functools import cache
from typing import Any

import pytest

from app.engine.report import analyse
from app.trace.readers.published import trace_files
from app.trace.window import Window
from tests.reference import figures
from tests.result_comparison import agree
from tests.results import report_as_json
from tests.shared_traces import SHARED_TRACES, needs_shared

pytestmark = pytest.mark.oracle

TRACES = ["AR", "ST", "ovlp", "puredp", "purepp", "flap", "inter"]
# The reference takes half a minute for AR.
BY_REFERENCE = [pytest.param("AR", marks=pytest.mark.nightly), *TRACES[1:]]

TOLERANCE = 1e-6


def window(name: str) -> Window:
    return trace_files.read(SHARED_TRACES / f"trace-{name}.parquet")


@cache
def engine_result(name: str) -> dict[str, Any]:
    return report_as_json(analyse(window(name)))


@cache
def reference_result(name: str) -> dict[str, Any]:
    return {**engine_result(name), **figures(window(name))}


def load(kind: str, name: str) -> dict[str, Any]:
    """What the published analyser printed."""
    found: dict[str, Any] = json.loads((SHARED_TRACES / f"{kind}-{name}.json").read_text())
    return found


def expected(name: str, steps: list[int]) -> dict[str, Any]:
    """The published figures in the shape of a result; those that they leave out are left out."""
    there = load("result", name)

    def by_step(key: str) -> list[float]:
        assert set(there[key]) == {str(step) for step in steps}
        return [there[key][str(step)] for step in steps]

    def in_order(found: dict[str, float]) -> list[float]:
        return [found[str(index)] for index in range(len(found))]

    wanted: dict[str, Any] = {
        "slowdown": there["blocking_slowdown"],
        "step_slowdown": by_step("blocking_step_slowdown"),
        "launch_slowdown": there["launch_slowdown"],
        "step_time_s": {
            "recorded": by_step("step_t_base"),
            "simulated": by_step("step_t_nodelay"),
            "ideal": by_step("step_t_noblk"),
        },
        "per_step": {},
    }
    for who in ("optype", "dp_rank", "stage"):
        whole = there[f"blocking_decompose_by_{who}"]
        if whole is None:
            assert there["blocking_slowdown"] < 1.03
            continue
        each = [there[f"blocking_decompose_by_{who}_per_step"][str(step)] for step in steps]
        figure = f"{who}_slowdown"
        if who == "optype":
            found = [optype for optype in whole if optype != "first-op"]
            wanted[figure] = {optype: whole[optype] for optype in found}
            wanted["per_step"][figure] = {
                optype: [step[optype] for step in each] for optype in found
            }
        else:
            wanted[figure] = in_order(whole)
            wanted["per_step"][figure] = [in_order(step) for step in each]
    return wanted


@needs_shared
@pytest.mark.parametrize("name", TRACES)
def test_engine_figures_equal_the_published_ones(name):
    got = engine_result(name)
    agree(got, expected(name, got["steps"]), name, relative=TOLERANCE)


@needs_shared
@pytest.mark.parametrize("name", TRACES)
def test_engine_shares_equal_the_published_ones(name):
    got = engine_result(name)
    shares = {"m_s": load("ms", name)["Ms"], "m_w": load("mw", name)["Mw"]}
    agree(got, shares, name, relative=0.0, absolute=TOLERANCE)


@needs_shared
@pytest.mark.parametrize("name", BY_REFERENCE)
def test_reference_figures_equal_the_published_ones(name):
    got = reference_result(name)
    agree(got, expected(name, got["steps"]), name, relative=TOLERANCE)
    shares = {"m_s": load("ms", name)["Ms"], "m_w": load("mw", name)["Mw"]}
    agree(got, shares, name, relative=0.0, absolute=TOLERANCE)


@needs_shared
@pytest.mark.parametrize("name", BY_REFERENCE)
def test_engine_figures_equal_one_simulation_per_worker(name):
    got, want = engine_result(name), reference_result(name)
    agree(got["worker_slowdown"], want["worker_slowdown"], name, relative=1e-9)
    agree(
        got["per_step"]["worker_slowdown"], want["per_step"]["worker_slowdown"], name, relative=1e-9
    )
    agree(got["launch_delay"], want["launch_delay"], name, relative=1e-9)
