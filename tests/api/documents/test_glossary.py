import re

import pytest

from app.api.documents.routes import definitions
from app.result.causes import CAUSES
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


def _scripts(*patterns: str) -> str:
    folder = ROOT / "frontend" / "js"
    return "\n".join(path.read_text() for each in patterns for path in sorted(folder.glob(each)))


def _labels() -> dict[str, str]:
    """The glossary's key of each label of a strip of figures."""
    script = _scripts("components/definition.js")
    table = script.partition("const LABELS = {")[2].partition("\n}")[0]
    return dict(re.findall(r'"?(\w[^":\n]*)"?: "([^"]+)"', table))


def test_every_definition_that_a_page_asks_for_is_in_the_glossary(known):
    asked = re.findall(r'(?:define: |\bterm\([^()]*, )"([^"]+)"', _scripts("**/*.js"))
    assert len(asked) > 5
    assert sorted({*asked, *_labels().values()} - set(known)) == []


def test_every_label_of_a_figure_has_a_definition():
    strips = _scripts(
        "pages/*/stats.js",
        "pages/worker/cards.js",
        "pages/compare/results.js",
        "pages/what-if/answer.js",
    )
    labels = set(re.findall(r'\blabel(?:: | = )"([^"]+)"', strips))
    assert len(labels) > 20
    assert sorted(labels - set(_labels())) == []
