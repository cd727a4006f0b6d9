"""A JSON document of any size is read as a whole one would be, whatever the pieces."""

import json
import subprocess
import sys

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import InvalidTrace
from app.trace.readers.json_stream import InputFile, JsonStream

LIST = msgspec.json.Decoder(list)
ANY = msgspec.json.Decoder()


class Pieces(InputFile):
    """A source that gives so many bytes at a time."""

    name = "a.json"

    def __init__(self, text, size=7):
        self._text = text if isinstance(text, bytes) else text.encode()
        self._size = size

    def read(self):
        piece, self._text = self._text[: self._size], self._text[self._size :]
        return piece


def stream(text, size=7):
    return JsonStream(Pieces(text, size))


# Texts that look like what separates values.
TEXTS = st.one_of(
    st.text(max_size=5), st.sampled_from(['}, {"', "[]", '\\"', "},{", "\\", "é\u2028"])
)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**60), 2**60), TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=3)),
    max_leaves=12,
)


@given(
    elements=st.lists(VALUES, max_size=6),
    before=VALUES,
    after=VALUES,
    size=st.sampled_from([1, 2, 3, 7, 50, 5000]),
    indent=st.sampled_from([None, 1]),
    is_ascii=st.booleans(),
    skips=st.booleans(),
)
def test_members_and_elements_are_those_of_the_document(
    elements, before, after, size, indent, is_ascii, skips
):
    whole = {"a": before, "list": elements, "z": after}
    text = json.dumps(whole, indent=indent, ensure_ascii=is_ascii)
    reading, found = stream(text, size), {}
    for key in reading.members():
        if key == "list":
            found[key] = list(reading.elements(LIST))
        elif skips:
            reading.skip()
        else:
            found[key] = reading.value(ANY)
    reading.end()
    assert found == ({"list": elements} if skips else whole)


@given(values=st.lists(VALUES, max_size=6), size=st.sampled_from([1, 3, 50, 5000]))
def test_lines_are_a_value_each(values, size):
    text = "\n".join(json.dumps(each) for each in values)
    assert list(stream(text, size).lines(ANY)) == values


PARTS = st.sampled_from([*'[]{},:"\\ 1-e.', '"a"', "null", "[]", "{}", '{"a":1}', "\n", "\x00"])


def read_whole(text, size):
    """The elements of a list, None where it is none."""
    reading = stream(text, size)
    try:
        found = list(reading.elements(LIST))
        reading.end()
    except InvalidTrace as error:
        if not str(error).startswith("a.json"):
            raise
        return None
    return found


@given(parts=st.lists(PARTS, max_size=12), size=st.sampled_from([1, 5, 100]))
def test_only_lists_are_accepted_as_lists(parts, size):
    text = "[" + "".join(parts) + "]"
    try:
        expected = msgspec.json.decode(text)
    except msgspec.DecodeError:
        expected = None
    assert read_whole(text, size) == expected


@given(text=st.binary(max_size=60), size=st.sampled_from([1, 5, 100]))
def test_random_bytes_are_refused_or_a_list(text, size):
    read_whole(b"[" + text, size)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[{"a":1},{"a":}]', "a.json: element 2: is no JSON"),
        ('[{"a":1},{"a":1}', "a.json: element 2: is no JSON: want ',' and find the end"),
        ('[{"a":1},{"a":"x', "element 2: the file ends in the middle of a value: copy it again"),
        ('[{"a":1}{"a":1}]', "is no JSON: want ',' and find '{'"),
        ("[" * 5000, "a.json: element 1: the file ends in the middle"),
        ('["' + "a" * 70_000, "the file ends in the middle of a value"),
        ("[1e999]", "element 1"),
        ("[NaN]", "element 1"),
        ('["\\ud800x"]', "element 1"),
        ('["\xff"]'.encode("latin-1"), "element 1"),
        ("", "want '\\[' and find the end of the file"),
    ],
)
def test_json_errors_have_their_position(text, words):
    with pytest.raises(InvalidTrace, match=words):
        list(stream(text, max(7, len(text) // 100)).elements(LIST))


def test_a_wrong_line_is_told_with_its_number():
    with pytest.raises(InvalidTrace, match=r"a\.json: element 3: is no JSON"):
        list(stream("1\n\n2\n{\n4").lines(ANY))


def test_type_errors_name_the_field():
    class Element(msgspec.Struct):
        rank: int

    typed = msgspec.json.Decoder(list[Element])
    with pytest.raises(InvalidTrace, match=r"element 2: Expected `int`, got `str` - at `\$.rank`"):
        list(stream('[{"rank":1},{"rank":"x"},{"rank":3}]', 5000).elements(typed))


def test_long_values_are_skipped_in_bounded_memory():
    text = b'{"a":["' + b"x" * 40 + b'",{}' + b",[1,2]" * 3000 + b'],"b":3}'
    reading = stream(text, 100)
    keys = reading.members()
    assert next(keys) == "a"
    reading.skip()
    assert len(reading._text) <= 200
    assert next(keys) == "b"
    with pytest.raises(InvalidTrace, match="is longer than 0 MB"):
        stream(b'["' + b"x" * 3000, 100).value(ANY, most=500)


@pytest.mark.nightly
def test_text_of_backslashes_is_skipped_in_bounded_memory():
    text = b'"' + b"\\\\" * (1 << 20) + b'"'
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from app.trace.readers.json_stream import _TEXT, _TOKEN\n"
        "def most():\n"
        "    lines = Path('/proc/self/status').read_text().splitlines()\n"
        "    return next(int(line.split()[1]) for line in lines if line.startswith('VmHWM:'))\n"
        "text = sys.stdin.buffer.read()\n"
        "before = most()\n"
        "assert all(each.search(text)[0] == text for each in (_TEXT, _TOKEN))\n"
        "print(most() - before)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], input=text, capture_output=True, check=True)
    assert int(done.stdout) < 32 << 10  # in kB; 120 MB were taken
