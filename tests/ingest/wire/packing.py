"""Reference implementation of the packed columns of the wire format."""

from collections.abc import Sequence
from typing import Any

import msgspec


def differences(values: Sequence[int], kind: int, durations: Sequence[int]) -> list[int]:
    """Numbers to write by kind: 0 values, 1 differences, 2 differences to the previous end."""
    if kind == 0:
        return list(values)
    before = [0, *values[:-1]]
    ends = [0, *durations[:-1]] if kind == 2 else [0] * len(values)
    return [value - last - end for value, last, end in zip(values, before, ends, strict=True)]


def width_of(numbers: Sequence[int]) -> int:
    """The fewest bytes that hold every number."""
    return next(
        width
        for width in range(1, 10)
        if all(-(1 << 8 * width - 1) <= each < 1 << 8 * width - 1 for each in numbers)
    )


def planes(numbers: Sequence[int], width: int) -> bytes:
    """Byte 0 of all, then byte 1 of all, ..."""
    whole = [each.to_bytes(width, "little", signed=True) for each in numbers]
    return b"".join(bytes(each[at] for each in whole) for at in range(width))


def packed(
    values: Sequence[int],
    kind: int = 0,
    *,
    width: int | None = None,
    durations: Sequence[int] = (),
) -> list[Any]:
    """The packed column as a batch has it."""
    numbers = differences(values, kind, durations)
    width = width_of(numbers) if width is None else width
    return [kind, width, planes(numbers, width)]


def packed_batch(fields: dict[str, Any], kinds: dict[str, int], **widths: int) -> bytes:
    """A JSON batch as msgpack, with the named columns packed by these kinds."""
    from tests.ingest.wire.test_codec_forms import binary_of

    batch = msgspec.msgpack.decode(binary_of(fields))
    columns = dict(fields["columns"])
    columns["optype"] = [batch["optypes"].index(name) for name in columns["optype"]]
    for name, kind in kinds.items():
        batch["columns"][name] = packed(
            columns[name], kind, width=widths.get(name), durations=columns["duration_ns"]
        )
    return msgspec.msgpack.encode(batch)
