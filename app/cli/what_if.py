"""`paceline what-if`: what a step would take if some operations changed."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group, RenderableType
from rich.table import Column, Table
from rich.text import Text

from app.cli.options import MetaFile, TraceFile, json_option
from app.cli.output import printable, refuse_to_overwrite
from app.cli.terminal import plain_table, right_aligned, show, stderr_console
from app.cli.trace_input import errors_naming, read_trace
from app.errors import InvalidRequest
from app.formatting import TIMES

if TYPE_CHECKING:
    from app.engine.questions.answer import EditCounts, WhatIfAnswer
    from app.engine.questions.edits import Edit

STANDARD_INPUT = Path("-")
_MAX_FILE_BYTES = 8 << 20


def what_if(
    trace: TraceFile,
    meta: MetaFile = None,
    edit: Annotated[
        list[str] | None,
        typer.Option(
            help="A change, applied in order: op, stage, dp, worker, step, mb select operations; "
            "ideal, factor=X, add=SECONDS, set=SECONDS (5ms, 20us) or from=DP/STAGE change them.",
            metavar="EDIT",
        ),
    ] = None,
    edits: Annotated[
        Path | None,
        typer.Option(
            help="Edits as JSON, as in the API, applied before every --edit; - is standard input.",
            metavar="FILE.json",
        ),
    ] = None,
    json_out: Annotated[Path | None, json_option("the whole answer")] = None,
) -> None:
    """Compute how long a step would take if some operations took a different time.

    Example: paceline what-if trace-AR.parquet --edit "op=pp-comm set=0" --edit "stage=3 factor=0.8"
    """
    from app.engine.questions.answer import answer_as_json

    if not edit and edits is None:
        raise InvalidRequest('what-if wants --edit, such as --edit "op=pp-comm set=0", or --edits')
    refuse_to_overwrite("--json", json_out, trace, meta, edits)
    with stderr_console().status("replaying"):
        typed = edit or []
        answer = _answer_of(trace, meta, typed, edits)
    num_of_file = len(answer.edits) - len(typed)
    named = [*(f"edit {number} of {edits}" for number in range(1, num_of_file + 1)), *typed]
    show(json_out, lambda: answer_as_json(answer), lambda: render_answer(answer, named))


def _answer_of(
    trace: Path, meta: Path | None, texts: list[str], file: Path | None
) -> "WhatIfAnswer":
    from app.cli.typed_text import parse_edit
    from app.engine.questions.answer import Questions
    from app.engine.replays import prepare

    from_file = _read_edits(file) if file is not None else []
    window = read_trace(trace, meta)
    typed = [parse_edit(text, window.steps) for text in texts]
    with errors_naming(trace):
        return Questions(prepare(window)).answer([*from_file, *typed])


def _read_edits(path: Path) -> "list[Edit]":
    """Edits from a file in the format of the API's request body."""
    from pydantic import ValidationError

    from app.api.routes.windows.what_if_edits import QuestionIn

    name = "standard input" if path == STANDARD_INPUT else str(path)
    try:
        return QuestionIn.model_validate_json(_content(path, name)).all_edits()
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = printable("".join(f"{str(part)[:64]}." for part in first["loc"]))[:-1]
        problem = ": ".join(filter(None, (name, where, first["msg"])))
        raise InvalidRequest(
            f'{problem}: write {{"edits": [{{"select": {{...}}, '
            '"change": {"kind": "factor", "value": 0.8}}]}'
        ) from error


def _content(path: Path, name: str) -> bytes:
    try:
        if path == STANDARD_INPUT:
            content = sys.stdin.buffer.read(_MAX_FILE_BYTES + 1)
        else:
            with path.open("rb") as file:
                content = file.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise InvalidRequest(f"{name}: cannot be read ({error.strerror})") from error
    if len(content) > _MAX_FILE_BYTES:
        raise InvalidRequest(f"{name} is larger than 8 MiB: give fewer edits")
    return content


_MAX_STEPS = 32


def render_answer(answer: "WhatIfAnswer", edits: Sequence[str]) -> RenderableType:
    """The answer in a sentence, then its figures, edits as they were given, and steps."""
    return Group(
        Text(_sentence(answer), style="bold"),
        Text(),
        _figures(answer),
        Text("\nEdits", style="bold"),
        *(Text(_edit(*row)) for row in enumerate(zip(edits, answer.edits, strict=True), 1)),
        Text("\nSteps", style="bold"),
        *_steps(answer),
    )


def _sentence(answer: "WhatIfAnswer") -> str:
    now_s, then_s = float(answer.replay.recorded_s.mean()), float(answer.expected_s.mean())
    name, hours = printable(answer.replay.window.job.name), answer.gpu_hours_saved
    effect = "saves" if hours >= 0 else "costs"
    return (
        f"A step of {name} would take {_seconds(then_s)} s instead of {_seconds(now_s)} s: "
        f"that {effect} {abs(hours):,.3g} GPU-hours in {len(answer.replay.steps):,} steps."
    )


def _figures(answer: "WhatIfAnswer") -> Table:
    about_ideal = "without stragglers"
    if answer.what_if_s.mean() < answer.replay.ideal_s.mean():
        # The ideal's computations take the mean of all, the slow ones included.
        about_ideal += "; the edits go further"
    runs = (
        ("what if", answer.what_if_s, "with the edits"),
        ("simulated", answer.replay.simulated_s, "durations as recorded, no late launches"),
        ("ideal", answer.replay.ideal_s, about_ideal),
        ("recorded", answer.replay.recorded_s, "as it was"),
        ("expected", answer.expected_s, "with the edits and the late launches as recorded"),
    )
    what_if_s = float(answer.what_if_s.mean())
    rows = []
    for name, times_s, meaning in runs:
        mean_s = float(times_s.mean())
        is_compared = name in ("simulated", "ideal")
        ratios = [_ratio(mean_s, what_if_s), _ratio(what_if_s, mean_s)] if is_compared else ["", ""]
        rows.append((name, f"{_seconds(mean_s)} s", *ratios, meaning))
    numbers = right_aligned("mean step", "speed-up over it", "slowdown to it")
    return plain_table(["", *numbers, Column("", style="dim")], rows)


def _edit(number: int, counted: "tuple[str, EditCounts]") -> str:
    edit, counts = counted
    missing = counts.without_counterpart
    kept = f"; {missing:,} have no counterpart and keep theirs" if missing else ""
    return f"{number}. {printable(edit)}: changes {counts.changed:,} operations{kept}"


def _steps(answer: "WhatIfAnswer") -> list[RenderableType]:
    table = plain_table(right_aligned("step", "simulated", "what if", "speed-up", "to ideal"), [])
    replay = answer.replay
    steps, skipped = replay.steps, replay.skipped
    times_s = (replay.simulated_s.tolist(), answer.what_if_s.tolist(), replay.ideal_s.tolist())
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
