"""The charts of a report: those of the job's page that a result can draw, the telling one first."""

from collections.abc import Mapping
from typing import Any

from app.charts.arrivals import is_shown
from app.charts.figure import Figure
from app.charts.steps import StepPoint, steps
from app.charts.theme import Theme
from app.charts.window_charts import WINDOW_CHARTS, Setting
from app.words import TIMES, Hosts

Result = Mapping[str, Any]

_STEPS = "steps"
_WAITS = "waited-for"
_TITLES = {
    "workers": "Which worker",
    _WAITS: "Waited for",
    _STEPS: "Step time",
    "worker-steps": "Worst workers by step",
    "dp-steps": "Step time over dp rank by step",
    "stages": "Stages",
    "optypes": "Where the loss is, by operation",
}
_RAMP = f"Colours go from 1.0{TIMES} to 1.5{TIMES} and over, the same in every report."
# What lines and colours mean, where the picture itself does not say.
KEYS = {
    _STEPS: "Solid: recorded. Dotted: simulated. Dashed: without stragglers. Area: time lost.",
    "workers": f"The slowdown if only this worker were slow. {_RAMP} A cross: not measured.",
    "worker-steps": _RAMP,
    _WAITS: "How long the other ranks waited for each rank at collectives. Colours go from 0 to "
    "half a step and over. Outlined: to blame.",
}
# The chart that best shows a cause; for all others it is that of the workers.
_LEADS = {
    "stage-imbalance": "stages",
    "sequence-imbalance": "dp-steps",
    "gc-pause": _STEPS,
    "uniform-slowdown": _STEPS,
    "late-host": _WAITS,
}
# Naming a worker, a stage or an operation by these would be a guess when fidelity is low.
_BLAMING = {"workers", "worker-steps", "dp-steps", "stages", "optypes"}


def figures(result: Result, hosts: Hosts, theme: Theme) -> dict[str, tuple[str, Figure]]:
    """Title and figure by the chart's name, in the order of the page."""
    setting = Setting(theme, hosts)
    found = {
        key: (title, figure)
        for key, title in _TITLES.items()
        if (figure := _figure(key, result, setting)) is not None
    }
    lead = _lead(result)
    return {key: found[key] for key in sorted(found, key=lambda key: key != lead)}


def _lead(result: Result) -> str:
    causes = [finding["cause"] for finding in result["findings"] or ()]
    return _LEADS.get(causes[0], "workers") if causes else "workers"


def _figure(key: str, result: Result, setting: Setting) -> Figure | None:
    is_low = result["fidelity"]["verdict"] == "low"
    if key in _BLAMING and is_low:
        return None
    if key == _STEPS:
        return steps(_points(result), theme=setting.theme)
    if key == "dp-steps" and _lead(result) != key:
        return None  # it says something where lengths are uneven, and little elsewhere
    if key == "stages" and result["job"]["pp_size"] == 1:
        return None
    chart = WINDOW_CHARTS[key]
    if key == _WAITS and not is_shown(result):
        return None
    can_draw = chart.can_draw(result) and chart.has_steps(result)
    return chart.draw(result, setting) if can_draw else None


def _points(result: Result) -> list[StepPoint]:
    times = result["step_time_s"]
    of_steps = zip(
        result["steps"], times["recorded"], times["simulated"], times["ideal"], strict=True
    )
    skipped = (
        StepPoint(each["step"], None, None, None, each["reason"])
        for each in result["skipped_steps"]
    )
    return sorted([*(StepPoint(*each) for each in of_steps), *skipped], key=lambda one: one.step)
