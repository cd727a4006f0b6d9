"""Every foreign format that can be imported: one row each.

To add one: write app/trace/readers/NAME.py with `open_files` and `sample`, add its row here and
docs/feeds/NAME.md. The contract tests (tests/trace/readers/test_registry_contract.py) and the
fuzzer (`python -m benchmarks fuzz --format NAME`) then run over it. `SCORE_READERS` reads texts
with scores out of a request's body.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from app.errors import InvalidRequest
from app.trace.readers import ndtimeline
from app.trace.readers.importing import ImportOptions, OperationImport
from app.trace.readers.kineto import kineto_import
from app.trace.readers.otlp import otlp_import
from app.trace.readers.published import published_import
from app.trace.readers.scores import megatron_log, nccl_inspector, nvrx
from app.trace.readers.scores.score_report import ReadScores, ScoreImport


@dataclass(frozen=True, slots=True)
class Format:
    """A foreign format.

    `opened` is cheap and reads nothing yet. `sample` makes a small good input, content by file
    name: input of the contract tests and of the fuzzer.
    """

    name: str
    what: str  # for `paceline import --help`: one line

    opened: Callable[[Sequence[Path], ImportOptions], OperationImport]
    sample: Callable[[], Mapping[str, bytes]]


@dataclass(frozen=True, slots=True)
class ScoreFormat:
    """A foreign format that has scores of workers in place of operations."""

    name: str
    what: str
    opened: Callable[[Sequence[Path], ImportOptions], ScoreImport]
    sample: Callable[[], Mapping[str, bytes]]


_FORMATS: tuple[Format, ...] = (
    Format(
        published_import.NAME,
        "one parquet file of operations and its meta file, as StragglerAnalysis publishes them",
        published_import.open_files,
        published_import.sample,
    ),
    Format(
        otlp_import.NAME,
        "OTLP traces with Megatron-LM's span names, JSON or protobuf: host-side times",
        otlp_import.open_files,
        otlp_import.sample,
    ),
    Format(
        kineto_import.NAME,
        "Chrome traces of torch.profiler (Kineto), one file a rank, .json or .json.gz",
        kineto_import.open_files,
        kineto_import.sample,
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


def format_named(name: str) -> Format | ScoreFormat:
    """The format of this name.

    Raises:
        InvalidRequest: there is none.
    """
    found = FORMATS.get(name) or SCORE_FORMATS.get(name)
    if found is None:
        known = ", ".join([*FORMATS, *SCORE_FORMATS])
        raise InvalidRequest(f"format {name[:40]!r} is not known: name one of {known}")
    return found


# Collectives of 256,000, in 4 MB: a request has room for some 14,000 records.
_MAX_REQUEST_BLOCKS = 2_000

SCORE_READERS: Mapping[str, ReadScores] = {
    nvrx.NAME: nvrx.read,
    megatron_log.NAME: megatron_log.read,
    nccl_inspector.NAME: partial(nccl_inspector.read, max_blocks=_MAX_REQUEST_BLOCKS),
}
