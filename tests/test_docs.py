"""Statements of README, CONTRIBUTING and docs/ are true."""

import re
from pathlib import Path

import pytest
from typer.main import get_command

from app.cli import app
from tests.settings_table import settings_rows

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
DOCS = {path.name: path.read_text() for path in (ROOT / "docs").glob("*.md")}
PAGES = {"README.md": README, "CONTRIBUTING.md": (ROOT / "CONTRIBUTING.md").read_text()} | DOCS


def test_settings_page_lists_every_setting_with_its_default():
    rows = re.findall(
        r"^\| `(PACELINE_\w+)` \| (.+?) \| (.+) \|$", DOCS["settings.md"], re.MULTILINE
    )
    known = [
        (name, f"`{default}`" if default else "unset", text)
        for name, default, text in settings_rows()
    ]
    assert rows == known


@pytest.mark.parametrize("page", sorted(PAGES))
def test_every_command_that_documentation_names_exists(page):
    named = set(re.findall(r"(?:^|bin/|`)paceline ([a-z][a-z-]*)", PAGES[page], re.MULTILINE))
    assert named <= set(get_command(app).commands)  # type: ignore[attr-defined]


@pytest.mark.parametrize("page", sorted(PAGES))
def test_every_path_that_documentation_names_exists(page):
    folders = "app|benchmarks|client|examples|frontend|migrations|ops|tests"
    paths = re.findall(rf"`((?:{folders})/[\w/.-]*)`", PAGES[page])
    assert [path for path in paths if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("page", sorted(PAGES))
def test_every_link_between_pages_has_a_target(page):
    folder = ROOT / "docs" if page in DOCS else ROOT
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", PAGES[page])
    assert [link for link in links if not (folder / link).exists()] == []


def test_index_of_documentation_names_every_page():
    assert set(DOCS) - {"README.md"} <= set(re.findall(r"\(([\w-]+\.md)\)", DOCS["README.md"]))
