"""The foreign formats that can be imported.

To add one: write app/trace/readers/NAME.py with a `SpooledImport`, add its row here, a small good
input to tests/harness/samples/ and docs/feeds/NAME.md. The contract tests
(tests/trace/readers/test_registry_contract.py) and the fuzzer (`python -m benchmarks fuzz --format
NAME`) then run over it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from app.errors import InvalidRequest
from app.trace.readers.importing import ImportOptions, OperationImport
from app.trace.readers.kineto.kineto_import import KinetoImport
from app.trace.readers.ndtimeline import NdtimelineImport
from app.trace.readers.otlp.otlp_import import OtlpImport
from app.trace.readers.published.trace_files import PublishedImport


@dataclass(frozen=True, slots=True)
class Format:
    """A foreign format; `opened` makes its import without reading the files yet."""

    name: str
    description: str  # one line for `paceline import --help`
    opened: Callable[[Sequence[Path], ImportOptions], OperationImport]


FORMATS: dict[str, Format] = {
    row.name: row
    for row in (
        Format(
            "published",
            "one parquet file of operations and its meta file, as StragglerAnalysis publishes them",
            PublishedImport,
        ),
        Format(
            "otlp",
            "OTLP traces with Megatron-LM's span names, JSON or protobuf: host-side times",
            OtlpImport,
        ),
        Format(
            "kineto",
            "Chrome traces of torch.profiler (Kineto), one file a rank, .json or .json.gz",
            KinetoImport,
        ),
        Format(
            "ndtimeline",
            "records of veScale's ndtimeline as JSON, or its Chrome file",
            NdtimelineImport,
        ),
    )
}


def format_named(name: str) -> Format:
    """The format of this name; raises InvalidRequest if no format has this name."""
    if name not in FORMATS:
        known = ", ".join(FORMATS)
        raise InvalidRequest(f"format {name[:40]!r} is not known: name one of {known}")
    return FORMATS[name]
