"""Checks the options of an import before anything is read.

The target is a file, a server, or neither if the files are only described.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from app.cli.output import STANDARD_OUTPUT
from app.errors import InvalidRequest
from app.trace.ops import OpTypes
from app.trace.readers.importing import ImportOptions
from app.trace.readers.published import meta


@dataclass(frozen=True, slots=True)
class ImportTarget:
    """A file, or a server; neither if the files are only described."""

    out: Path | None
    url: str | None
    token: str | None
    job: str | None
    run_key: str | None


def distinct_files(named: Sequence[Path] | None) -> tuple[Path, ...]:
    """The files, each once."""
    if not named:
        raise InvalidRequest("no file is named: name all files of one run after the format")
    seen: dict[Path, Path] = {}
    for path in named:
        absolute = path.resolve()
        if absolute in seen:
            raise InvalidRequest(f"{path}: the same file as {seen[absolute]}: name each file once")
        seen[absolute] = path
    return tuple(named)


def refuse_conflicts(target: ImportTarget, paths: Sequence[Path], meta_path: Path | None) -> None:
    """Check that there is one target, which is none of the input files."""
    if target.out and target.url:
        raise InvalidRequest("--out and --url: write a file or push to a server, not both")
    if target.run_key is not None and not target.url:
        raise InvalidRequest("--run-key is for a run on a server: give --url too")
    if target.out is None:
        return
    if target.out == STANDARD_OUTPUT:
        raise InvalidRequest("--out -: a trace is binary: name a file")
    for written in (target.out, meta.usual_path(target.out)):
        for read in (*paths, *([meta_path] if meta_path else [])):
            if written.exists() and read.exists() and written.samefile(read):
                raise InvalidRequest(
                    f"--out {target.out}: {written.name} is an input file: name another file"
                )


_PATTERN_GROUPS = {"mb", "chunk", "step"}


def import_options(
    patterns: Sequence[str],
    sizes: Mapping[str, int | None],
    meta_path: Path | None,
    name: str | None,
) -> ImportOptions:
    """The checked options; given sizes take precedence over those of the meta file."""
    about = meta.load(meta_path) if meta_path else None
    op_types = about.op_types if about else OpTypes()
    from_meta = asdict(about.parallelism) if about else {}
    return ImportOptions(
        patterns=tuple(_pattern(text, op_types) for text in patterns),
        sizes=from_meta | {key: size for key, size in sizes.items() if size is not None},
        op_types=op_types,
        name=name or (about.name if about else None),
        meta=meta_path,
    )


def _pattern(text: str, op_types: OpTypes) -> tuple[re.Pattern[str], str]:
    regex, equals, optype = text.rpartition("=")
    if not equals or not regex:
        raise InvalidRequest(
            f"--map {text!r}: want REGEX=OPTYPE, as in '^fwd (?P<mb>\\d+)$=forward-compute'"
        )
    if optype not in op_types.codes:
        raise InvalidRequest(
            f"--map {text!r}: there is no op type {optype!r}: use one of "
            f"{', '.join(op_types.codes)}, or register it in op_types of the --meta file"
        )
    try:
        pattern = re.compile(regex)
    except re.error as error:
        raise InvalidRequest(
            f"--map {text!r}: {regex!r} is no regular expression ({error})"
        ) from error
    if unknown := sorted(set(pattern.groupindex) - _PATTERN_GROUPS):
        raise InvalidRequest(
            f"--map {text!r}: group {unknown[0]!r} means nothing here: name mb, chunk or step"
        )
    return pattern, optype
