"""The page for receivers says what they get."""

import json
from pathlib import Path

from app.alerts.endpoint import FORMATS
from app.alerts.formats.registry import render
from app.alerts.formats.standard import EVENT_TYPES
from tests.alerts.notices import endpoint, notice

PAGE = (Path(__file__).parents[3] / "docs" / "alerts-formats.md").read_text()


def test_the_example_is_what_is_sent():
    example = PAGE.partition("```json\n")[2].partition("```")[0]
    assert json.loads(example) == json.loads(render(notice(), endpoint()).body)


def test_all_formats_and_types_are_told():
    for name in FORMATS:
        assert f"| `{name}` |" in PAGE
    told = set(EVENT_TYPES.values()) - {"alert.acknowledged"}
    assert all(f"`{name}`" in PAGE for name in told)


def test_all_annotations_are_told():
    [alert] = json.loads(render(notice(), endpoint("alertmanager")).body)["alerts"]
    assert all(f"`{name}`" in PAGE for name in alert["annotations"])
