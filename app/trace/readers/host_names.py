"""Which worker is on which host, by a column with a name in every row."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from app.errors import InvalidTrace
from app.trace.window import Trace

Hosts = dict[tuple[int, int], str]
Coded = tuple[list[str], NDArray[Any]]


def hosts_of(path: Path, coded_names: Coded, trace: Trace) -> Hosts:
    """Host by (dp rank, stage); rows without a name say nothing.

    Raises:
        InvalidTrace: one worker is on two hosts.
    """
    names, codes = coded_names
    num_stages = int(trace.stage.max()) + 1
    worker = trace.dp_rank.astype(np.int64) * num_stages + trace.stage
    places = np.unique(worker[codes >= 0] * max(len(names), 1) + codes[codes >= 0])
    found: Hosts = {}
    for place in places.tolist():
        of, code = divmod(place, max(len(names), 1))
        where = (of // num_stages, of % num_stages)
        if where in found:
            raise InvalidTrace(
                f"{path.name}: column host: dp_rank {where[0]}, stage {where[1]} is on "
                f"{found[where]!r} and on {names[code]!r}: give each worker one host"
            )
        found[where] = names[code]
    return found


def coded(path: Path, column: Any) -> Coded:
    """The names, and [rows] which of them a row has, -1 for none.

    Raises:
        InvalidTrace: they are no names.
    """
    try:
        whole = pc.cast(column, pa.string()).combine_chunks().dictionary_encode()
        if isinstance(whole, pa.ChunkedArray):
            whole = whole.combine_chunks()
        names = whole.dictionary.to_pylist()
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise InvalidTrace(f"{path.name}: column host is {column.type}: want names") from error
    return names, whole.indices.fill_null(-1).to_numpy(zero_copy_only=False)
