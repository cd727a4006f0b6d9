"""docs/glossary.md and the schema know every cause, and no other."""

import re
from pathlib import Path

from app.diagnosis.diagnose import ARRIVALS_DETECTORS, DETECTORS
from app.result.causes import CAUSES

PAGE = Path(__file__).parents[2] / "docs" / "glossary.md"


def test_docs_list_every_detector():
    rows = re.findall(r"^\| `([a-z-]+)` \|", PAGE.read_text(), re.MULTILINE)
    named = [row for row in rows if "-" in row]
    asked = {each.cause for each in (*DETECTORS, *ARRIVALS_DETECTORS)}
    assert sorted(named) == sorted(CAUSES) == sorted(asked)
