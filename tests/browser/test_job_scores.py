"""Scores of other tools on a job's page: marked, the worst first, and only ever text."""

import httpx
import pytest

from app.store.migrations import migrate
from tests.api import recorded
from tests.api.server import JOB, TOKEN, recorded_record
from tests.client.real_servers import serving

HOSTILE = "<img src=x onerror=alert(1)>\u202eevil"
NVRX = '{"iteration": 40, "gpu_relative_perf_scores": {"0": 1.0, "7": 0.5, "3": NaN}}'


NUM_TOOLS = 9


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A job with a window and the scores of two tools, and one that has neither."""
    database = tmp_path_factory.mktemp("scores") / "paceline.db"
    migrate(f"sqlite:///{database}")
    with serving(database) as (url, api):
        headers = {"authorization": f"Bearer {TOKEN}"}
        with httpx.Client(base_url=f"{url}/api/v1", headers=headers, trust_env=False) as http:
            for job in ("llm-70b", "bare", "many"):
                assert http.put(f"/jobs/{job}", json=JOB).status_code == 201
            for number in range(NUM_TOOLS):
                one = {"section": "a", "metric": "b", "rank": number}
                report = {"source": f"tool-{number}", "scores": [one]}
                assert http.post("/jobs/many/scores", json=report).status_code == 201
            for _ in range(60):
                last = {"source": "last", "scores": [one]}
                assert http.post("/jobs/many/scores", json=last).status_code == 201
            text = {"content-type": "text/plain"}
            query = {"format": "nvrx"}
            path = "/jobs/llm-70b/scores"
            assert http.post(path, params=query, content=NVRX, headers=text).status_code == 201
            score = {"node": HOSTILE, "section": HOSTILE, "metric": "late-by", "value": 0}
            score |= {"mean": 3.25, "num": 4}
            own = {"source": "own", "scores": [score | {"unit": "ms"}] * 7}
            assert http.post(path, json=own).status_code == 201
        for job in ("llm-70b", "many"):
            api.save_window(recorded_record(recorded.window()), job)
        yield url


def test_scores_of_other_tools_are_shown_on_the_job_page(served, open_page):
    from playwright.sync_api import expect

    page = open_page(f"{served}/jobs/llm-70b#token={TOKEN}").page
    card = page.get_by_label("Scores of other tools")
    expect(card.locator("header")).to_contain_text("scores, no what-if")
    expect(card.locator("h3")).to_have_count(2)
    nvrx = card.locator("table").filter(has_text="GPU kernels")
    expect(nvrx.locator("tbody tr")).to_have_count(3)
    expect(nvrx.locator("tbody tr").first).to_contain_text("7")
    expect(nvrx.locator("tbody tr").first).to_contain_text("2.00\N{MULTIPLICATION SIGN}")
    expect(nvrx.locator("tbody tr").last).to_contain_text("not known")
    expect(card).to_contain_text("and 2 more scores")
    expect(card).to_contain_text("3.25 ms on average")
    expect(card).to_contain_text("<img src=x onerror=alert(1)>evil")
    expect(card.locator("img")).to_have_count(0)
    expect(card).to_contain_text("What it omits")


@pytest.mark.nightly
def test_further_tools_with_scores_are_listed_by_name(served, open_page):
    from playwright.sync_api import expect

    page = open_page(f"{served}/jobs/many#token={TOKEN}").page
    card = page.get_by_label("Scores of other tools")
    expect(card.locator("h3")).to_have_count(8)
    expect(card).to_contain_text("and 2 more tools: ")
    expect(card).to_contain_text("GET /api/v1/jobs/many/scores has the scores of all.")
    for name in ("last", *(f"tool-{number}" for number in range(NUM_TOOLS))):
        expect(card).to_contain_text(name)


@pytest.mark.nightly
def test_a_job_without_scores_has_no_scores_card(served, open_page):
    from playwright.sync_api import expect

    page = open_page(f"{served}/jobs/bare#token={TOKEN}").page
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    expect(page.get_by_label("Scores of other tools")).to_have_count(0)
