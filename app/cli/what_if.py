"""`paceline what-if`: a user's own question about a recorded job."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from app.cli.files import STANDARD_OUTPUT, write_json
from app.cli.options import MetaFile, TraceFile
from app.errors import InvalidRequest

if TYPE_CHECKING:
    from app.engine.questions.answer import Answer
    from app.engine.questions.edits import Edit

STANDARD_INPUT = Path("-")
_MAX_FILE_BYTES = 8 << 20


def what_if(
    trace: TraceFile,
    meta: MetaFile = None,
    edit: Annotated[
        list[str] | None,
        typer.Option(
            help="What to change, in order: op, stage, dp, worker, step, mb select operations; "
            "ideal, factor=X, add=SECONDS, set=SECONDS (5ms, 20us) or from=DP/STAGE change them.",
            metavar="EDIT",
        ),
    ] = None,
    edits: Annotated[
        Path | None,
        typer.Option(
            help="The same as JSON for the API, made before every --edit; - for standard input.",
            metavar="FILE.json",
        ),
    ] = None,
    json_out: Annotated[
        Path | None,
        typer.Option("--json", help="Write the whole answer here; - for standard output only."),
    ] = None,
) -> None:
    """Say what a step would take if some operations took another time.

    Example: paceline what-if trace-AR.parquet --edit "op=pp-comm set=0" --edit "stage=3 factor=0.8"
    """
    from rich.console import Console

    from app.cli.console import notes
    from app.cli.inputs import refuse_to_overwrite
    from app.cli.what_if_screen import shown
    from app.engine.questions.answer import as_json

    if not edit and edits is None:
        raise InvalidRequest('what-if wants --edit, such as --edit "op=pp-comm set=0", or --edits')
    refuse_to_overwrite("--json", json_out, trace, meta, edits)
    with notes().status("replaying"):
        answer = _answer(trace, meta, edit or [], edits)
    if json_out is not None:
        write_json(as_json(answer), json_out)
    if json_out != STANDARD_OUTPUT:
        Console().print(shown(answer, as_json(answer)))


def _answer(trace: Path, meta: Path | None, texts: list[str], file: Path | None) -> "Answer":
    from app.cli.edit_text import parse
    from app.cli.recorded import errors_about, read
    from app.engine.questions.answer import Questions
    from app.engine.replays import prepare

    from_file = _read_edits(file) if file is not None else []
    window = read(trace, meta)
    typed = [parse(text, window.steps) for text in texts]
    with errors_about(trace):
        return Questions(prepare(window)).answer([*from_file, *typed])


def _read_edits(path: Path) -> "list[Edit]":
    """The edits in a file of the API's request body.

    Raises:
        InvalidRequest: it cannot be read, or says what no edits can be.
    """
    from pydantic import ValidationError

    from app.api.edits import QuestionIn
    from app.cli.files import printable

    name = "standard input" if path == STANDARD_INPUT else str(path)
    try:
        return QuestionIn.model_validate_json(_content(path, name)).all_edits()
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = printable("".join(f"{str(part)[:64]}." for part in first["loc"]))[:-1]
        said = ": ".join(each for each in (name, where, first["msg"]) if each)
        raise InvalidRequest(
            f'{said}: write {{"edits": [{{"select": {{...}}, '
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
        raise InvalidRequest(f"{name} is larger than 8 MiB: a question has few edits")
    return content
