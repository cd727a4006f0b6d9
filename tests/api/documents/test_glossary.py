import re

import pytest

from app.api.documents.glossary import definitions
from app.diagnosis.finding import CAUSES
from tests.test_docs import DOCS, ROOT

TABLE = """
| figure | key | unit | formula and definition | do not trust it when |
| --- | --- | --- | --- | --- |
| GPU time lost | `gpu_time_wasted`, `waste` | share | 1 - 1/S, see [S](#s) | as `S` |
"""


@pytest.fixture(scope="module")
def known():
    return definitions(DOCS["glossary.md"])


def test_a_row_is_found_by_its_name_and_by_each_of_its_keys():
    found = definitions(TABLE)
    assert set(found) == {"gpu time lost", "gpu_time_wasted", "waste"}
    assert found["waste"].text == "1 - 1/S, see S"
    assert found["waste"].limits == "as S"
    assert found["waste"].unit == "share"


@pytest.mark.parametrize("cause", CAUSES)
def test_every_cause_has_a_definition(known, cause):
    assert known[cause].text


def test_every_definition_that_a_page_asks_for_is_in_the_glossary(known):
    """Keys in the frontend are literals: `define: "slowdown"` and `term(label, "slowdown")`."""
    scripts = [path.read_text() for path in (ROOT / "frontend" / "js").rglob("*.js")]
    asked = {
        key
        for script in scripts
        for key in re.findall(r'(?:define: |\bterm\([^()]*, )"([^"]+)"', script)
    }
    assert len(asked) > 10
    assert sorted(asked - set(known)) == []
