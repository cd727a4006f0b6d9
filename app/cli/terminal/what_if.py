"""The answer to a what-if question in a terminal."""

from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from app.cli.output import printable
from app.engine.questions.answer import WhatIfAnswer
from app.formatting import TIMES

_MAX_STEPS = 32


def render_answer(answer: WhatIfAnswer, found: dict[str, Any]) -> RenderableType:
    """The answer in a sentence, then its figures, edits and steps; `found` is it as JSON."""
    return Group(
        Text(_sentence(answer), style="bold"),
        Text(),
        _figures(answer, found),
        Text("\nEdits", style="bold"),
        *(Text(_edit(number, edit)) for number, edit in enumerate(found["edits"], 1)),
        Text("\nSteps", style="bold"),
        *_steps(found),
    )


def _sentence(answer: WhatIfAnswer) -> str:
    now_s, then_s = float(answer.recorded_s.mean()), float(answer.expected_s.mean())
    name, hours = printable(answer.replay.window.job.name), answer.gpu_hours_saved
    effect = "saves" if hours >= 0 else "costs"
    return (
        f"A step of {name} would take {_seconds(then_s)} s instead of {_seconds(now_s)} s: "
        f"that {effect} {abs(hours):,.3g} GPU-hours in {len(answer.replay.steps):,} steps."
    )


def _figures(answer: WhatIfAnswer, found: dict[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in ("", "mean step", "speed-up over it", "slowdown to it"):
        table.add_column(heading, justify="right" if heading else "left")
    table.add_column("", style="dim")
    recorded, ideal = found["against_recorded"], found["against_ideal"]
    rows = (
        ("what if", answer.what_if_s, None, "with the edits"),
        (
            "simulated",
            answer.simulated_s,
            recorded,
            "durations as recorded, no late launches",
        ),
        ("ideal", answer.ideal_s, ideal, _about_the_ideal(answer)),
        ("recorded", answer.recorded_s, None, "as it was"),
        ("expected", answer.expected_s, None, "with the edits and the late launches as recorded"),
    )
    for name, times_s, against, meaning in rows:
        ratios = [_ratio(against[key] if against else None) for key in ("speed_up", "slowdown")]
        table.add_row(name, f"{_seconds(float(times_s.mean()))} s", *ratios, meaning)
    return table


def _about_the_ideal(answer: WhatIfAnswer) -> str:
    if answer.what_if_s.mean() < answer.ideal_s.mean():
        # Its computations take the mean of all, the slow ones included.
        return "without stragglers; the edits go further"
    return "without stragglers"


def _edit(number: int, edit: dict[str, int]) -> str:
    missing = edit["ops_without_counterpart"]
    kept = f"; {missing:,} have no counterpart and keep theirs" if missing else ""
    return f"{number}. changes {edit['changed_ops']:,} operations{kept}"


def _steps(found: dict[str, Any]) -> list[RenderableType]:
    table = Table(box=None, pad_edge=False)
    for heading in ("step", "simulated", "what if", "speed-up", "to ideal"):
        table.add_column(heading, justify="right")
    times, speed_up = found["step_time_s"], found["against_recorded"]["per_step"]["speed_up"]
    to_ideal = found["against_ideal"]["per_step"]["slowdown"]
    for at, step in enumerate(found["steps"][:_MAX_STEPS]):
        seconds = [f"{_seconds(times[kind][at])} s" for kind in ("simulated", "what_if")]
        table.add_row(f"{step:,}", *seconds, _ratio(speed_up[at]), _ratio(to_ideal[at]))
    more = len(found["steps"]) - _MAX_STEPS
    rest = [Text(f"and {more:,} more steps: --json has them all")] if more > 0 else []
    skipped = found["skipped_steps"]
    left_out = [
        Text(f"step {each['step']:,} is left out: {each['reason']}") for each in skipped[:3]
    ]
    if len(skipped) > 3:
        left_out.append(Text(f"and {len(skipped) - 3:,} more steps are left out"))
    return [table, *rest, *left_out]


def _seconds(value: float) -> str:
    return f"{value:#.4g}".rstrip(".") if value < 1000 else f"{value:,.0f}"


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}{TIMES}"
