"""What an import gives, as the files that `published.read` takes."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from app.trace.job import Job
from app.trace.readers import meta
from app.trace.readers.foreign import Described, Import, RankRows
from app.trace.readers.published import Writer
from app.trace.window import OPTIONAL, Floats, Integers, Trace

_ROWS_AT_ONCE = 1 << 16


def write(
    opened: Import, job: Job, file: BinaryIO, progress: Callable[[int], None] = lambda _: None
) -> None:
    """Write every row as parquet, some at a time; `progress` is told how many more.

    Raises:
        InvalidTrace: rows are wrong.
        OSError: the file cannot be written.
    """
    described = opened.describe()
    hosts = {
        (place.dp_rank, place.stage): place.host
        for place in described.places.values()
        if place.host is not None
    }
    with Writer(file, job) as writer:
        for pieces in _together(opened.chunks()):
            trace, gmc = trace_of(pieces, described), None
            if "gmc" in described.more:
                gmc = np.concatenate([piece.more["gmc"] for piece in pieces])
            origin_ns = _origins(described, trace.step)
            writer.add(trace, hosts=hosts or None, origin_ns=origin_ns, gmc=gmc)
            progress(trace.num_ops)


def meta_text(described: Described, job: Job) -> str:
    """The meta file that belongs beside it."""
    run_id: int | str = described.run_key or 0
    if isinstance(run_id, str) and run_id.isascii() and run_id.isdecimal() and len(run_id) < 19:
        run_id = int(run_id)
    return meta.text(job, run_id=run_id, labels=described.labels)


def trace_of(pieces: Sequence[RankRows], described: Described) -> Trace:
    """The pieces' rows as a trace; starts count from the beginning of their step."""
    sizes = [piece.step.size for piece in pieces]

    def all_of(name: str) -> NDArray[Any]:
        return np.concatenate([getattr(piece, name) for piece in pieces])

    def of_each(name: str) -> NDArray[Any]:
        return np.repeat([getattr(piece, name) for piece in pieces], sizes)

    seconds = [piece.seconds or _seconds(piece, described) for piece in pieces]
    more = [name for name in described.more if name in OPTIONAL]
    return Trace(
        **{name: of_each(name) for name in ("rank", "dp_rank", "stage")},
        **{name: all_of(name) for name in ("step", "optype", "seq_id", "mc", "mb_id")},
        **{name: np.concatenate([piece.more[name] for piece in pieces]) for name in more},
        start_s=np.concatenate([start_s for start_s, _ in seconds]),
        duration_s=np.concatenate([duration_s for _, duration_s in seconds]),
    )


def _seconds(piece: RankRows, described: Described) -> tuple[Floats, Floats]:
    start_ns = piece.start_ns
    if described.origin_ns is not None:
        start_ns = start_ns - described.origin_ns[np.searchsorted(described.steps, piece.step)]
    return np.multiply(start_ns, 1e-9), np.multiply(piece.duration_ns, 1e-9)


def _origins(described: Described, step: Integers) -> dict[int, int] | None:
    """What times of these rows' steps count from."""
    if described.origin_ns is None:
        return None
    at = np.unique(np.searchsorted(described.steps, step))
    return dict(zip(described.steps[at].tolist(), described.origin_ns[at].tolist(), strict=True))


def _together(chunks: Iterator[RankRows]) -> Iterator[list[RankRows]]:
    """The chunks, so many together as are worth a row group."""
    found: list[RankRows] = []
    num_rows = 0
    for chunk in chunks:
        found.append(chunk)
        num_rows += chunk.step.size
        if num_rows >= _ROWS_AT_ONCE:
            yield found
            found, num_rows = [], 0
    if found:
        yield found
