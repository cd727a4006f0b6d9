"""What the README says is so."""

import re
from pathlib import Path

import pytest
from typer.main import get_command

from app.cli import app
from app.settings import settings_rows

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def test_every_setting_has_its_row():
    rows = re.findall(r"^\| `(PACELINE_\w+)` \| (.+?) \| (.+) \|$", README, re.MULTILINE)
    known = [
        (name, f"`{default}`" if default else "unset", text)
        for name, default, text in settings_rows()
    ]
    assert rows == known


def test_every_command_that_it_names_exists():
    named = set(re.findall(r"paceline ([a-z]+)\b", README)) - {"and"}
    assert named
    assert named <= set(get_command(app).commands)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "path", re.findall(r"`((?:app|client|migrations|frontend)/[\w/.]*)`", README)
)
def test_every_path_that_it_names_exists(path):
    assert (ROOT / path).exists()


def test_it_begins_with_the_two_commands():
    targets = re.findall(r"^make (\w+)", README, re.MULTILINE)
    assert targets == ["demo", "test"]
