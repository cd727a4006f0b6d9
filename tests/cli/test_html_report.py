import gzip
import json
import re
from pathlib import Path

import plotly
import pytest

from app.cli.html_report import assets
from tests.cli.test_analyze import paceline, simulated_trace

MAX_CHARS = 1_500_000


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    return simulated_trace(
        tmp_path_factory.mktemp("made"), "--fault", "slow-worker:dp=1,stage=0,factor=2.5"
    )


def test_report_is_one_file_with_plotly_and_the_json_figures(trace, tmp_path):
    page, out = tmp_path / "report.html", tmp_path / "out.json"
    done = paceline("analyze", str(trace), "--html", str(page), "--json", str(out))
    assert done.exit_code == 0, done.stderr
    text, result = page.read_text(), json.loads(out.read_text())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.json", "report.html"]
    assert f"{result['slowdown']:.2f}\u00d7" in text
    assert "host-000, rank 1 (dp 1, stage 0) is 2.5\u00d7 slower" in text
    assert "Plotly.react" in text
    assert len(text) < MAX_CHARS


def test_script_of_a_report_has_the_major_version_of_the_installed_plotly():
    script = gzip.decompress(assets().script_gz).decode()
    installed = (Path(plotly.__file__).parent / "package_data" / "plotly.min.js").read_text()
    major = [re.findall(r"plotly\.js .*v(\d+)", each[:200]) for each in (script, installed)]
    assert major[0] == major[1] != []
