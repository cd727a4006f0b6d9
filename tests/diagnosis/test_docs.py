"""docs/diagnosis.md and the schema know every cause, and no other."""

import re
from pathlib import Path

from app.diagnosis.finding import CAUSES
from app.diagnosis.registry import BY_ARRIVALS, DETECTORS

PAGE = Path(__file__).parents[2] / "docs" / "diagnosis.md"


def test_every_detector_has_its_name_and_its_row():
    rows = re.findall(r"^\| `([a-z-]+)` \|", PAGE.read_text(), re.MULTILINE)
    named = [row for row in rows if "-" in row]
    asked = {each.cause for each in (*DETECTORS, *BY_ARRIVALS)}
    assert sorted(named) == sorted(CAUSES) == sorted(asked)
