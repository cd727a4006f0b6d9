"""Input files in bounded memory: bytes, packed by gzip or not, and JSON of any size in them.

JSON is read element by element. Refusals name the file.
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
# What decoders raise for malformed input.
UNDECODABLE = (msgspec.DecodeError, RecursionError, ValueError)
# Of a value that is decoded, or of a string that is skipped.
MAX_VALUE_BYTES = 32 << 20
MAX_KEY_BYTES = 1 << 16
_MAX_SCALAR = 1024
_MAX_BACKWARDS = 256  # objects looked at for the end of an element before going one by one
_BLANK = re.compile(rb"[ \t\r\n]*")
# A text up to its end or that of the buffer, a bracket, or what separates values. Possessive, as
# what a text could give back is remembered: 60 bytes for each of its backslashes.
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+("?)|[{\[]|[}\]]', re.DOTALL)
_SCALAR_END = re.compile(rb"[ \t\r\n,\]}]")
_TEXT = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+("?)', re.DOTALL)


class InputFile:
    """A file that is read once, from its beginning to its end.

    Raises (each method):
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
            # Whole pieces, as some streams give less than there is.
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
        for file in (self._file, self._raw):  # what unpacks does not close what is packed
            if file is not None:
                file.close()


def _unpacked(file: io.BufferedReader) -> BinaryIO:
    if file.peek(2)[:2] != _GZIP:  # a pipe cannot be wound back
        return file
    return cast(BinaryIO, io.BufferedReader(gzip.GzipFile(fileobj=file), _READ_BYTES))


def why_unreadable(path: Path, error: OSError, file: str = "file") -> str:
    """Why a file, or one of some kind, cannot be read, and what to do."""
    if error.errno == errno.EISDIR or path.is_dir():
        return f"it is a folder: name a {file}"
    if error.errno:
        return f"{os.strerror(error.errno)}: name a {file} that you may read"
    return "it is damaged: copy or record it again"


class JsonStream:
    """A cursor in one file's text; `number` counts the elements (or lines) up to this one.

    Raises (each method):
        InvalidTrace: the text is no JSON there, or a value is too long.
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
        """File and element, for a message; elements count from 1."""
        return f"{self.name}: {self._noun} {self.number:,}" if self.number else self.name

    def refusal(self, reason: str) -> InvalidTrace:
        """An error at the current position."""
        return InvalidTrace(f"{self.place()}: {reason}")

    def peek(self) -> bytes:
        """The next byte that is not blank; empty at the end."""
        while True:
            found = _BLANK.match(self._text, self._at)
            self._at = found.end() if found else self._at
            if self._at < len(self._text) or not self._more():
                return self._text[self._at : self._at + 1]

    def begins_with(self, size: int) -> bytes:
        """The next bytes (all that are left, if fewer), without consuming them."""
        self.peek()
        while len(self._text) - self._at < size and self._more():
            pass
        return self._text[self._at : self._at + size]

    def take(self, wanted: bytes) -> None:
        """Consume one expected byte."""
        found = self.peek()
        if found != wanted:
            shown = repr(found.decode("latin-1")) if found else "the end of the file"
            raise self.refusal(f"is no JSON: want {wanted.decode()!r} and find {shown}")
        self._at += 1

    def members(self) -> Iterator[str]:
        """Keys of the object at this position; the caller consumes each value."""
        self.take(b"{")
        if self.peek() == b"}":
            self._at += 1
            return
        while True:
            if self.peek() != b'"':
                raise self.refusal("is no JSON: want a key in quotation marks")
            key: str = self.value(msgspec.json.Decoder(str), MAX_KEY_BYTES)
            self.take(b":")
            yield key
            if self.peek() == b"}":
                self._at += 1
                return
            self.take(b",")

    def elements(self, decoder: "msgspec.json.Decoder[list[T]]") -> Iterator[T]:
        """Elements of the list at this position; `decoder` decodes a list.

        While an element is used, `number` is its own.
        """
        self.take(b"[")
        if self.peek() == b"]":
            self._at += 1
            return
        while True:
            for element in self._many(decoder) or self._one(decoder):
                self.number += 1
                yield element
            if self.peek() == b"]":
                self._at += 1
                return
            self.take(b",")
            self.peek()

    def lines(self, decoder: "msgspec.json.Decoder[T]") -> Iterator[T]:
        """One value a line to the end of the file; `number` as with `elements`."""
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
        raw = self._raw(most)
        try:
            return decoder.decode(raw)
        except UNDECODABLE as error:
            raise self.refusal(_decoder_message(error)) from error

    def skip(self) -> None:
        """Skip the value at this position, in bounded memory."""
        self._raw(None)

    def end(self) -> None:
        """Check that only blanks follow."""
        if found := self.peek():
            shown = found.decode("latin-1")
            raise self.refusal(f"is no JSON: {shown!r} follows after its end")

    def _many(self, decoder: "msgspec.json.Decoder[list[T]]") -> list[T] | None:
        """All complete elements in the buffer; None where their end is not certain."""
        if len(self._text) - self._at < 1 << 16:
            self._more()
        cut = self._last_end()
        if cut is None:
            return None
        try:
            # If this is a list, then `cut` is between two of its elements: what a byte of JSON
            # means depends on those before it alone.
            found = decoder.decode(b"[" + self._text[self._at : cut] + b"]")
        except UNDECODABLE:
            return None
        self._at = cut
        return found

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
        raw = self._raw(MAX_VALUE_BYTES)
        try:
            found = decoder.decode(b"[" + raw + b"]")
        except UNDECODABLE as error:
            raise self.refusal(
                _decoder_message(error).replace("$[0]", "$").replace("$[...]", "$")
            ) from error
        self.number -= 1
        return found

    def _decoded_lines(self, decoder: "msgspec.json.Decoder[T]", block: bytes) -> list[T]:
        try:
            return decoder.decode_lines(block)
        except UNDECODABLE:
            return self._line_by_line(decoder, block)

    def _line_by_line(self, decoder: "msgspec.json.Decoder[T]", block: bytes) -> list[T]:
        before = self.number
        found = []
        for line in block.split(b"\n"):
            if not line.strip():
                continue
            self.number += 1
            try:
                found.append(decoder.decode(line))
            except UNDECODABLE as error:
                raise self.refusal(_decoder_message(error)) from error
        self.number = before
        return found

    def _raw(self, most: int | None) -> bytes:
        """The text of the value at this position; skipped, not kept, where `most` is None."""
        first = self.peek()
        if first in (b"{", b"["):
            return self._container(most)
        if first == b'"':
            return self._quoted(MAX_VALUE_BYTES if most is None else most)
        return self._scalar()

    def _more(self, most: int | None = None) -> bool:
        """Read the next piece and drop consumed bytes. False at the end of the file."""
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
            found = _TOKEN.search(self._text, seen)
            is_cut = found is not None and found[0][:1] == b'"' and not found[1]
            if found is None or is_cut:
                seen = self._passed(found.start() if found else len(self._text), most)
                continue
            seen = found.end()
            mark = found[0]
            depth += (mark in (b"{", b"[")) - (mark in (b"}", b"]"))
            if depth == 0:
                begin, self._at = self._at, seen
                return b"" if most is None else self._text[begin:seen]

    def _passed(self, seen: int, most: int | None) -> int:
        """Read the next piece; returns the new position of `seen`."""
        if most is None:
            self._at = seen
        ahead = seen - self._at
        if not self._more(MAX_VALUE_BYTES if most is None else most):
            raise self.refusal("the file ends in the middle of a value: copy it again")
        return self._at + ahead

    def _quoted(self, most: int) -> bytes:
        while True:
            found = _TEXT.match(self._text, self._at)
            if found and found[1]:
                self._at = found.end()
                return found[0]
            self._passed(self._at, most)

    def _scalar(self) -> bytes:
        while True:
            found = _SCALAR_END.search(self._text, self._at)
            if found or len(self._text) - self._at > _MAX_SCALAR or not self._more():
                break
        begin, self._at = self._at, found.start() if found else len(self._text)
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
        return f"{str(error)[:200]}: is the file of this format?"
    if isinstance(error, RecursionError):
        return "is nested too deep: that is none of this format"
    reason = str(error)[:120].split(" (byte")[0]
    return f"is no JSON ({reason}): copy or record it again"
