"""A window's operations as they are stored: small, and nothing lost."""

import zlib
from typing import Any

import msgspec
import numpy as np
import zstandard
from numpy.typing import NDArray

from app.ingest.op_table import TABLE_DTYPES, OpTable

# Operation types are stored by code. That lasts: built-in rows are only ever appended, below
# the first code of a job's own types, which have the order of their run's registration.
# Format 1, of the first release, was compressed otherwise and knew no optional columns.
FORMAT = 2
_LEVEL = 1  # twice the size of the best one, for a tenth of the time
_ZLIB = b"\x78"


def pack(table: OpTable) -> bytes:
    """The table as bytes, each column compressed."""
    columns = {name: _pack_column(values) for name, values in table.columns().items()}
    return msgspec.msgpack.encode({"format": FORMAT, "columns": columns})


def unpack(blob: bytes) -> OpTable:
    """The table in bytes that `pack` made.

    Raises:
        ValueError: a newer version made them.
    """
    while blob[:1] == _ZLIB:  # format 1 was compressed as a whole, and twice
        blob = zlib.decompress(blob)
    message = msgspec.msgpack.decode(blob)
    if message["format"] not in (1, FORMAT):
        raise ValueError(f"stored operations of format {message['format']} are not known here")
    if message["format"] == FORMAT:
        for column in message["columns"].values():
            column["bytes"] = zstandard.decompress(column["bytes"])
    columns = message["columns"].items()
    return OpTable(**{name: _unpack_column(name, column) for name, column in columns})


def _pack_column(values: NDArray[Any]) -> dict[str, Any]:
    """Differences to the least value, in the narrowest integers that hold them."""
    least = int(values.min()) if values.size else 0
    most = int(values.max()) if values.size else 0
    dtype = np.min_scalar_type(most - least).newbyteorder("<")
    # Modulo 2**64, where the difference of any two values has room.
    offsets = values.view(f"u{values.itemsize}") - np.array(least, values.dtype).view(
        f"u{values.itemsize}"
    )
    data = zstandard.compress(offsets.astype(dtype, copy=False).data, _LEVEL)
    return {"least": least, "dtype": dtype.str, "bytes": data}


def _unpack_column(name: str, column: dict[str, Any]) -> Any:
    offsets = np.frombuffer(column["bytes"], dtype=column["dtype"]).astype(np.uint64)
    offsets += np.int64(column["least"]).view(np.uint64)
    return offsets.view(np.int64).astype(TABLE_DTYPES[name])
