"""A real Prometheus scrapes a real Paceline with the shipped configuration."""

import shutil
import subprocess
from pathlib import Path

import httpx
import pytest
import yaml

from tests.api.server import TOKEN
from tests.e2e.stack import free_port, wait_until

OURS = Path(__file__).parents[2] / "ops" / "prometheus"

pytestmark = pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="needs Debian's prometheus: .ci/system-packages"
)


@pytest.fixture(scope="module")
def prometheus(paceline, tmp_path_factory):
    """A client of a Prometheus that scrapes Paceline once a second."""
    directory = tmp_path_factory.mktemp("prometheus")
    shutil.copy(OURS / "alerts.yml", directory)
    (directory / "paceline-token").write_text(TOKEN)
    configuration = yaml.safe_load((OURS / "prometheus.yml").read_text())
    [scraped] = configuration["scrape_configs"]
    scraped["static_configs"] = [{"targets": [f"127.0.0.1:{paceline.base_url.port}"]}]
    configuration["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    (directory / "prometheus.yml").write_text(yaml.safe_dump(configuration))
    address = f"127.0.0.1:{free_port()}"
    command = ["prometheus", f"--config.file={directory / 'prometheus.yml'}"]
    places = [f"--storage.tsdb.path={directory / 'data'}", f"--web.listen-address={address}"]
    with (directory / "log").open("w") as log:
        process = subprocess.Popen([*command, *places], stdout=log, stderr=log)
    with httpx.Client(base_url=f"http://{address}/api/v1", trust_env=False) as client:
        try:
            wait_until(lambda: has_scraped(client), "Prometheus has scraped Paceline", 180.0)
            yield client
        finally:
            process.terminate()
            process.wait()


def has_scraped(client):
    """Whether a job metric has been scraped."""
    try:
        return bool(query_now(client, "paceline_job_slowdown_ratio"))
    except httpx.TransportError:
        return False


def query_now(client, query):
    """Current values by labels, without the labels that Prometheus adds."""
    answer = client.get("/query", params={"query": query})
    if answer.status_code == 503:
        return {}  # Prometheus is still starting
    added = ("__name__", "instance", "job")
    return {
        tuple(value for name, value in sorted(each["metric"].items()) if name not in added): float(
            each["value"][1]
        )
        for each in answer.json()["data"]["result"]
    }


def test_scrape_is_up_and_has_jobs_of_all_projects(prometheus):
    # A scrape times out after a second, and all series are absent until the next one.
    wait_until(lambda: query_now(prometheus, 'up{job="paceline"}') == {(): 1.0}, "the target is up")
    slow = 'paceline_job_slowdown_ratio{job_id=~"slow|theirs"}'
    wanted = {("slow", "default"): 1.25, ("theirs", "research"): 1.5}
    wait_until(
        lambda: query_now(prometheus, slow) == wanted, "the jobs of all projects are scraped"
    )


@pytest.mark.nightly
def test_prometheus_loads_and_evaluates_all_rules(prometheus):
    def groups():
        return prometheus.get("/rules").json()["data"]["groups"]

    def rules():
        return [rule for group in groups() for rule in group["rules"]]

    wait_until(lambda: all(rule["health"] == "ok" for rule in rules()), "all rules are evaluated")
    ours = yaml.safe_load((OURS / "alerts.yml").read_text())["groups"]
    names = [rule["alert"] for group in ours for rule in group["rules"]]
    assert [rule["name"] for rule in rules()] == names


@pytest.mark.nightly
def test_alerts_of_problem_jobs_are_pending_or_firing(prometheus):
    def alerts():
        return prometheus.get("/alerts").json()["data"]["alerts"]

    def names_and_jobs():
        return {(each["labels"]["alertname"], each["labels"].get("job_id")) for each in alerts()}

    wanted = {
        ("PacelineJobStraggles", "slow"),
        ("PacelineJobStalled", "hung"),
        ("PacelineWorkersSilent", "half"),
        ("PacelineEndpointDisabled", None),
    }
    wait_until(lambda: wanted <= names_and_jobs(), "the expected alerts are pending or firing")
    assert ("PacelineJobStraggles", "well") not in names_and_jobs()
