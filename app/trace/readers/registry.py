"""Every foreign format that can be imported: one row each.

To add one: write app/trace/readers/NAME.py with `open_files` and `sample`, add its row here and
docs/feeds/NAME.md. The contract tests (tests/trace/readers/test_contract.py) and
`paceline bench fuzz --format NAME` then run over it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from app.errors import InvalidRequest
from app.trace.readers import (
    kineto,
    megatron_log,
    nccl_inspector,
    ndtimeline,
    nvrx,
    otlp,
    published_import,
)
from app.trace.readers.foreign import Import, Options, ScoreImport


@dataclass(frozen=True, slots=True)
class Format:
    """A foreign format.

    `opened` is cheap and reads nothing yet. `sample` makes a small good input, content by file
    name: what the contract tests read and the fuzz bench damages.
    """

    name: str
    what: str  # for `paceline import --help`: one line

    opened: Callable[[Sequence[Path], Options], Import]
    sample: Callable[[], Mapping[str, bytes]]


@dataclass(frozen=True, slots=True)
class ScoreFormat:
    """A foreign format that has scores of workers in place of operations."""

    name: str
    what: str
    opened: Callable[[Sequence[Path], Options], ScoreImport]
    sample: Callable[[], Mapping[str, bytes]]


_FORMATS: tuple[Format, ...] = (
    Format(
        published_import.NAME,
        "one parquet file of operations and its meta file, as StragglerAnalysis publishes them",
        published_import.open_files,
        published_import.sample,
    ),
    Format(
        otlp.NAME,
        "OTLP traces with Megatron-LM's span names, JSON or protobuf: host-side times",
        otlp.open_files,
        otlp.sample,
    ),
    Format(
        kineto.NAME,
        "Chrome traces of torch.profiler (Kineto), one file a rank, .json or .json.gz",
        kineto.open_files,
        kineto.sample,
    ),
    Format(
        ndtimeline.NAME,
        "records of veScale's ndtimeline as JSON, or its Chrome file",
        ndtimeline.open_files,
        ndtimeline.sample,
    ),
)
_SCORE_FORMATS: tuple[ScoreFormat, ...] = (
    ScoreFormat(
        nvrx.NAME,
        "straggler reports of the NVIDIA Resiliency Extension (JSON lines or log)",
        nvrx.open_files,
        nvrx.sample,
    ),
    ScoreFormat(
        megatron_log.NAME,
        "straggler detector lines and timers of all ranks in Megatron-LM logs",
        megatron_log.open_files,
        megatron_log.sample,
    ),
    ScoreFormat(
        nccl_inspector.NAME,
        "NCCL Inspector JSON lines, one file a process",
        nccl_inspector.open_files,
        nccl_inspector.sample,
    ),
)

FORMATS: dict[str, Format] = {each.name: each for each in _FORMATS}
SCORE_FORMATS: dict[str, ScoreFormat] = {each.name: each for each in _SCORE_FORMATS}


def named(name: str) -> Format | ScoreFormat:
    """The format that is called so.

    Raises:
        InvalidRequest: none is.
    """
    found = FORMATS.get(name) or SCORE_FORMATS.get(name)
    if found is None:
        known = ", ".join([*FORMATS, *SCORE_FORMATS])
        raise InvalidRequest(f"format {name[:40]!r} is not known: name one of {known}")
    return found
