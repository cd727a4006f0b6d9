"""Bodies that are small to send and large or slow to read."""

import gzip
import json
import random
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import msgspec
import zstandard

from app.ingest.wire.body import GZIP, MAX_BODY_BYTES, MAX_DECODED_BYTES, MAX_ROWS, ZSTD
from app.ingest.wire.codec import BINARY_TYPE, JSON_TYPE, encode
from app.trace.window import OPTIONAL
from tests.harness.batches import simulated_batch

_HUGE_BYTES = 256 << 20
_LEVEL = 3
_INTEGERS = (
    "step",
    "start_ns",
    "duration_ns",
    "seq_id",
    "mc",
    "mb_id",
    *OPTIONAL,
)
_GPU_COLUMNS = ("sm_clock_mhz", "temperature_c", "power_w", "xid")
_PRIME = 2**61 - 1  # what Python takes integers' hashes modulo
_HEADER = b'{"version":1,"epoch":1,"rank":0,"dp_rank":0,"stage":0,"batch_seq":0,"steps_done":'

Bomb = tuple[str, str, str, bytes]  # name, content type, encoding, body


@cache
def bombs() -> Sequence[Bomb]:
    """Created once: some take a second."""
    return (*_compressed_zeros(), *_many_values(), *_in_msgpack())


def _compressed_zeros() -> Iterator[Bomb]:
    zipped = gzip_of_zeros(_HUGE_BYTES)
    yield "gzip", BINARY_TYPE, GZIP, zipped
    yield "gzip of gzip", BINARY_TYPE, GZIP, gzip.compress(zipped)
    yield "gzip in zstd", BINARY_TYPE, ZSTD, zstandard.compress(zipped)
    yield "gzip that is not said", BINARY_TYPE, "", zipped
    zeros = bytes(_HUGE_BYTES)
    yield "zstd", BINARY_TYPE, ZSTD, zstandard.ZstdCompressor(_LEVEL).compress(zeros)
    sizeless = zstandard.ZstdCompressor(_LEVEL, write_content_size=False)
    yield "zstd without its size", BINARY_TYPE, ZSTD, sizeless.compress(zeros)
    wide = zstandard.ZstdCompressionParameters.from_level(_LEVEL, window_log=27)
    window = zstandard.ZstdCompressor(compression_params=wide).compressobj()
    yield "zstd with a window of 128 MiB", BINARY_TYPE, ZSTD, window.compress(b"0") + window.flush()
    honest = encode(simulated_batch(200))
    yield "zstd in zstd", BINARY_TYPE, ZSTD, zstandard.compress(zstandard.compress(honest))


def gzip_of_zeros(size_bytes: int) -> bytes:
    """So many zeros, compressed a piece at a time."""
    return gzip.compress(bytes(size_bytes))


def _many_values() -> Iterator[Bomb]:
    """As many JSON values as fit into the limits of sent and of decoded bytes."""
    texts = {
        "numbers": (b'[],"columns":{"step":[', b"0,", b"0]," + _others("step") + b"}}"),
        "names": (b'[],"columns":{"optype":[', b'"",', b'""],' + _others("optype") + b"}}"),
        "steps": (b"[", b"[0,0],", b'[0,0]],"columns":{' + _others() + b"}}"),
        "rows": (b'[],"rows":[', _row() + b",", _row() + b"]}"),
        "rows of nothing": (b'[],"rows":[', b"0,", b"0]}"),
        "unknown keys": (b"[],", b'"a":0,', b'"a":0}'),
        "brackets": (b"", b"[", b""),
        "blanks": (b"", b" ", b"[]}"),
    }
    for name, (begin, again, end) in texts.items():
        for size_bytes, encoding in ((MAX_BODY_BYTES, ""), (MAX_DECODED_BYTES, GZIP)):
            times = (size_bytes - len(_HEADER + begin + end)) // len(again)
            text = _HEADER + begin + again * times + end
            body = gzip.compress(text, _LEVEL) if encoding else text
            yield f"{name} in JSON {encoding}", JSON_TYPE, encoding, body
    # Random numbers keep the compression ratio low, so that these are read to their end.
    rng = random.Random(1)
    digits = bytes(48 + byte % 10 for byte in range(256))
    numbers = b",".join(bytes([each]) for each in rng.randbytes(15 << 20).translate(digits))
    text = _HEADER + b'[],"columns":{"step":[' + numbers + b"]," + _others("step") + b"}}"
    yield "numbers of chance", JSON_TYPE, ZSTD, zstandard.compress(text)
    yield "all rows in JSON", JSON_TYPE, ZSTD, zstandard.compress(_full(rng))


def _others(*but: str) -> bytes:
    """The columns that a batch needs, empty."""
    needed = ("step", "optype", "start_ns", "duration_ns")
    return b",".join(b'"%b":[]' % name.encode() for name in needed if name not in but)


def _full(rng: random.Random) -> bytes:
    """The largest accepted batch, with numbers as large as fit into a body."""

    def integers(name: str) -> bytes:
        if name in _GPU_COLUMNS:
            return b",".join([b"1"] * MAX_ROWS)
        return b",".join(b"%d" % rng.randrange(2**52, 2**53) for _ in range(MAX_ROWS))

    names = b",".join([b'"optimizer"'] * MAX_ROWS)
    columns = b",".join(b'"%b":[%b]' % (name.encode(), integers(name)) for name in _INTEGERS)
    return b'%b[],"columns":{"optype":[%b],%b}}' % (_HEADER, names, columns)


def _row() -> bytes:
    row = {"step": 10**9, "optype": "o" * 60, "start_ns": 10**18, "duration_ns": 10**9}
    return json.dumps(row).encode()


def _in_msgpack() -> Iterator[Bomb]:
    maps = b"\xdd" + (5_000_000).to_bytes(4, "big") + b"\x80" * 5_000_000
    yield "empty maps", BINARY_TYPE, "", maps
    for key in ("columns", "optypes", "steps_done", "host"):
        yield f"empty maps as {key}", BINARY_TYPE, "", b"\x81" + _packed(key) + maps
    pairs = b"".join(_packed(number * _PRIME) + b"\x00" for number in range(1, 8))
    many = [_packed(2**64 - 1 - (2**64 - 1) % _PRIME) + b"\x00"] * 20_000
    yield "keys of one hash", BINARY_TYPE, "", b"\xde\x4e\x20" + pairs + b"".join(many)
    deep = b"\x91" * 1_000_000
    yield "a deep list", BINARY_TYPE, "", deep
    yield "a deep list as host", BINARY_TYPE, "", b"\x81" + _packed("host") + deep
    names = b"\xdd" + (2**32 - 1).to_bytes(4, "big")
    yield "a length that lies", BINARY_TYPE, "", b"\x81" + _packed("optypes") + names


def _packed(value: Any) -> bytes:
    return msgspec.msgpack.encode(value)
