"""Statements of README, CONTRIBUTING and docs/ are true."""

import re
from inspect import signature
from pathlib import Path
from urllib.parse import parse_qs

import pytest
import yaml
from typer.main import get_command

from app.advice.facts import facts_of
from app.alerts.rules.rule_text import parse_rules
from app.api.routes.alerts.receiver_schemas import ReceiverIn
from app.api.routes.windows.what_if_edits import QuestionIn
from app.cli import app
from app.cli.typed_text import parse_edit
from app.synth.faults.slow_compute import LongLastStage
from app.synth.job import SimulatedJob
from app.trace.job import Parallelism
from app.trace.ops import parse_op_types
from app.trace.readers.published import trace_files
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


def test_every_function_named_in_contributing_is_in_its_file():
    named = re.findall(r"`([\w/.-]+\.(?:py|js))`\s+`([\w.]+)`", PAGES["CONTRIBUTING.md"])
    assert len(named) > 50
    defined = r"^\s*((export |async )*(def|class|function|const) {0}\b|{0}(: .+)? = )"
    for path, name in named:
        text = (ROOT / path).read_text()
        for part in name.split("."):
            found = re.search(defined.format(part), text, re.MULTILINE)
            assert found, f"{name} is not in {path}"


@pytest.mark.parametrize(
    ("page", "examples", "parse"),
    [
        ("advice.md", r'/advice\?(\S+)"', lambda text: signature(facts_of).bind(**parse_qs(text))),
        ("alerts.md", r"-d '(.*slack.*)'", ReceiverIn.model_validate_json),
        ("alerts.md", r"```yaml\n((?s:rules.*?))```", parse_rules),
        (
            "replay.md",
            r"```yaml\n((?s:op_types.*?))```",
            lambda text: parse_op_types(yaml.safe_load(text)["op_types"]),
        ),
        (
            "what-if.md",
            r"-d '(.*edits.*)'",
            lambda text: QuestionIn.model_validate_json(text).all_edits(),
        ),
        ("what-if.md", r'--edit "(.*?)"', lambda text: parse_edit(text, range(4))),
    ],
)
def test_examples_are_valid(page, examples, parse):
    found = re.findall(examples, DOCS[page])
    assert found
    for text in found:
        assert parse(text)


@pytest.mark.parametrize("page", ["advice.md", "what-if.md"])
def test_python_examples_run(page, tmp_path, monkeypatch, capsys):
    job = SimulatedJob(Parallelism(2, 4), 4, faults=(LongLastStage(),))
    window = job.record(range(8)).window()
    trace_files.write(window.trace, window.job, tmp_path / "trace.parquet")
    monkeypatch.chdir(tmp_path)
    for code in re.findall(r"```python\n(.*?)```", DOCS[page], re.DOTALL):
        exec(compile(code, page, "exec"), {})
    assert capsys.readouterr().out


@pytest.mark.parametrize("page", sorted(PAGES))
def test_every_link_between_pages_has_a_target(page):
    folder = ROOT / "docs" if page in DOCS else ROOT
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", PAGES[page])
    assert [link for link in links if not (folder / link).exists()] == []
