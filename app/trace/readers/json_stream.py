"""Reads input files in bounded memory: bytes, with or without gzip, and JSON of any size.

JSON is decoded element by element. Error messages name the file.
"""

import errno
import gzip
import io
import os
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, TypeVar, cast

import msgspec

from app.errors import InvalidTrace

T = TypeVar("T")

_GZIP = b"\x1f\x8b"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_READ_BYTES = 1 << 20
# Exceptions of decoders for malformed input.
UNDECODABLE = (msgspec.DecodeError, RecursionError, ValueError)
# Of a value that is decoded, or of a string that is skipped.
MAX_VALUE_BYTES = 32 << 20
MAX_KEY_BYTES = 1 << 16
_MAX_SCALAR = 1024
_MAX_BACKWARDS = 256  # objects inspected in search of the end of an element
_BLANK = re.compile(rb"[ \t\r\n]*")
# A text up to its end or the end of the buffer, or a bracket. The quantifiers are possessive, since
# backtracking takes 60 bytes of memory per backslash in the text.
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+("?)|[{\[]|[}\]]', re.DOTALL)
_SCALAR_END = re.compile(rb"[ \t\r\n,\]}]")
_TEXT = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+("?)', re.DOTALL)


class InputFile:
    """A file that is read once, from its beginning to its end.

    Raises (all methods):
        InvalidTrace: the file cannot be read, or its gzip is damaged or cut off.
    """

    def __init__(self, path: Path) -> None:
        self.name = path.name
        self._path = path
        self._raw: io.BufferedReader | None = None
        self._file: BinaryIO | None = None

    def read(self) -> bytes:
        """The next piece of about a megabyte; empty at the end."""
        try:
            if self._file is None:
                self._raw = self._path.open("rb")
                self._file = _unpacked(self._raw)
                return self._file.read(_READ_BYTES).removeprefix(_BYTE_ORDER_MARK)
            # A buffered reader, since raw streams may return fewer bytes than are left.
            return self._file.read(_READ_BYTES)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise InvalidTrace(
                f"{self.name}: the gzip file is damaged or cut off: copy it again"
            ) from error
        except OSError as error:
            raise InvalidTrace(
                f"{self._path}: cannot be read: {why_unreadable(self._path, error)}"
            ) from error
        except ValueError as error:  # a name with a NUL
            raise InvalidTrace(f"{self._path}: is no file name: name a file") from error

    def close(self) -> None:
        """Close the file."""
        for file in (self._file, self._raw):  # closing the unpacked one leaves the packed one open
            if file is not None:
                file.close()


def _unpacked(file: io.BufferedReader) -> BinaryIO:
    if file.peek(2)[:2] != _GZIP:  # not by reading: a pipe has no seek
        return file
    return cast(BinaryIO, io.BufferedReader(gzip.GzipFile(fileobj=file), _READ_BYTES))


def why_unreadable(path: Path, error: OSError, file: str = "file") -> str:
    """Why a file cannot be read, and the remedy; `file` is the noun for its kind."""
    if error.errno == errno.EISDIR or path.is_dir():
        return f"it is a folder: name a {file}"
    if error.errno:
        return f"{os.strerror(error.errno)}: name a {file} that you may read"
    return "it is damaged: copy or record it again"


class JsonStream:
    """A cursor in one file's JSON; `number` is that of the current element or line, from 1.

    Raises (all methods):
        InvalidTrace: the text is no JSON at the cursor, or a value is too long.
    """

    def __init__(self, source: InputFile, *, noun: str = "element") -> None:
        self.name = source.name
        self.number = 0
        self._noun = noun
        self._source = source
        self._text = b""
        self._at = 0
        self._has_ended = False

    def place(self) -> str:
        """File and element, for a message."""
        return f"{self.name}: {self._noun} {self.number:,}" if self.number else self.name

    def refusal(self, reason: str) -> InvalidTrace:
        """An error at the current position."""
        return InvalidTrace(f"{self.place()}: {reason}")

    def peek(self) -> bytes:
        """The next byte that is not blank; empty at the end."""
        while True:
            blank = _BLANK.match(self._text, self._at)
            self._at = blank.end() if blank else self._at
            if self._at < len(self._text) or not self._more():
                return self._text[self._at : self._at + 1]

    def begins_with(self, size: int) -> bytes:
        """The next bytes, fewer at the end of the file, without consuming them."""
        self.peek()
        while len(self._text) - self._at < size and self._more():
            pass
        return self._text[self._at : self._at + size]

    def take(self, wanted: bytes) -> None:
        """Consume one expected byte."""
        byte = self.peek()
        if byte != wanted:
            shown = repr(byte.decode("latin-1")) if byte else "the end of the file"
            raise self.refusal(f"is no JSON: want {wanted.decode()!r} and find {shown}")
        self._at += 1

    def members(self) -> Iterator[str]:
        """Keys of the object at this position; the caller consumes each value."""
        self.take(b"{")
        is_first = True
        while self.peek() != b"}":
            if not is_first:
                self.take(b",")
            if self.peek() != b'"':
                raise self.refusal("is no JSON: want a key in quotation marks")
            key: str = self.value(msgspec.json.Decoder(str), MAX_KEY_BYTES)
            self.take(b":")
            yield key
            is_first = False
        self._at += 1

    def elements(self, decoder: "msgspec.json.Decoder[list[T]]") -> Iterator[T]:
        """Elements of the list at this position; `decoder` decodes a list.

        While an element is used, `number` is its own.
        """
        self.take(b"[")
        is_first = True
        while self.peek() != b"]":
            if not is_first:
                self.take(b",")
                self.peek()
            for element in self._many(decoder) or self._one(decoder):
                self.number += 1
                yield element
            is_first = False
        self._at += 1

    def lines(self, decoder: "msgspec.json.Decoder[T]") -> Iterator[T]:
        """The values to the end of the file, one a line; `number` as with `elements`."""
        while self.peek():
            end = self._text.rfind(b"\n", self._at) + 1
            if not end:
                if self._more(MAX_VALUE_BYTES):
                    continue
                end = len(self._text)
            block, self._at = self._text[self._at : end], end
            for value in self._decoded_lines(decoder, block):
                self.number += 1
                yield value

    def value(self, decoder: "msgspec.json.Decoder[T]", most: int = MAX_VALUE_BYTES) -> T:
        """Decode the value at this position."""
        return self._decoded(decoder, self._raw(most))

    def skip(self) -> None:
        """Skip the value at this position, in bounded memory."""
        self._raw(None)

    def end(self) -> None:
        """Check that only blanks follow."""
        if byte := self.peek():
            raise self.refusal(f"is no JSON: {byte.decode('latin-1')!r} follows after its end")

    def _many(self, decoder: "msgspec.json.Decoder[list[T]]") -> list[T] | None:
        """All complete elements in the buffer; None if their end cannot be located."""
        if len(self._text) - self._at < 1 << 16:
            self._more()
        cut = self._last_end()
        if cut is None:
            return None
        try:
            # The meaning of a byte of JSON depends only on those before it. So if this decodes as a
            # list, `cut` is between two elements and not inside one.
            elements = decoder.decode(b"[" + self._text[self._at : cut] + b"]")
        except UNDECODABLE:
            return None
        self._at = cut
        return elements

    def _last_end(self) -> int | None:
        """The last position in the buffer at which one object ends and another follows."""
        text, until = self._text, len(self._text)
        for _ in range(_MAX_BACKWARDS):
            until = text.rfind(b"{", self._at + 1, until)
            if until < 0:
                return None
            before = _last_visible(text, until - 1)
            if text[before : before + 1] == b",":
                before = _last_visible(text, before - 1)
                if text[before : before + 1] == b"}" and before >= self._at:
                    return before + 1
        return None

    def _one(self, decoder: "msgspec.json.Decoder[list[T]]") -> list[T]:
        self.number += 1
        elements = self._decoded(decoder, b"[" + self._raw(MAX_VALUE_BYTES) + b"]")
        self.number -= 1
        return elements

    def _decoded_lines(self, decoder: "msgspec.json.Decoder[T]", block: bytes) -> list[T]:
        try:
            return decoder.decode_lines(block)
        except UNDECODABLE:  # line by line, so that the message names the line
            before, values = self.number, []
            for line in block.split(b"\n"):
                if line.strip():
                    self.number += 1
                    values.append(self._decoded(decoder, line))
            self.number = before
            return values

    def _decoded(self, decoder: "msgspec.json.Decoder[T]", raw: bytes) -> T:
        try:
            return decoder.decode(raw)
        except UNDECODABLE as error:
            raise self.refusal(_decoder_message(error)) from error

    def _raw(self, most: int | None) -> bytes:
        """The text of the value at this position; empty, to skip the value, if `most` is None."""
        first = self.peek()
        if first in (b"{", b"["):
            return self._container(most)
        if first == b'"':
            return self._quoted(MAX_VALUE_BYTES if most is None else most)
        return self._scalar()

    def _more(self, most: int | None = None) -> bool:
        """Read the next piece and drop the consumed bytes; False at the end of the file."""
        if self._has_ended:
            return False
        if most is not None and len(self._text) - self._at > most:
            raise self.refusal(f"is longer than {most >> 20} MB: that is none of this format")
        piece = self._source.read()
        self._has_ended = not piece
        self._text = self._text[self._at :] + piece
        self._at = 0
        return bool(piece)

    def _container(self, most: int | None) -> bytes:
        depth, seen = 0, self._at
        while True:
            token = _TOKEN.search(self._text, seen)
            is_cut = token is not None and token[0][:1] == b'"' and not token[1]
            if token is None or is_cut:
                seen = self._passed(token.start() if token else len(self._text), most)
                continue
            seen = token.end()
            mark = token[0]
            depth += (mark in (b"{", b"[")) - (mark in (b"}", b"]"))
            if depth == 0:
                begin, self._at = self._at, seen
                return b"" if most is None else self._text[begin:seen]

    def _passed(self, seen: int, most: int | None) -> int:
        """Read the next piece; returns the position of `seen` in the new buffer."""
        if most is None:
            self._at = seen
        ahead = seen - self._at
        if not self._more(MAX_VALUE_BYTES if most is None else most):
            raise self.refusal("the file ends in the middle of a value: copy it again")
        return self._at + ahead

    def _quoted(self, most: int) -> bytes:
        while True:
            text = _TEXT.match(self._text, self._at)
            if text and text[1]:
                self._at = text.end()
                return text[0]
            self._passed(self._at, most)

    def _scalar(self) -> bytes:
        while True:
            separator = _SCALAR_END.search(self._text, self._at)
            if separator or len(self._text) - self._at > _MAX_SCALAR or not self._more():
                break
        begin, self._at = self._at, separator.start() if separator else len(self._text)
        if begin == self._at:
            raise self.refusal("is no JSON: want a value")
        return self._text[begin : min(self._at, begin + _MAX_SCALAR)]


def _last_visible(text: bytes, at: int) -> int:
    while at >= 0 and text[at : at + 1] in b" \t\r\n":
        at -= 1
    return at


def _decoder_message(error: Exception) -> str:
    """A decoder's message in the style of the other messages."""
    if isinstance(error, msgspec.ValidationError):
        reason = f"{str(error)[:200]}: is the file of this format?"
        return reason.replace("$[0]", "$").replace("$[...]", "$")  # of a list around one element
    if isinstance(error, RecursionError):
        return "is nested too deep: that is none of this format"
    reason = str(error)[:120].split(" (byte")[0]
    return f"is no JSON ({reason}): copy or record it again"
