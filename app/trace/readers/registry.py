"""Every foreign format that can be imported: one row each.

To add one: write app/trace/readers/NAME.py with `open_files` and `sample`, add its row here and
docs/feeds/NAME.md. The contract tests (tests/trace/readers/test_registry_contract.py) and the
fuzzer (`python -m benchmarks fuzz --format NAME`) then run over it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from app.errors import InvalidRequest
from app.trace.readers import ndtimeline
from app.trace.readers.importing import ImportOptions, OperationImport
from app.trace.readers.kineto import kineto_import
from app.trace.readers.otlp import otlp_import
from app.trace.readers.published import published_import


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
FORMATS: dict[str, Format] = {each.name: each for each in _FORMATS}


def format_named(name: str) -> Format:
    """The format of this name.

    Raises:
        InvalidRequest: there is none.
    """
    found = FORMATS.get(name)
    if found is None:
        known = ", ".join(FORMATS)
        raise InvalidRequest(f"format {name[:40]!r} is not known: name one of {known}")
    return found
