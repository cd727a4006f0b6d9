"""Refusals of the command line have one colon, behind what they are about."""

import pytest

from app.cli import one_colon


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("a.json: is empty", "a.json: is empty"),
        ("a.json: is empty: name another", "a.json: is empty; name another"),
        ("a: column x: row 3 is null: give a value", "a: column x, row 3 is null; give a value"),
        ("m.yaml: want: lines like 'dp_size: 4'", "m.yaml: want; lines like 'dp_size: 4'"),
        ("a: the trace's end: run `x: y`", "a: the trace's end; run `x: y`"),
        ("http://127.0.0.1:1: no: yes", "http://127.0.0.1:1: no; yes"),
    ],
)
def test_a_refusal_has_one_colon_outside_of_quotes(message, said):
    assert one_colon(message) == said
