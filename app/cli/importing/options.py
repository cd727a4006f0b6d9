"""What `paceline import` is told beside the files."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from app.errors import InvalidRequest
from app.trace.ops import OpTypes
from app.trace.readers import meta
from app.trace.readers.foreign import Options

_GROUPS = {"mb", "chunk", "step"}


def options_of(
    patterns: Sequence[str],
    sizes: Mapping[str, int | None],
    meta_path: Path | None,
    name: str | None,
) -> Options:
    """The options, checked; sizes that are given go before those of the meta file.

    Raises:
        InvalidRequest: a pattern is none, or names no op type.
    """
    about = meta.load(meta_path) if meta_path else None
    op_types = about.op_types if about else OpTypes()
    told = asdict(about.parallelism) if about else {}
    return Options(
        patterns=tuple(_pattern(each, op_types) for each in patterns),
        sizes=told | {key: size for key, size in sizes.items() if size is not None},
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
    if unknown := sorted(set(pattern.groupindex) - _GROUPS):
        raise InvalidRequest(
            f"--map {text!r}: group {unknown[0]!r} means nothing here: name mb, chunk or step"
        )
    return pattern, optype
