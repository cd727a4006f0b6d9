"""Examples and limits on the pages about scores and Python queries."""

import dataclasses
import enum
import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from paceline_client import query

from app.api.routes.jobs.scores import MAX_SCORE_BYTES, ScoresIn
from app.store.scores import MAX_REPORTS, MAX_SCORES
from app.trace.readers.input_file import FileText
from app.trace.readers.registry import SCORE_FORMATS
from app.trace.readers.scores import nvrx

DOCS = Path(__file__).parent.parent / "docs"
FEEDS = DOCS / "feeds"


def text(path):
    return (DOCS / path).read_text()


class Statistic(enum.Enum):
    """Enum of NVRx, which makes JSON of a whole report fail."""

    MED = 1


@dataclasses.dataclass(frozen=True)
class Report:
    """A report of NVRx with its own field names."""

    gpu_relative_perf_scores: Any
    section_relative_perf_scores: Any
    gpu_individual_perf_scores: Any
    section_individual_perf_scores: Any
    rank_to_node: Any
    local_section_summaries: Any


def test_nvrx_example_writes_a_readable_file(tmp_path, monkeypatch):
    report = Report(
        gpu_relative_perf_scores={0: 1.0, 1: 0.5, 2: float("nan")},
        section_relative_perf_scores={"fwd": {0: 1.0}},
        gpu_individual_perf_scores={},
        section_individual_perf_scores={},
        rank_to_node={0: "a", 1: "b"},
        local_section_summaries={"fwd": {Statistic.MED: 1.0}},
    )
    with pytest.raises(TypeError):  # as the page warns
        json.dumps(dataclasses.asdict(report))
    (code,) = re.findall(r"```python\n(.*?)```", text("feeds/nvrx.md"), re.S)
    detector = type("Detector", (), {"generate_report_if_interval_elapsed": lambda: report})
    (module,) = re.findall(r"^from ([\w.]+) import Detector$", code, re.M)
    for name in (module, module.rpartition(".")[0], module.partition(".")[0]):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(Detector=detector))
    monkeypatch.chdir(tmp_path)
    for iteration in (100, 200):
        exec(code, {"rank": 0, "iteration": iteration})
    found = nvrx.read([FileText(tmp_path / "stragglers.jsonl")])
    assert found.num_reports == 2
    worst = found.scores[0]
    assert (worst.rank, worst.node, worst.slowdown, worst.step) == (1, "b", 2.0, 200)


def test_every_format_of_scores_has_its_page():
    for name in SCORE_FORMATS:
        page = text(f"feeds/{name}.md")
        assert f"paceline import {name} " in page
        assert "docs/scores.md" in page
        assert "no what-if" in page
        assert name in text("scores.md")


def test_scores_example_by_curl_is_valid():
    (body,) = re.findall(r"-d '(\{\"source\".*?\})'", text("scores.md"), re.S)
    assert ScoresIn.model_validate(json.loads(body)).report().scores[0].slowdown is not None


def test_limits_on_the_scores_page_equal_those_of_the_code():
    page = text("scores.md")
    assert f"{MAX_SCORE_BYTES >> 20} MiB" in page
    assert f"{MAX_SCORES:,} scores" in page
    assert f"{MAX_REPORTS} reports" in page


def test_query_page_lists_every_method_and_error():
    page = text("query.md")
    public = {name for name in vars(query.Paceline) if not name.startswith("_")} - {"close"}
    named = set(re.findall(r"^\| `(\w+)\(", page, re.M))
    assert named == public
    errors = {
        name
        for name in query.__all__
        if isinstance(vars(query)[name], type) and issubclass(vars(query)[name], Exception)
    }
    assert all(f"`{name}`" in page for name in errors)
