"""A server without jobs: its first page makes a token, and loads and stops the demo."""

import pytest

from app.cli.demo_jobs import demo_jobs
from tests.browser.paceline import running
from tests.browser.waiting import wait_until


@pytest.fixture
def server(tmp_path):
    with running("serve", tmp_path) as server:
        yield server


@pytest.mark.nightly  # starts the demo; tests/browser/test_demo.py does in `make test`
def test_the_first_page_makes_a_token_and_loads_the_demo_and_the_fleet_stops_it(server, open_page):
    from playwright.sync_api import expect

    page = open_page(server.link).page
    page.get_by_role("button", name="Make a token").click()
    expect(page.locator("code", has_text="PACELINE_TOKEN=pl_").first).to_be_visible()
    # The example shows the beginning of a token before there is one.
    wait_until(lambda: server.get("/tokens")["items"], "the token is made")
    [token] = server.get("/tokens")["items"]
    assert token["scopes"] == ["ingest"]
    page.get_by_role("button", name="Load the demo").click()
    expect(page.locator("a.row")).to_have_count(len(demo_jobs()))
    wait_until(lambda: (server.figure("demo-healthy", "last_step") or 0) > 1, "its steps arrive")
    page.get_by_role("button", name="Stop the demo").click()
    expect(page.get_by_text("The demo's simulated jobs")).to_have_count(0)
    wait_until(
        lambda: {job["state"] for job in server.get("/jobs")["items"]} == {"finished"},
        "all jobs have ended",
    )
