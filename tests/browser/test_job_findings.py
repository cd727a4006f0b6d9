"""The findings of a job, as its page shows them."""

import re

import pytest

from app.synth.faults.slow_compute import SlowWorker
from app.synth.job import SimulatedJob
from app.trace.job import Parallelism

NUM_STEPS = 10


def shown(server, open_page, job_id, faults=(), theme="light"):
    job = SimulatedJob(Parallelism(4, 2), 8, faults=faults)
    server.push(job_id, job, server.register(job_id, job), NUM_STEPS, None)
    return open_page(server.link.replace("/#", f"/jobs/{job_id}#"), theme=theme).page


@pytest.mark.parametrize("theme", ["light", pytest.param("dark", marks=pytest.mark.nightly)])
def test_the_leading_finding_keeps_its_evidence_open(server, open_page, keep, theme):
    from playwright.sync_api import expect

    slow = SlowWorker(dp_rank=2, stage=1, slowdown=1.6)
    page = shown(server, open_page, f"slow-{theme}", (slow,), theme)
    expect(page.locator("h1")).to_contain_text("Rank 6 (dp 2, stage 1) is 1.6\u00d7 slower")
    card = page.locator(".findings")
    expect(card.locator("li")).to_have_count(1)
    expect(card.locator("li h3")).to_have_text(
        "Slow worker: rank 6 (dp 2, stage 1), host not reported"
    )
    sure = re.compile(r"^high confidence, \d\d\u202f%$")
    expect(card.locator("li .sure > span")).to_have_text(sure)
    card.get_by_text("Evidence").click()
    evidence = card.locator("details dl")
    expect(evidence).to_contain_text("dp 2, stage 1")
    # The page is drawn anew when more arrives; what the reader opened stays open.
    page.get_by_role("slider", name="Windows shown").press("ArrowLeft")
    expect(page.locator(".scrubber .what")).to_contain_text("steps 0 to 7")
    expect(card.locator("details dl")).to_be_visible()
    page.get_by_text("data used, fingerprint").click()
    expect(page.locator(".ruled-out dt").first).to_be_visible()
    expect(page.locator(".fingerprint dd").first).to_contain_text("%")
    keep(page, f"findings-{theme}")


def test_a_healthy_job_has_no_findings(server, open_page):
    from playwright.sync_api import expect

    page = shown(server, open_page, "healthy")
    expect(page.locator("h1")).to_contain_text("Nothing stands out.")
    expect(page.locator(".findings .none")).to_have_text("Nothing stands out.")
    expect(page.locator(".ruled-out")).to_contain_text("Slow worker: ")
