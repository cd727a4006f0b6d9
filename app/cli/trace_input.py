"""Reads the input of a command: a published trace, or the torch.profiler files of one job.

Profiles are recognised by their content. Errors name the file.
"""

import gzip
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from app.cli.output import printable
from app.errors import InvalidRequest

if TYPE_CHECKING:
    from app.result.window_result import WindowResult
    from app.trace.window import Window


def read_trace(trace: Path, meta: Path | None = None, steps: str | None = None) -> "Window":
    """The trace's window, restricted to `steps` if given."""
    from app.trace.readers.published import trace_files

    with printable_errors():
        window = trace_files.read(trace, meta)
    _prepare_engine()
    with errors_naming(trace):
        return window if steps is None else select_steps(window, steps)


def select_steps(window: "Window", named: str) -> "Window":
    """The window with only these steps; incomplete ones are skipped with their reasons."""
    from app.trace.window import parse_step_ranges

    reasons = {skip.step: skip for skip in window.skipped}
    steps = parse_step_ranges(named, sorted([*window.steps, *reasons]))
    complete = [step for step in steps if step not in reasons]
    if not complete:
        step = steps[0]
        raise InvalidRequest(f"--steps: step {step} cannot be analysed: {reasons[step].reason}")
    skipped = tuple(reasons[step] for step in steps if step in reasons)
    return replace(window.only(complete), skipped=skipped)


@contextmanager
def errors_naming(trace: Path, advice: str = "") -> Iterator[None]:
    """Prefix errors of the block with the trace's name, and append `advice`."""
    try:
        yield
    except InvalidRequest as error:
        message = f"{trace.name}: {error}" + (f": {advice}" if advice else "")
        raise type(error)(printable(message)) from error


@contextmanager
def printable_errors() -> Iterator[None]:
    """Escape control characters in errors, which may quote names from files."""
    try:
        yield
    except InvalidRequest as error:
        raise type(error)(printable(str(error))) from error


_PARQUET = b"PAR1"
_GZIP = b"\x1f\x8b"
_JSON = (b"{", b"[")
_BLANK = b" \t\r\n\xef\xbb\xbf"


def are_profiles(paths: Sequence[Path]) -> bool:
    """Whether these are JSON files rather than one parquet trace."""
    first_bytes = [_first_bytes(path) for path in paths]
    if len(paths) == 1:
        is_named_json = paths[0].name.lower().endswith((".json", ".json.gz"))
        is_json = is_named_json or first_bytes[0].lstrip(_BLANK)[:1] in _JSON
        return is_json and not first_bytes[0].startswith(_PARQUET)
    for path, first in zip(paths, first_bytes, strict=True):
        if first.startswith(_PARQUET):
            raise InvalidRequest(
                f"{path.name} is a parquet trace: give one such trace, or only torch.profiler files"
            )
    return True


def _first_bytes(path: Path) -> bytes:
    """The first bytes, decompressed; empty if the file cannot be read."""
    try:
        with path.open("rb") as file:
            first = file.peek(2)[:2]
            if first == _GZIP:
                with gzip.open(file) as packed:
                    return packed.read(64)
            return file.read(64)
    except (OSError, EOFError, zlib.error, ValueError):
        return b""


def analyse_profiles(paths: Sequence[Path], steps: str | None) -> "WindowResult":
    """The result of some ranks' profiles."""
    from app.diagnosis.profiles import job, result

    with printable_errors():
        profiled = job.read(paths, steps)
        _prepare_engine()
        return result.profile_result(profiled)


def _prepare_engine() -> None:
    """Say what a command waits for, the first time on a machine; what it logs goes to stderr."""
    from app.telemetry import set_up_logging

    set_up_logging()
    # Registers the kernels that are counted below; the diagnosis, with others, loads slowly.
    import_module("app.engine.questions.answer")
    from app.engine.kernels import can_be_kept, num_missing

    if not num_missing():
        return
    from app.diagnosis.warm_up import compile_apart

    if not can_be_kept():
        places = "neither its own directory nor ~/.cache can be written to"
        hint = "set NUMBA_CACHE_DIR to one that can"
        typer.echo(f"Compiling the engine for this run alone: {places} ({hint})", err=True)
    else:
        typer.echo("Compiling the engine for this machine, once: some 20 seconds", err=True)
        compile_apart()
