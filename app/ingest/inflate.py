"""One layer of gzip or zstd taken off a body, in bounded space."""

import zlib
from typing import TypeVar

import zstandard

from app.errors import BadRequest, TooLarge
from app.ingest.unknown import UnknownFormat

GZIP = "gzip"
ZSTD = "zstd"
ENCODINGS = (GZIP, ZSTD)
MAX_BODY_BYTES = 8 << 20
MAX_DECODED_BYTES = 32 << 20
# A batch of operations shrinks to a tenth; what shrinks this far is made to hurt.
MAX_RATIO = 200
ANY_RATIO_BYTES = 1 << 20  # up to here the ratio does not matter
MAX_WINDOW_BYTES = 8 << 20  # what zstd may hold to look back in

_GZIP_MAGIC = b"\x1f\x8b"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_GZIP_FRAME = 16 + zlib.MAX_WBITS  # zlib's way to say: a gzip header and checksum, nothing else
# Same numbers, other words: the frame does not say how much there is in it.
_NO_SIZE = (zstandard.CONTENTSIZE_UNKNOWN, -1)
_PIECE_BYTES = 1 << 20

BytesT = TypeVar("BytesT", bytes, bytearray)


def encoding_in(body: bytes | bytearray) -> str:
    """The encoding that the first bytes of a body are of, "" for none."""
    if body.startswith(_ZSTD_MAGIC):
        return ZSTD
    return GZIP if body.startswith(_GZIP_MAGIC) else ""


def known_encoding(content_encoding: str) -> str:
    """The one encoding of a Content-Encoding header, "" for none.

    Raises:
        UnknownFormat: another, or several.
    """
    name = content_encoding.strip().lower()
    if name in ("", "identity"):
        return ""
    if name not in ENCODINGS:
        raise UnknownFormat(
            f"Content-Encoding {content_encoding[:100]!r} is not taken: send {GZIP}, {ZSTD} or "
            "none, one layer",
            known_encodings=ENCODINGS,
        )
    return name


def inflated(body: bytes, encoding: str) -> bytes | bytearray:
    """The body without this encoding; "" leaves it as it is.

    Raises:
        BadRequest: not one whole frame, or there is another one inside.
        TooLarge: more comes out than is taken.
    """
    plain = _INFLATE[encoding](body, _limit(len(body))) if encoding else body
    if inner := encoding_in(plain):
        layers = "twice: send one layer" if encoding else f"with {inner}: say so, Content-Encoding"
        raise BadRequest(f"the body is compressed {layers}")
    return plain


def _limit(wire_bytes: int) -> int:
    if wire_bytes > MAX_BODY_BYTES:
        raise TooLarge(f"a batch has at most {MAX_BODY_BYTES} bytes: split it")
    return min(MAX_DECODED_BYTES, max(ANY_RATIO_BYTES, MAX_RATIO * wire_bytes))


def _gunzip(body: bytes, limit: int) -> bytearray:
    # The last four bytes say how much there is, so that no room is taken twice; zlib checks them.
    plain = bytearray(min(int.from_bytes(body[-4:], "little"), limit))
    gzip, rest, filled = zlib.decompressobj(_GZIP_FRAME), body, 0
    while not gzip.eof:
        try:
            piece = gzip.decompress(rest, _PIECE_BYTES)
        except zlib.error as error:
            raise _broken(GZIP, str(error)) from error
        rest, end = gzip.unconsumed_tail, filled + len(piece)
        if end > limit:
            raise _too_large(limit)
        if end > len(plain):
            raise _broken(GZIP, "there is more in it than it says")
        if not (piece or rest or gzip.eof):
            raise _broken(GZIP, "it ends too early")
        plain[filled:end] = piece
        filled = end
    return _checked(plain, GZIP, gzip.unused_data, limit)


def _unzstd(body: bytes, limit: int) -> bytes | bytearray:
    zstd = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES)
    try:
        size = zstandard.get_frame_parameters(body).content_size
        if size in _NO_SIZE:
            return _unzstd_by_pieces(zstd, body, limit)
        # `decompress` believes it before its own limit.
        if size > limit:
            raise _too_large(limit)
        return zstd.decompress(body, max_output_size=limit, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise _broken(ZSTD, str(error)) from error


def _unzstd_by_pieces(zstd: zstandard.ZstdDecompressor, body: bytes, limit: int) -> bytes:
    # Bounded, but silent about where the frame ends; what it has bounded, the other tells.
    if len(zstd.stream_reader(body).read(limit + 1)) > limit:
        raise _too_large(limit)
    whole = zstd.decompressobj()
    plain = whole.decompress(body)
    if not whole.eof:
        raise _broken(ZSTD, "it ends too early")
    return _checked(plain, ZSTD, whole.unused_data, limit)


def _checked(plain: BytesT, encoding: str, unused: bytes, limit: int) -> BytesT:
    if len(plain) > limit:
        raise _too_large(limit)
    if unused:
        raise _broken(encoding, "more follows after its end")
    return plain


def _broken(encoding: str, reason: str) -> BadRequest:
    return BadRequest(f"the body is no single whole {encoding} frame: {reason}")


def _too_large(limit: int) -> TooLarge:
    return TooLarge(
        f"a batch has at most {MAX_DECODED_BYTES} bytes when inflated, and above {ANY_RATIO_BYTES} "
        f"at most {MAX_RATIO} times as many as compressed; this one has more than {limit}: split it"
    )


_INFLATE = {GZIP: _gunzip, ZSTD: _unzstd}


def decoded_bytes(body: bytes) -> int:
    """How many bytes a body from the queue takes when it is opened; at most so many, if unsure."""
    encoding = encoding_in(body)
    if encoding == GZIP:
        return min(int.from_bytes(body[-4:], "little"), MAX_DECODED_BYTES)
    if encoding == ZSTD:
        size = int(zstandard.frame_content_size(body))
        return size if 0 <= size <= MAX_DECODED_BYTES else MAX_DECODED_BYTES
    return len(body)
