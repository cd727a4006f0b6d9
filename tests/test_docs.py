"""Statements of README, CONTRIBUTING and docs/ are true."""

import ast
import re
from collections.abc import Iterator
from inspect import signature
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml
from typer.main import get_command

from app.advice.facts import facts_of
from app.api.routes.alerts.receiver_schemas import ReceiverIn
from app.api.routes.windows.advice import (
    AdviceOut,
    FixesTogetherOut,
    FixNotOfferedOut,
    FixOut,
    PasteOut,
)
from app.api.routes.windows.what_if_edits import QuestionIn
from app.cli import app
from app.diagnosis.finding import CAUSES
from app.engine.questions.edits import Edit, Selection, Set
from app.monitor import observe
from app.synth.cluster import Cluster
from app.synth.faults.slow_compute import LongLastStage, SlowWorker
from app.synth.job import SimulatedJob
from app.trace.job import Parallelism
from app.trace.ops import parse_op_types
from app.trace.readers.published import trace_files
from tests.diagnosis.jobs import made, window_of
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
    named = list(_functions_by_file(PAGES["CONTRIBUTING.md"]))
    assert len(named) > 50
    assert [(path, name) for path, name in named if name not in _definitions(ROOT / path)] == []


def _functions_by_file(page: str) -> Iterator[tuple[str, str]]:
    """Each `name` that directly follows the `path` of a file: "`app/monitor.py` `observe`"."""
    yield from re.findall(r"`([\w/.-]+\.(?:py|js))`\s+`([\w.]+)`", page)


def _definitions(path: Path) -> set[str]:
    """Functions, classes, methods ("Class.method") and constants of a file."""
    if path.suffix == ".js":
        return set(re.findall(r"(?:function|class|const) (\w+)", path.read_text()))
    found: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{each.name}" for each in node.body if hasattr(each, "name")}
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {each.id for each in targets if isinstance(each, ast.Name)}
    return found


@pytest.mark.parametrize("page", sorted(PAGES))
def test_every_link_between_pages_has_a_target(page):
    folder = ROOT / "docs" if page in DOCS else ROOT
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", PAGES[page])
    assert [link for link in links if not (folder / link).exists()] == []


def test_index_of_documentation_names_every_page():
    assert set(DOCS) - {"README.md"} <= set(re.findall(r"\(([\w-]+\.md)\)", DOCS["README.md"]))


def test_readme_begins_with_the_two_commands():
    targets = re.findall(r"^make (\w+)", README, re.MULTILINE)
    assert targets == ["demo", "test"]


def test_what_if_example_by_curl_is_valid():
    (body,) = re.findall(r"-d '(.*edits.*)'", DOCS["what-if.md"])
    (edit,) = QuestionIn.model_validate_json(body).all_edits()
    assert edit == Edit(Set(0.0), Selection(op_types=("pp-comm",)))


def test_receiver_example_by_curl_is_valid():
    (body,) = re.findall(r"-d '(.*slack.*)'", DOCS["alerts.md"])
    assert ReceiverIn.model_validate_json(body).format == "slack"


def test_what_if_example_in_python_runs(tmp_path, monkeypatch):
    job = SimulatedJob(Parallelism(2, 4), 4)
    trace_files.write(job.make([1, 2]), job.job, tmp_path / "trace.parquet")
    monkeypatch.chdir(tmp_path)
    (code,) = [
        block
        for block in re.findall(r"```python\n(.*?)```", DOCS["what-if.md"], re.S)
        if "Edit" in block
    ]
    found: dict[str, Any] = {}
    exec(compile(code, "what-if.md", "exec"), found)
    assert found["answer"].gpu_hours_saved > 0


def test_advice_example_in_python_runs(tmp_path, monkeypatch, capsys):
    job = SimulatedJob(Parallelism(2, 4), 4, faults=(LongLastStage(),))
    window = job.record(range(8)).window()
    trace_files.write(window.trace, window.job, tmp_path / "trace.parquet")
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", DOCS["advice.md"], re.S)
    exec(compile(code, "advice.md", "exec"), {})
    assert "--pipeline-model-parallel-layout" in capsys.readouterr().out


def test_advice_example_by_curl_has_parameters_of_the_route():
    (address,) = re.findall(r'"(http://\S+/advice\?\S+)"', DOCS["advice.md"])
    assert set(parse_qs(urlsplit(address).query)) <= set(signature(facts_of).parameters)


def test_op_types_example_is_valid():
    (text,) = re.findall(r"```yaml\n(op_types.*?)```", DOCS["replay.md"], re.S)
    types = parse_op_types(yaml.safe_load(text)["op_types"])
    assert [spec.name for spec in types.user] == ["moe-all-to-all", "recompute"]


# Objects by op type or by host: their keys are no figures.
BY_NAME = ("optype_slowdown", "optype_time_s", "by_optype", "optype_share", "hosts")


def test_glossary_names_every_key_of_a_result():
    cluster = Cluster(clock_offset_s=0.1)
    job = made(SlowWorker(1, 0, 1.8), dp=2, pp=2, microbatches=2, cluster=cluster)
    result = observe(window_of(job, 8)).result
    assert result["findings"]
    assert result["ruled_out"]
    assert result["arrivals"]["culprits"]
    assert result["clocks"]["hosts"]
    keys = set(_figure_keys(result))
    assert sorted(keys - _words_in_backticks(DOCS["glossary.md"])) == []


def test_glossary_names_every_key_of_advice():
    page = _words_in_backticks(DOCS["glossary.md"])
    models = (AdviceOut, FixOut, FixesTogetherOut, FixNotOfferedOut, PasteOut)
    assert sorted({name for each in models for name in each.model_fields} - page) == []


def test_glossary_has_a_row_for_every_cause():
    rows = re.findall(r"^\| `([a-z-]+)` \|", DOCS["glossary.md"], re.MULTILINE)
    assert sorted(rows) == sorted(CAUSES)


def _figure_keys(value: Any) -> Iterator[str]:
    """Keys of a result's objects, except op types, hosts and the evidence of single detectors."""
    if isinstance(value, list):
        for each in value:
            yield from _figure_keys(each)
    if isinstance(value, dict):
        for key, below in value.items():
            yield key
            if key in BY_NAME:
                yield from _figure_keys(list(below.values()))
            elif key != "evidence":
                yield from _figure_keys(below)


def _words_in_backticks(page: str) -> set[str]:
    """Every word of a page's code spans; `job.dp_size` has the words job and dp_size."""
    return {word for code in re.findall(r"`([^`]+)`", page) for word in re.findall(r"[\w-]+", code)}
