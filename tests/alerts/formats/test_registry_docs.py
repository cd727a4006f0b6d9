"""The page for receivers says what they get."""

import json
from pathlib import Path

from app.alerts.formats.registry import render_notice
from tests.alerts.notices import make_receiver, notice

PAGE = (Path(__file__).parents[3] / "docs" / "alerts-formats.md").read_text()


def test_the_example_is_what_is_sent():
    example = PAGE.partition("```json\n")[2].partition("```")[0]
    assert json.loads(example) == json.loads(render_notice(notice(), make_receiver()).body)
