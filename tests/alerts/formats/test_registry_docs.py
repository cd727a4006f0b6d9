"""The page for receivers says what they get."""

import json
from pathlib import Path

from app.alerts.formats.registry import render_notice
from app.alerts.formats.webhooks import EVENT_TYPES
from app.alerts.receiver import FORMAT_NAMES
from tests.alerts.notices import make_receiver, notice

PAGE = (Path(__file__).parents[3] / "docs" / "alerts-formats.md").read_text()


def test_the_example_is_what_is_sent():
    example = PAGE.partition("```json\n")[2].partition("```")[0]
    assert json.loads(example) == json.loads(render_notice(notice(), make_receiver()).body)


def test_the_docs_list_all_formats_and_types():
    for name in FORMAT_NAMES:
        assert f"| `{name}` |" in PAGE
    told = set(EVENT_TYPES.values()) - {"alert.acknowledged"}
    assert all(f"`{name}`" in PAGE for name in told)


def test_the_docs_list_all_annotations():
    [alert] = json.loads(render_notice(notice(), make_receiver("alertmanager")).body)["alerts"]
    assert all(f"`{name}`" in PAGE for name in alert["annotations"])
