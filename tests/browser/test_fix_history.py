"""What fixes were predicted to win, and won: on the job's page and the fleet's."""

from dataclasses import replace

import httpx
import pytest

from app.monitor import observe
from app.result.stored import split_by_step
from app.store import fixes
from app.store.migrations import migrate
from tests.api import recorded
from tests.api.server import JOB, KEY, NOW_S, TOKEN, recorded_record
from tests.client.real_servers import serving
from tests.consumer.jobs import SLOW
from tests.store.factories import prediction

TIMES = "\N{MULTIPLICATION SIGN}"


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A job with an outcome and an open prediction, and a job without any."""
    database = tmp_path_factory.mktemp("fixes") / "paceline.db"
    migrate(f"sqlite:///{database}")
    with serving(database) as (url, api):
        headers = {"authorization": f"Bearer {TOKEN}"}
        with httpx.Client(base_url=f"{url}/api/v1", headers=headers, trust_env=False) as http:
            for job in ("llm-70b", "bare"):
                assert http.put(f"/jobs/{job}", json=JOB).status_code == 201
        api.save_window(recorded_record(recorded.window()))
        window = replace(SLOW.record(range(8)).window(), hosts={})
        result, per_step = split_by_step(observe(window).result)
        found = replace(recorded_record(window), result=result, per_step=per_step)
        api.save_window(found, "bare")
        with api.store.write() as conn:
            record = fixes.save_prediction(conn, KEY, prediction(), now_s=NOW_S)
            tracked = replace(
                record.tracked,
                state="measured",
                applied_epoch=2,
                applied_step=4120,
                achieved=1.1649,
                note="found since: <b>gc-pause</b>",
            )
            fixes.save(conn, record.with_tracked(tracked), now_s=NOW_S)
            fixes.save_prediction(conn, KEY, prediction("planned-gc"), now_s=NOW_S + 1)
        yield url


def test_job_page_shows_predicted_and_achieved_and_deletes_a_prediction(served, open_page):
    from playwright.sync_api import expect

    page = open_page(f"{served}/jobs/llm-70b#token={TOKEN}").page
    card = page.get_by_label("Fixes: predicted and achieved", exact=True)
    rows = card.locator("li")
    expect(rows).to_have_count(2)
    expect(rows.first).to_contain_text(f"predicted 1.20{TIMES}")
    expect(rows.first).to_contain_text("not applied so far")
    expect(rows.last).to_contain_text("Worker replaced at step 4,120")
    expect(rows.last).to_contain_text(f"predicted 1.20{TIMES}, achieved 1.16{TIMES}")
    expect(rows.last).to_contain_text("<b>gc-pause</b>")
    rows.first.get_by_role("button", name="Delete the prediction").click()
    expect(rows).to_have_count(1)
    expect(page.locator("#announcer")).to_have_text("Prediction deleted.")
    expect(card.get_by_role("heading")).to_be_focused()


@pytest.mark.nightly
def test_measured_prediction_is_deleted_after_a_question_and_a_failure_is_said(served, open_page):
    from playwright.sync_api import expect

    watched = open_page(f"{served}/jobs/llm-70b#token={TOKEN}")
    page = watched.page
    row = page.locator(".fix-history li").filter(has_text="Worker replaced")
    row.get_by_role("button", name="Delete the prediction").click()
    row.get_by_role("button", name="Keep the prediction").click()
    expect(row.get_by_role("button", name="Delete the prediction")).to_be_focused()
    problem = {"status": 503, "json": {"detail": "the database is read-only"}}
    page.route("**/api/v1/jobs/*/fixes/*", lambda route: route.fulfill(**problem))
    row.get_by_role("button", name="Delete the prediction").click()
    row.get_by_role("button", name="Delete for good").click()
    said = "Not deleted: the database is read-only"
    expect(row.get_by_role("alert")).to_have_text(said)
    expect(page.locator("#announcer")).to_have_text(said)
    expect(row).to_have_count(1)
    watched.forgive("503")


def test_fleet_page_shows_outcomes_of_all_jobs(served, open_page):
    from playwright.sync_api import expect

    page = open_page(f"{served}/#token={TOKEN}").page
    card = page.get_by_label("Fixes: predicted and achieved", exact=True)
    expect(card.locator("li")).to_have_count(1)
    expect(card).to_contain_text(f"achieved 1.16{TIMES}")
    expect(card.get_by_role("link")).to_have_attribute("href", "/jobs/llm-70b")


def test_fix_that_is_tracked_from_the_page_gets_a_card(served, open_page):
    from playwright.sync_api import expect

    query = "?scheduler=slurm&restart_minutes=10"
    page = open_page(f"{served}/jobs/bare{query}#token={TOKEN}").page
    expect(page.get_by_label("Findings", exact=True)).to_be_visible()
    card = page.get_by_label("Fixes: predicted and achieved", exact=True)
    expect(card).to_have_count(0)
    row = page.locator(".advice [data-key=replace-worker]").first
    with page.expect_request(lambda each: each.method == "POST") as asked:
        row.get_by_role("button", name="Track this fix").click()
    facts = {"scheduler": "slurm", "restart_minutes": 10}
    assert asked.value.post_data_json == {"window": "1-0", "fix": "replace-worker", **facts}
    expect(card).to_contain_text("not applied so far")
    page.reload()
    expect(card).to_contain_text("not applied so far")
