"""Whom the others waited for: the heatmap on a job's page, and the groups on a worker's."""

import random

import pytest

from app.charts.job.waits import remarks
from app.synth.faults.slow_compute import SlowWorker
from app.synth.job import SimulatedJob
from app.trace.job import Parallelism
from tests.charts.job.test_waits import NAMED_OR_NOT, result
from tests.results import finding, idle

NUM_STEPS = 8


@pytest.fixture(scope="module", autouse=True)
def jobs(server):
    slow = SlowWorker(dp_rank=2, stage=0, slowdown=1.6)
    for job_id, faults in (("waits", (slow,)), ("calm", ())):
        job = SimulatedJob(Parallelism(4, 1), 8, faults=faults)
        server.push(job_id, job, server.register(job_id, job), NUM_STEPS, None)


def shown(server, open_page, path, **options):
    return open_page(server.link.replace("/#", f"/jobs/{path}#"), **options).page


@pytest.mark.parametrize("theme", ["light", pytest.param("dark", marks=pytest.mark.nightly)])
def test_the_heatmap_of_waits_shows_the_rank_that_others_wait_for(server, open_page, keep, theme):
    from playwright.sync_api import expect

    page = shown(server, open_page, "waits", theme=theme)
    card = page.get_by_label("Waited for", exact=True)
    expect(card.locator(".ytick text").first).to_contain_text("rank 2")
    expect(card.locator(".key")).to_contain_text("(50\u202f% of a step) and over")
    # Who is to blame is outlined, and the findings name it the same.
    expect(card.locator(".shapelayer path")).not_to_have_count(0)
    expect(page.locator(".findings li h3")).to_contain_text("rank 2 (dp 2, stage 0)")
    evidence = page.locator(".findings details dl")
    page.locator(".findings").get_by_text("Evidence").click()
    expect(evidence).to_contain_text("Other ranks wait for it")
    expect(evidence).to_contain_text("of its collectives")
    keep(page, f"waits-{theme}")
    # Pointing at a step says how long the others waited there, and for whom.
    card.locator(".plot").scroll_into_view_if_needed()
    box = card.locator(".plot").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 16)
    expect(card.locator(".hoverlayer")).to_contain_text("rank 2")
    expect(card.locator(".hoverlayer")).to_contain_text("ms")


@pytest.mark.nightly
def test_the_table_of_waits_has_every_rank_with_worker_and_host(server, open_page):
    from playwright.sync_api import expect

    page = shown(server, open_page, "waits")
    card = page.get_by_label("Waited for", exact=True)
    card.get_by_role("button", name="Waited for: show as table").click()
    expect(card.locator("tbody tr")).to_have_count(4)
    first = card.locator("tbody tr").first
    expect(first.locator("td").nth(0)).to_have_text("2")
    expect(first.locator("td").nth(1)).to_have_text("dp 2, stage 0")


def test_a_job_without_waits_has_no_heatmap_of_waits(server, open_page):
    from playwright.sync_api import expect

    page = shown(server, open_page, "calm")
    expect(page.get_by_role("region", name="Step time and worst workers")).to_be_visible()
    expect(page.locator(".findings .none")).to_have_text("Nothing stands out.")
    expect(page.get_by_label("Waited for", exact=True)).to_have_count(0)


def drawn_waits(number):
    """Waits and own delays of four ranks, some zero, unknown, negative or blamed."""
    draw = random.Random(number)
    waited_s = tuple(draw.choice([0.0, 0.2, 0.5, 0.9]) for _ in range(4))
    own_s = [draw.choice([None, None, -0.1, 0.0, 0.1, 0.3, 0.8]) for _ in range(4)]
    culprits = draw.sample(range(4), draw.choice([0, 0, 1]))
    return result(waited_s, culprits=culprits, arrivals={"own_delay_s": own_s})


def test_remark_and_headline_name_the_late_rank_alike(server, open_page):
    page = shown(server, open_page, "calm")
    findings = [[], *([finding("gc-pause", culprits=[culprit])] for culprit, _ in NAMED_OR_NOT)]
    on_gpu = result(arrivals={"local_rank": [0, 1, 5, 7]})
    held_up = result(culprits=(), arrivals={"own_delay_s": [None, 0.1, 0.1, None]})
    drawn = [drawn_waits(number) for number in range(300)]
    of_findings = (result(findings=found, unexplained_share=0.1) for found in findings)
    facts = (result(observations=[idle(share)]) for share in (0.02, 0.054))
    results = [on_gpu, held_up, *drawn, *of_findings, *facts]
    script = """async (results) => {
      const { waitRemarks } = await import("/static/js/components/waits.js")
      return results.map(waitRemarks)
    }"""
    said = page.evaluate(script, [shown_result.as_json() for shown_result in results])
    assert said == [remarks(shown_result) for shown_result in results]
    assert "host-2, rank 2 (dp 2, stage 0), GPU 5" in said[0][0]
    assert "host-1, rank 1 (dp 1, stage 0)" in said[1][0], "rank 2 was held up itself"


@pytest.mark.parametrize(("share", "quiet"), [(0.02, "Nothing stands out."), (0.054, "No known")])
def test_a_fact_without_a_cause_is_one_line_under_the_findings(server, open_page, share, quiet):
    page = shown(server, open_page, "calm")
    calm = result((0.0,) * 4, culprits=(), slowdown=1.0, findings=[], observations=[idle(share)])
    script = """async (result) => {
      const { findingsCard } = await import("/static/js/components/findings-card.js")
      return [...findingsCard(result, {}).querySelectorAll("p")].map((line) => line.textContent)
    }"""
    none, fact = page.evaluate(script, calm.as_json())
    assert none.startswith(quiet)
    assert fact.replace("\u00a0", " ").replace("\u202f", " ") == f"{idle(share)['sentence']}."


def test_the_groups_of_a_worker_show_their_late_members(server, open_page, keep):
    from playwright.sync_api import expect

    page = shown(server, open_page, "waits/workers/2-0")
    card = page.get_by_label("Its groups")
    expect(card.locator("h3").first).to_contain_text("group")
    own = card.locator(".is-own").first
    expect(own).to_contain_text("this worker")
    expect(own.locator("td").first).to_contain_text("2")
    expect(own).to_contain_text("ms")
    keep(page, "worker-groups")


@pytest.mark.nightly
def test_waits_fit_on_a_phone(server, open_page):
    from playwright.sync_api import expect

    page = shown(server, open_page, "waits", width=390)
    expect(page.get_by_label("Waited for", exact=True).locator(".ytick text").first).to_have_text(
        "rank 2"
    )
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
