import json
from pathlib import Path

import pytest

from app.alerts.formats.registry import render_notice
from app.alerts.formats.webhooks import EVENT_TYPES
from app.alerts.receiver import FORMAT_NAMES
from tests.alerts.notices import make_receiver, notice, told

PAGE = (Path(__file__).parents[3] / "docs" / "alerts-formats.md").read_text()


def body(**given):
    return json.loads(render_notice(notice(**given), make_receiver()).body)


def test_the_documented_example_is_what_is_sent():
    example = PAGE.partition("```json\n")[2].partition("```")[0]
    assert json.loads(example) == body()


def test_the_page_names_every_format_type_and_annotation():
    sent = render_notice(notice(), make_receiver("alertmanager")).body
    [alert] = json.loads(sent)["alerts"]
    types = {*EVENT_TYPES.values()} - {"alert.acknowledged"}
    names = (*FORMAT_NAMES, *types, *alert["annotations"])
    assert [name for name in names if f"`{name}`" not in PAGE] == []


@pytest.mark.parametrize("kind", EVENT_TYPES)
def test_the_type_tells_what_happened_in_signs_that_the_standard_allows(kind):
    found = body(kind=kind)["type"]
    assert found == EVENT_TYPES[kind]
    assert all(part.isidentifier() for part in found.split("."))


def test_a_resolved_alert_has_its_end():
    [ended] = body(alerts=(told(status="resolved", ends_at_s=1_700_000_099.0),))["data"]["alerts"]
    assert ended["ends_at"] == "2023-11-14T22:14:59Z"
