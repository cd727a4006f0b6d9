import re
from pathlib import Path

import pytest

from app.api.documents.library import Library
from app.diagnosis.finding import CAUSES
from tests.test_docs import ROOT


@pytest.fixture(scope="module")
def library():
    return Library(ROOT / "docs")


def _library_of(directory: Path, **pages: str) -> Library:
    for name, text in {"README": "# Index\n", **pages}.items():
        path = directory / f"{name}.md"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return Library(directory)


def test_every_file_of_the_documentation_is_in_the_side_list(library):
    listed = {page.address for group in library.groups for page in group.pages}
    files = (ROOT / "docs").rglob("*.md")
    names = {path.relative_to(ROOT / "docs").with_suffix("").as_posix() for path in files}
    assert {f"/docs/{name}".removesuffix("/README") for name in names} - {"/docs"} == listed


@pytest.mark.parametrize("cause", [*CAUSES, "stalled"])
def test_the_runbook_has_a_section_with_four_parts_for_each_cause(library, cause):
    page = library.page("on-call")
    assert cause in {heading.anchor for heading in page.headings}
    _, _, rest = page.html.partition(f'<h3 id="{cause}">')
    section = rest.partition("<h3")[0].partition("<h2")[0]
    parts = ["Means.", "Check this.", "Do this.", "Paste this."]
    assert [part for part in parts if f"<strong>{part}</strong>" not in section] == []
    assert "<pre" in section


def test_every_link_within_the_documentation_leads_to_a_page_and_its_anchor(library):
    pages = [page for group in library.groups for page in group.pages] + [library.page("")]
    anchors = {page.address: {each.anchor for each in page.headings} for page in pages}
    for page in pages:
        for address, anchor in re.findall(r'href="(/docs[^"#]*)?(?:#([^"]*))?"', page.html):
            target = anchors[address or page.address]
            assert not anchor or anchor in target, f"{page.address} links to {address}#{anchor}"


def _html(library: Library, name: str) -> str:
    page = library.page(name)
    assert page is not None
    return page.html


def test_markup_of_a_page_is_text(tmp_path):
    library = _library_of(
        tmp_path, evil="# <img src=x>\n\n<script>alert(1)</script> [a](javascript:x)"
    )
    html = _html(library, "evil")
    assert "<script" not in html
    assert "<img" not in html
    assert "javascript:" not in html.replace("(javascript:x)", "")


def test_a_link_out_of_the_documentation_is_plain_text(tmp_path):
    library = _library_of(
        tmp_path,
        page="# Page\n\nSee [code](../app/main.py), [more](more.md#b).",
        more="# More\n\n## B\n",
    )
    html = _html(library, "page")
    assert "See code" in html
    assert '<a href="/docs/more#b">more</a>' in html


def test_a_file_name_as_a_link_is_shown_as_the_title_of_its_page(tmp_path):
    library = _library_of(tmp_path, page="# Page\n\n[more.md](more.md)", more="# All the rest\n")
    assert '<a href="/docs/more">All the rest</a>' in _html(library, "page")


def test_equal_headings_have_different_anchors(tmp_path):
    library = _library_of(tmp_path, page="# Page\n\n## Keys, and more\n\n## Keys, and more\n")
    page = library.page("page")
    assert page is not None
    anchors = [heading.anchor for heading in page.headings]
    assert anchors == ["page", "keys-and-more", "keys-and-more-1"]


@pytest.mark.parametrize(
    "name", ["../README", "on-call.md", "nothing", "feeds/../on-call", "README"]
)
def test_other_names_are_no_pages(library, name):
    assert library.page(name) is None
