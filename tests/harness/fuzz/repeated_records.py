"""Families of files: the records of each format's sample, so many times, equal or numbered.

What a reader refuses at its first record shows nothing of what grouping, numbering and matching
cost. These are records that it takes: of many ranks, steps, streams and names, or many of one.
"""

import io
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from app.errors import PacelineError
from app.trace.readers.importing import ImportOptions
from app.trace.readers.registry import format_named
from tests.harness.fuzz.importing import use_ops
from tests.harness.fuzz.input_families import Family
from tests.harness.fuzz.repeated_items import TOGETHER, repeats_of
from tests.harness.samples import SAMPLES
from tests.harness.samples.otlp import MadeSpan, as_protobuf, resource, spans

FilesFamily = Callable[[int], Mapping[str, bytes]]
_NUMBER = re.compile(r"\d+")
_LINE_BYTES = 20  # of a row in a parquet file, before it is packed
_SPAN_BYTES = 100
_LENGTH_BYTES = 4
_APART = 10  # more than the sample's own numbers are
_Columns = dict[str, list[Any]]


def record_families(name: str) -> Iterator[tuple[str, FilesFamily]]:
    """Files of a format by their size in bytes; one file grows, the others are the sample's."""
    sample, seen = dict(SAMPLES[name]()), set()
    for file, content in sample.items():
        kind = _kind(file, content)
        if kind in seen or _is_meta(file):
            continue  # another file of the same kind
        seen.add(kind)
        for label, family in _of_content(content):
            yield f"{file} {label}", _whole(sample, file, family)
            if "rank" in label and len(sample) == 2 and any(map(_is_meta, sample)):
                # Where the meta file says how many there are, more of them are refused.
                yield f"{file} alone {label}", _whole({}, file, family)


def text_families(content: bytes) -> Iterator[tuple[str, Family]]:
    """Records of a text, JSON or a log, as a file or as a request's body."""
    document, is_lines = _parsed(content)
    if document is None:
        yield from _of_log(content.decode())
        return
    for each in repeats_of(document, is_lines=is_lines):
        yield each.name, each.family()


def importer(name: str, folder: Path) -> Callable[[Mapping[str, bytes]], bool]:
    """Imports files of a format to the end; returns whether they were taken."""
    chosen = format_named(name)

    def read(files: Mapping[str, bytes]) -> bool:
        for file, content in files.items():
            (folder / file).write_bytes(content)
        # The meta file is found beside the trace.
        paths = [folder / each for each in files if not _is_meta(each)]
        with suppress(PacelineError):
            with closing(chosen.opened(paths, ImportOptions())) as operations:
                use_ops(operations)
            return True
        return False

    return read


def _whole(
    sample: Mapping[str, bytes], file: str, family: Callable[[int], str | bytes]
) -> FilesFamily:
    def files(size: int) -> Mapping[str, bytes]:
        content = family(size)
        return {**sample, file: content.encode() if isinstance(content, str) else content}

    return files


def _is_meta(file: str) -> bool:
    return file.endswith(".yaml")


def _kind(file: str, content: bytes) -> str:
    document, _ = _parsed(content)
    if isinstance(document, list) and document and isinstance(document[0], dict):
        document = document[0]
    return f"{Path(file).suffix} {sorted(document) if isinstance(document, dict) else ''}"


def _of_content(content: bytes) -> Iterator[tuple[str, Callable[[int], str | bytes]]]:
    if content[:4] == b"PAR1":
        yield from _of_table(pq.read_table(io.BytesIO(content)).to_pydict())
    elif content[:1] == b"\0":  # the length of a protobuf message
        yield from span_families(is_framed=True)
    else:
        yield from text_families(content)


def _parsed(content: bytes) -> tuple[Any, bool]:
    """The JSON value of a text, or those in its lines; None for another text."""
    with suppress(ValueError):
        lines = [json.loads(line) for line in content.decode().splitlines() if line.strip()]
        if len(lines) == 1:
            return lines[0], False
        return lines, True
    return None, False


def _of_log(log: str) -> Iterator[tuple[str, Family]]:
    yield "whole log", lambda size: log * max(1, size // len(log))
    lines = log.splitlines(keepends=True)
    for at, line in enumerate(lines):
        before, after = "".join(lines[:at]), "".join(lines[at:])
        numbers = list(_NUMBER.finditer(line))
        label = f"line {at + 1}"
        yield f"{label}: equal", _numbered_lines(line, [], before, after)
        if len(numbers) > 1:
            yield f"{label}: all distinct", _numbered_lines(line, numbers, before, after)
        for which, number in enumerate(numbers, 1):
            yield (
                f"{label}: number {which} distinct",
                _numbered_lines(line, [number], before, after),
            )


def _numbered_lines(line: str, numbers: Sequence[re.Match[str]], before: str, after: str) -> Family:
    pieces, end = [], 0
    for each in numbers:
        pieces.append(line[end : each.start()])
        end = each.end()
    rest = line[end:]

    def unit(number: int) -> str:
        return "".join(f"{piece}{number}" for piece in pieces) + rest

    width = len(unit(10_000))
    return lambda size: before + "".join(map(unit, range(max(1, size // width)))) + after


def _of_table(columns: _Columns) -> Iterator[tuple[str, Callable[[int], bytes]]]:
    """Rows of a parquet file."""
    yield "rows: equal", _rows(columns, ())
    yield "rows: all distinct", _rows(columns, [*columns])
    for names in (*TOGETHER, frozenset({"step", "start_ts"}), frozenset({"mb_id", "start_ts"})):
        if names <= columns.keys():
            yield f"rows: {' and '.join(sorted(names))} distinct", _rows(columns, sorted(names))
    for name in columns:
        yield f"rows: {name} distinct", _rows(columns, [name])
        yield f"rows: without {name}", _rows({k: v for k, v in columns.items() if k != name}, ())


def _rows(columns: _Columns, distinct: Sequence[str]) -> Callable[[int], bytes]:
    num_rows = len(next(iter(columns.values())))

    def content(size: int) -> bytes:
        times = max(1, size // _LINE_BYTES // num_rows)
        number = np.repeat(np.arange(times), num_rows)
        made = {}
        for name, values in columns.items():
            if name in distinct and isinstance(values[0], str):
                made[name] = pa.array([f"{values[0]}{each}" for each in number.tolist()])
            else:
                column = np.tile(np.array(values), times)
                made[name] = pa.array(column + _APART * number if name in distinct else column)
        file = io.BytesIO()
        pq.write_table(pa.table(made), file)
        return file.getvalue()

    return content


def span_families(*, is_framed: bool, **more: Any) -> Iterator[tuple[str, Callable[[int], bytes]]]:
    """OTLP in protobuf: messages with their lengths, as in files, or one after the other."""

    def sent(made: Sequence[Sequence[MadeSpan]]) -> bytes:
        bodies = [as_protobuf(resource(1, **more), [*each]) for each in made]
        if not is_framed:
            return b"".join(bodies)
        return b"".join(len(body).to_bytes(_LENGTH_BYTES, "big") + body for body in bodies)

    whole = spans(1, range(5, 6))

    def count(size: int, per: int = len(whole)) -> range:
        return range(5, 6 + size // _SPAN_BYTES // per)

    def marks(size: int, **attributes: int) -> list[list[MadeSpan]]:
        """Each step's span alone, one a message."""
        last = whole[-1]
        return [
            [MadeSpan(last.name, each, last.start_ns + each, last.end_ns + each, attributes)]
            for each in count(size, 1)
        ]

    yield "messages: equal", lambda size: sent([whole for _ in count(size)])
    yield (
        "messages: steps distinct",
        lambda size: sent([spans(1, range(n, n + 1)) for n in count(size)]),
    )
    yield "one message: steps distinct", lambda size: sent([spans(1, count(size))])
    yield "one message: equal spans", lambda size: sent([whole * len(count(size))])
    yield "one span a message", lambda size: sent([[each] for each in spans(1, count(size))])
    yield (
        "one step of many passes",
        lambda size: sent([spans(1, range(5, 6), microbatches=max(1, size // _SPAN_BYTES // 2))]),
    )
    yield "steps without a number", lambda size: sent(marks(size))
    yield "steps of one number", lambda size: sent(marks(size, **{"megatron.iteration": 5}))
