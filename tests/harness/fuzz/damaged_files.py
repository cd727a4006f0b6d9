"""A format's sample files, damaged: by bytes, by tokens, by packing, by values."""

import gzip
import io
import random
import re
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

_TOKEN = re.compile(
    rb'-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?|"(?:[^"\\]|\\.)*"|true|false|null|[\[\]{},:]'
)
_TOKENS = (
    b"0", b"-1", b"1", b"3", b"1.5", b"-0.0", b"1e400", b"-1e308", b"1e-320", b"1" * 400,
    b"9223372036854775807", b"9223372036854775808", b"18446744073709551616", b"9e15", b"9.5e15",
    b"NaN", b"Infinity", b"null", b"true",
    b"[]", b"{}", b"[[]]", b"[0,0]", b'""', b'"x"', b'"1"', b'"\\ud800"', b'"\\u0000"',
    b'"' + b"a" * 300, b"[" * 40, b",", b":", b"}", b"]", b"\xff\xfe", b"\n", b"\x00",
)  # fmt: skip
_NUMBERS: tuple[Any, ...] = (
    *(0, -1, 1, 7, 2**15, 2**31, 2**62, 2**63 - 1, 2**63, None),
    *(0.5, -0.5, 9e15, 9.5e15, 1e300, float("nan")),
)


class DamagedFiles:
    """One damaged input after the other; the same seed and number, the same input."""

    def __init__(self, files: Mapping[str, bytes], seed: int) -> None:
        self.files = dict(files)
        self._names = sorted(files)
        self._seed = seed

    def __getitem__(self, number: int) -> tuple[str, bytes]:
        """Name and content of the damaged file."""
        rng = random.Random(f"{self._seed}/{number}")
        name = rng.choice(self._names)
        content = self.files[name]
        if content[:4] == b"PAR1" and rng.random() < 0.15:
            content = _other_values(content, rng)
        for _ in range(rng.choice((1, 1, 1, 2, 4))):
            content = rng.choice(_KINDS)(content, rng)
        if rng.random() < 0.05:
            content = _packed(content, rng)
        return name, content


def _flip(content: bytes, rng: random.Random) -> bytes:
    if not content:
        return b"\x00"
    changed = bytearray(content)
    changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _cut(content: bytes, rng: random.Random) -> bytes:
    return content[: rng.randrange(len(content) + 1)]


def _remove(content: bytes, rng: random.Random) -> bytes:
    begin = rng.randrange(len(content) + 1)
    return content[:begin] + content[begin + rng.choice((1, 2, 8, 64)) :]


def _repeat(content: bytes, rng: random.Random) -> bytes:
    begin = rng.randrange(len(content) + 1)
    end = begin + rng.choice((1, 8, 64, 512))
    return content[:end] + content[begin:end] * rng.choice((1, 3)) + content[end:]


def _insert(content: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(content) + 1)
    return content[:at] + rng.choice(_TOKENS) + content[at:]


def _other_token(content: bytes, rng: random.Random) -> bytes:
    """Replace a token near a random position."""
    found = _TOKEN.search(content, rng.randrange(len(content) + 1))
    if found is None:
        return _insert(content, rng)
    return content[: found.start()] + rng.choice(_TOKENS) + content[found.end() :]


def _swapped(content: bytes, rng: random.Random) -> bytes:
    """Two lines, or two halves of one, in each other's place."""
    lines = content.split(b"\n")
    if len(lines) < 3:
        at = rng.randrange(len(content) + 1)
        return content[at:] + content[:at]
    one, other = rng.randrange(len(lines)), rng.randrange(len(lines))
    lines[one], lines[other] = lines[other], lines[one]
    return b"\n".join(lines)


def _packed(content: bytes, rng: random.Random) -> bytes:
    """As a gzip file, whole, cut off or with a wrong bit."""
    whole = gzip.compress(content, 1, mtime=0)
    return rng.choice((lambda each, _: each, _cut, _flip, _remove))(whole, rng)


def _other_values(content: bytes, rng: random.Random) -> bytes:
    """A parquet file with a value changed, or a column renamed or left out."""
    columns = pq.read_table(io.BytesIO(content)).to_pydict()
    name = rng.choice(sorted(columns))
    kind = rng.randrange(4)
    if kind == 0:
        columns[name + "x"] = columns.pop(name)
    elif kind == 1:
        columns[name] = [rng.choice(_NUMBERS)] * len(columns[name])
    else:
        columns[name][rng.randrange(len(columns[name]))] = rng.choice(_NUMBERS)
    file = io.BytesIO()
    try:
        pq.write_table(pa.table(columns), file)
    except (pa.ArrowException, OverflowError):
        return content  # no column can hold both
    return file.getvalue()


_KINDS = (
    _flip,
    _cut,
    _remove,
    _repeat,
    _insert,
    _other_token,
    _other_token,
    _other_token,
    _swapped,
)
