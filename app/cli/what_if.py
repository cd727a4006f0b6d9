"""`paceline what-if`: what a step would take if some operations changed."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from app.cli.options import MetaFile, TraceFile
from app.cli.output import STANDARD_OUTPUT, write_json
from app.errors import InvalidRequest

if TYPE_CHECKING:
    from app.engine.questions.answer import WhatIfAnswer
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
    json_out: Annotated[
        Path | None,
        typer.Option("--json", help="Write the whole answer here; - is standard output."),
    ] = None,
) -> None:
    """Compute how long a step would take if some operations took a different time.

    Example: paceline what-if trace-AR.parquet --edit "op=pp-comm set=0" --edit "stage=3 factor=0.8"
    """
    from rich.console import Console

    from app.cli.output import refuse_to_overwrite
    from app.cli.terminal import stderr_console
    from app.cli.terminal.what_if import render_answer
    from app.engine.questions.answer import answer_as_json

    if not edit and edits is None:
        raise InvalidRequest('what-if wants --edit, such as --edit "op=pp-comm set=0", or --edits')
    refuse_to_overwrite("--json", json_out, trace, meta, edits)
    with stderr_console().status("replaying"):
        answer = _answer_of(trace, meta, edit or [], edits)
    if json_out is not None:
        write_json(answer_as_json(answer), json_out)
    if json_out != STANDARD_OUTPUT:
        Console().print(render_answer(answer))


def _answer_of(
    trace: Path, meta: Path | None, texts: list[str], file: Path | None
) -> "WhatIfAnswer":
    from app.cli.trace_input import errors_naming, read_trace
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
    from app.cli.output import printable

    name = "standard input" if path == STANDARD_INPUT else str(path)
    try:
        return QuestionIn.model_validate_json(_content(path, name)).all_edits()
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = printable("".join(f"{str(part)[:64]}." for part in first["loc"]))[:-1]
        problem = ": ".join(each for each in (name, where, first["msg"]) if each)
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
