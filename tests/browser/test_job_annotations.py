"""Annotations on a job's page, and a link to a frozen snapshot of it."""

import re

import httpx
import pytest

from app.synth.faults.fault import FaultSteps
from app.synth.faults.slow_compute import SlowWorker
from app.synth.job import SimulatedJob
from app.trace.job import Parallelism

NUM_STEPS = 24
ONSET = 12


@pytest.fixture(scope="module", autouse=True)
def job(server):
    slow = SlowWorker(dp_rank=2, stage=1, slowdown=1.8, when=FaultSteps(ONSET))
    job = SimulatedJob(Parallelism(4, 2), 8, faults=(slow,))
    server.push("llm-70b", job, server.register("llm-70b", job), NUM_STEPS, None)


def opened(server, open_page, **options):
    return open_page(server.link.replace("/#", "/jobs/llm-70b#"), **options).page


def test_pushed_annotation_is_on_the_charts_in_the_events_and_at_the_finding(
    server, open_page, keep
):
    from playwright.sync_api import expect

    body = {"kind": "deploy", "text": "v1.4", "step": ONSET - 2, "source": "ci"}
    page = opened(server, open_page)
    expect(page.locator(".annotations")).to_contain_text("None yet.")
    server.http.post("/jobs/llm-70b/annotations", json=body).raise_for_status()
    # Without a reload.
    expect(page.locator(".annotations li")).to_contain_text("deploy v1.4")
    expect(page.locator(".happened")).to_contain_text("Deploy v1.4 (ci)")
    expect(page.locator(".scrubber .event", has_text="deploy v1.4")).to_be_visible()
    page.get_by_role("button", name="All", exact=True).click()
    expect(page.locator(".findings")).to_contain_text(
        re.compile(r"Begins \d steps? after: deploy v1\.4\. This is a match in time")
    )
    expect(page.locator(".plot text", has_text="deploy v1.4").first).to_be_visible()
    keep(page, "annotations")


def test_annotation_is_added_deleted_and_restored_by_hand(server, open_page):
    from playwright.sync_api import expect

    page = opened(server, open_page)
    card = page.locator(".annotations")
    card.get_by_role("button", name="Add an annotation").click()
    card.get_by_label("Kind").select_option("config-change")
    card.get_by_label("Text").fill("<b>lr</b> 3e-4")
    card.get_by_label("Step").fill("5")
    card.get_by_role("button", name="Add", exact=True).click()
    row = card.locator("li", has_text="config change <b>lr</b> 3e-4")
    expect(row).to_contain_text("step 5")
    row.get_by_role("button", name="Delete").click()
    expect(row).to_have_count(0)
    card.get_by_role("button", name="Undo").click()
    expect(row).to_have_count(1)


def test_share_link_shows_a_frozen_snapshot_until_it_is_revoked(server, open_page, keep):
    from playwright.sync_api import expect

    body = {"kind": "deploy", "text": "v1.4", "step": ONSET - 2, "source": "ci"}
    server.http.post("/jobs/llm-70b/annotations", json=body).raise_for_status()
    page = opened(server, open_page)
    page.get_by_role("button", name="Share").click()
    page.get_by_role("button", name="Create the link").click()
    box = page.locator(".share-box")
    expect(box).to_contain_text("Anyone who has this link can open it")
    keep(page, "share-box")
    link = box.locator("code").inner_text()
    visitor = open_page(link).page  # in a browser that is not signed in
    expect(visitor.locator(".notice")).to_have_text(
        re.compile(r"Snapshot of llm-70b at .* UTC, steps 12 to 23")
    )
    expect(visitor.locator("h1")).to_contain_text("Rank 6 (dp 2, stage 1)")
    expect(visitor.locator(".findings")).to_contain_text("after: deploy v1.4.")
    # The charts are drawn under the strict policy.
    expect(visitor.locator(".plot svg").first).to_be_visible()
    keep(visitor, "snapshot")
    page.goto(server.link.replace("/#", "/settings#"))
    card = page.get_by_role("region", name="Share links")
    card.get_by_role("button", name="Revoke the link to llm-70b").click()
    card.get_by_role("button", name="Revoke the link", exact=True).click()
    expect(card).to_contain_text("No link opens now.")
    card.get_by_role("button", name="Show 1 old link").click()
    expect(card).to_contain_text("revoked at")
    answer = httpx.get(link)
    assert (answer.status_code, "Nothing is shared here" in answer.text) == (404, True)
