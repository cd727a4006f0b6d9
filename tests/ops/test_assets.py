"""The Prometheus and Grafana files, checked by the real tools and the real /metrics."""

import importlib.util
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

ROOT = Path(__file__).parents[2] / "ops"
RULES = ROOT / "prometheus" / "alerts.yml"
DASHBOARD = ROOT / "grafana" / "paceline.json"
_NAME = re.compile(r"\bpaceline_[a-z_]+")

pytestmark = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="needs Debian's prometheus: .ci/system-packages"
)


@pytest.fixture
def sample_names(paceline):
    """Names of all samples in /metrics."""
    families = text_string_to_metric_families(paceline.get("/metrics").text)
    return {sample.name for family in families for sample in family.samples}


def build():
    """The script that generates the dashboard, as a module."""
    spec = importlib.util.spec_from_file_location("build", ROOT / "grafana" / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def promtool(*arguments, **options):
    done = subprocess.run(["promtool", *arguments], capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def expressions():
    """All queries of the dashboard, with its variables filled in."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    return [
        re.sub(r"\$\w+", ".*", target["expr"])
        for panel in panels
        for target in panel.get("targets", [])
    ]


def test_promtool_accepts_the_rules():
    number = sum(len(group["rules"]) for group in yaml.safe_load(RULES.read_text())["groups"])
    assert f"SUCCESS: {number} rules found" in promtool("check", "rules", str(RULES))


def test_rules_pass_their_promtool_unit_tests():
    promtool("test", "rules", "alerts_test.yml", cwd=Path(__file__).parent)


def test_promtool_accepts_the_configuration(tmp_path):
    for path in (ROOT / "prometheus").iterdir():
        shutil.copy(path, tmp_path)
    (tmp_path / "paceline-token").write_text("pl_x")
    promtool("check", "config", str(tmp_path / "prometheus.yml"))


def test_rules_use_only_exported_metrics(sample_names):
    rules = yaml.safe_load(RULES.read_text())["groups"]
    used = {
        name for group in rules for rule in group["rules"] for name in _NAME.findall(rule["expr"])
    }
    assert len(used) > 10
    assert used <= sample_names


def test_dashboard_equals_the_output_of_its_script():
    assert DASHBOARD.read_text() == build().text()


def test_dashboard_round_trips_through_the_grafana_sdk():
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.models.dashboard import Dashboard

    text = DASHBOARD.read_text()
    again = JSONEncoder(sort_keys=True, indent=2).encode(Dashboard.from_json(json.loads(text)))
    assert json.loads(again) == json.loads(text)


def test_dashboard_uses_only_exported_metrics(sample_names):
    used = {name for each in expressions() for name in _NAME.findall(each)}
    assert len(used) > 15
    assert used <= sample_names


def test_promtool_accepts_every_dashboard_query(tmp_path):
    rules = [{"record": f"asked:{n}", "expr": each} for n, each in enumerate(expressions())]
    path = tmp_path / "asked.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    assert f"SUCCESS: {len(rules)} rules found" in promtool("check", "rules", str(path))
