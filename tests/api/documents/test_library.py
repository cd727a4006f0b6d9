import re
from pathlib import Path

import pytest

from app.api.documents.library import Library
from app.result.causes import CAUSES
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


def test_every_link_within_the_documentation_leads_to_a_page_and_its_anchor(library):
    pages = [page for group in library.groups for page in group.pages] + [library.page("")]
    anchors = {page.address: {each.anchor for each in page.headings} for page in pages}
    for page in pages:
        for address, anchor in re.findall(r'href="(/docs[^"#]*)?(?:#([^"]*))?"', page.html):
            target = anchors[address or page.address]
            assert not anchor or anchor in target, f"{page.address} links to {address}#{anchor}"


def test_the_runbook_has_each_section_that_the_page_links_to(library):
    script = (ROOT / "frontend/js/components/runbook.js").read_text()
    listed = re.findall(r'"([a-z-]+)"', script.split("new Set(")[1].split(")")[0])
    linked = [*listed, *re.findall(r"#([a-z-]+)`", script)]
    assert len(linked) > 3
    page = library.page("on-call")
    assert page is not None
    anchors = {heading.anchor for heading in page.headings}
    assert {*CAUSES, *linked} <= anchors


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


@pytest.mark.parametrize(
    "name", ["../README", "on-call.md", "nothing", "feeds/../on-call", "README"]
)
def test_other_names_are_no_pages(library, name):
    assert library.page(name) is None
