"""The answer to a what-if question in a terminal."""

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from app.cli.output import printable
from app.engine.questions.answer import WhatIfAnswer
from app.engine.questions.apply import EditCounts
from app.formatting import TIMES

_MAX_STEPS = 32


def render_answer(answer: WhatIfAnswer) -> RenderableType:
    """The answer in a sentence, then its figures, edits and steps."""
    return Group(
        Text(_sentence(answer), style="bold"),
        Text(),
        _figures(answer),
        Text("\nEdits", style="bold"),
        *(Text(_edit(number, edit)) for number, edit in enumerate(answer.edits, 1)),
        Text("\nSteps", style="bold"),
        *_steps(answer),
    )


def _sentence(answer: WhatIfAnswer) -> str:
    now_s, then_s = float(answer.recorded_s.mean()), float(answer.expected_s.mean())
    name, hours = printable(answer.replay.window.job.name), answer.gpu_hours_saved
    effect = "saves" if hours >= 0 else "costs"
    return (
        f"A step of {name} would take {_seconds(then_s)} s instead of {_seconds(now_s)} s: "
        f"that {effect} {abs(hours):,.3g} GPU-hours in {len(answer.replay.steps):,} steps."
    )


def _figures(answer: WhatIfAnswer) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in ("", "mean step", "speed-up over it", "slowdown to it"):
        table.add_column(heading, justify="right" if heading else "left")
    table.add_column("", style="dim")
    rows = (
        ("what if", answer.what_if_s, "with the edits"),
        ("simulated", answer.simulated_s, "durations as recorded, no late launches"),
        ("ideal", answer.ideal_s, _about_the_ideal(answer)),
        ("recorded", answer.recorded_s, "as it was"),
        ("expected", answer.expected_s, "with the edits and the late launches as recorded"),
    )
    what_if_s = float(answer.what_if_s.mean())
    for name, times_s, meaning in rows:
        mean_s = float(times_s.mean())
        is_compared = name in ("simulated", "ideal")
        ratios = [_ratio(mean_s, what_if_s), _ratio(what_if_s, mean_s)] if is_compared else ["", ""]
        table.add_row(name, f"{_seconds(mean_s)} s", *ratios, meaning)
    return table


def _about_the_ideal(answer: WhatIfAnswer) -> str:
    if answer.what_if_s.mean() < answer.ideal_s.mean():
        # Its computations take the mean of all, the slow ones included.
        return "without stragglers; the edits go further"
    return "without stragglers"


def _edit(number: int, edit: EditCounts) -> str:
    missing = edit.without_counterpart
    kept = f"; {missing:,} have no counterpart and keep theirs" if missing else ""
    return f"{number}. changes {edit.changed:,} operations{kept}"


def _steps(answer: WhatIfAnswer) -> list[RenderableType]:
    table = Table(box=None, pad_edge=False)
    for heading in ("step", "simulated", "what if", "speed-up", "to ideal"):
        table.add_column(heading, justify="right")
    steps, skipped = answer.replay.steps, answer.replay.skipped
    times_s = (answer.simulated_s.tolist(), answer.what_if_s.tolist(), answer.ideal_s.tolist())
    for step, simulated_s, what_if_s, ideal_s in zip(
        steps[:_MAX_STEPS], *(column[:_MAX_STEPS] for column in times_s), strict=True
    ):
        seconds = [f"{_seconds(time_s)} s" for time_s in (simulated_s, what_if_s)]
        ratios = _ratio(simulated_s, what_if_s), _ratio(what_if_s, ideal_s)
        table.add_row(f"{step:,}", *seconds, *ratios)
    more = len(steps) - _MAX_STEPS
    rest = [Text(f"and {more:,} more steps: --json has them all")] if more > 0 else []
    left_out = [Text(f"step {skip.step:,} is left out: {skip.reason}") for skip in skipped[:3]]
    if len(skipped) > 3:
        left_out.append(Text(f"and {len(skipped) - 3:,} more steps are left out"))
    return [table, *rest, *left_out]


def _seconds(value: float) -> str:
    return f"{value:#.4g}".rstrip(".") if value < 1000 else f"{value:,.0f}"


def _ratio(above: float, below: float) -> str:
    return f"{above / below:.3f}{TIMES}" if below > 0 else ""
