"""What the README says is so."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

from app.api.edits import QuestionIn
from app.api.endpoint_body import EndpointIn
from app.cli import app
from app.engine.questions.edits import Edit, Selection, Set
from app.settings import settings_rows
from app.synth.run import MadeJob
from app.trace.job import Parallelism
from app.trace.readers import published
from app.trace.user_types import parse

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
    named = set(re.findall(r"paceline ([a-z][a-z-]*)", README)) - {"and"}
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


def test_its_question_by_curl_is_one_that_the_api_takes():
    (body,) = re.findall(r"-d '(.*edits.*)'", README)
    (edit,) = QuestionIn.model_validate_json(body).all_edits()
    assert edit == Edit(Set(0.0), Selection(op_types=("pp-comm",)))


def test_its_receiver_is_one_that_the_api_takes():
    (body,) = re.findall(r"-d '(.*slack.*)'", README)
    assert EndpointIn.model_validate_json(body).format == "slack"


def test_its_question_in_python_runs(tmp_path, monkeypatch):
    made = MadeJob(Parallelism(2, 4), 4)
    published.write(made.make([1, 2]), made.job, tmp_path / "trace.parquet")
    monkeypatch.chdir(tmp_path)
    (code,) = [
        block for block in re.findall(r"```python\n(.*?)```", README, re.S) if "Edit" in block
    ]
    found: dict[str, Any] = {}
    exec(compile(code, "README.md", "exec"), found)
    assert found["answer"].gpu_hours_saved > 0


def test_its_own_op_types_are_ones_that_a_job_may_bring():
    (text,) = re.findall(r"```yaml\n(.*?)```", README, re.S)
    types = parse(yaml.safe_load(text)["op_types"])
    assert [spec.name for spec in types.user] == ["moe-all-to-all", "recompute"]
