"""Which steps a job records, chosen on its page; what its recorders dropped; by real servers."""

import gzip

import pytest

from tests.api.server import JOB
from tests.browser.waiting import wait_until
from tests.ingest.wire.packing import packed_batch

HEADERS = {
    "Content-Type": "application/vnd.paceline.ops+msgpack",
    "Content-Encoding": "gzip",
}
NUM_OPS = 4
WORKERS = [(0, 0), (0, 1), (1, 0), (1, 1)]


def body_of(rank, step, epoch=1, **more):
    """A step of one worker, packed and compressed as the client does it."""
    dp_rank, stage = WORKERS[rank]
    start_ns = 10**18 + step * 10**9
    columns = {
        "step": [step] * NUM_OPS,
        "optype": ["forward-compute", "forward-compute", "backward-compute", "backward-compute"],
        "start_ns": [start_ns + at * 1_000_000 for at in range(NUM_OPS)],
        "duration_ns": [900_000] * NUM_OPS,
        "seq_id": [0, 1, 0, 1],
        "mc": [0] * NUM_OPS,
        "mb_id": [0, 1, 0, 1],
    }
    fields = {
        "version": 1,
        "epoch": epoch,
        "rank": rank,
        "dp_rank": dp_rank,
        "stage": stage,
        "host": f"node-{rank}",
        "batch_seq": step,
        "steps_done": [[step, NUM_OPS]],
        "columns": columns,
        **more,
    }
    kinds = {"step": 1, "optype": 0, "start_ns": 2, "duration_ns": 1, "seq_id": 1, "mb_id": 1}
    return gzip.compress(packed_batch(fields, kinds))


@pytest.fixture
def job(project):
    """A job whose first step was an evaluation, and one of whose recorders had no room."""
    registered = project.send("PUT", "/jobs/llm-70b", json=JOB)
    assert {"packed", "dropped", "step_kinds", "placement"} < {*registered["accepts"]}
    for step in range(3):
        for rank in range(4):
            kinds = [[0, "eval"]] if step == 0 else []
            placed = {"rack": f"r{rank}", "switch": "leaf-7"}
            more = {"dropped": 1204 if rank == 3 else 0, "step_kinds": kinds, "placement": placed}
            answer = project.send(
                "POST", "/jobs/llm-70b/ops", content=body_of(rank, step, **more), headers=HEADERS
            )
            assert answer == {"accepted": NUM_OPS, "rejected": 0, "errors": []}
    wait_until(lambda: bool(project.get("/jobs/llm-70b")["drops"]), "it is taken")
    wait_until(
        lambda: [each["step"] for each in project.get("/jobs/llm-70b/steps")["items"]] == [0, 1, 2],
        "the steps are settled",
    )
    return project


def card(page):
    return page.get_by_label("Recording")


def test_skipped_steps_and_dropped_operations_are_on_the_job_page(job, open_page):
    from playwright.sync_api import expect

    first, *_ = job.get("/jobs/llm-70b/steps")["items"]
    assert first["skipped_reason"] == "it was an evaluation, no training"
    page = open_page(job.link("/jobs/llm-70b?details=open")).page
    expect(card(page)).to_contain_text("every step")
    expect(card(page)).to_contain_text("1,204 operations, by 1 worker")
    expect(page.get_by_label("Data used")).to_contain_text("it was an evaluation")
    expect(page.locator(".left-out")).to_contain_text("1,204 operations dropped by recorders")
    card(page).get_by_role("link", name="dp 1, stage 1").click()
    expect(page.locator(".stat", has_text="Dropped by its recorder")).to_contain_text("1,204")
    expect(page.locator(".head")).to_contain_text("Its host is in rack r3, on switch leaf-7.")


def test_a_changed_recording_plan_reaches_all_workers(job, open_page):
    from playwright.sync_api import expect

    page = open_page(job.link("/jobs/llm-70b?details=open")).page
    card(page).get_by_role("button", name="Change which steps").click()
    card(page).get_by_role("button", name="Some").click()
    card(page).get_by_label("The first").fill("7")
    card(page).get_by_role("button", name="Cancel").click()
    card(page).get_by_role("button", name="Change which steps").click()
    card(page).get_by_role("button", name="Some").click()
    expect(card(page).get_by_label("The first")).to_have_value("1")
    card(page).get_by_label("The first").fill("200")
    card(page).get_by_role("button", name="Save").click()
    expect(card(page).get_by_role("alert")).to_contain_text("Of 100 steps at most 100")
    card(page).get_by_label("The first").fill("10")
    card(page).get_by_role("button", name="Save").click()
    expect(card(page)).to_contain_text("10 of every 100 steps")
    expect(card(page)).to_contain_text("every step")  # until then
    plan = job.get("/jobs/llm-70b/recording")
    assert (plan["every"], plan["steps"], plan["enabled"]) == (100, 10, True)
    answer = job.send("POST", "/jobs/llm-70b/ops", content=body_of(0, 3), headers=HEADERS)
    told = {name: plan[name] for name in ("version", "from_step", "enabled", "every", "steps")}
    assert answer["recording"] == told
    [deed] = job.get("/audit", object_kind="recording")["items"]
    assert deed["action"] == "recording.set"


def test_a_job_with_recording_off_says_so_first(job, open_page):
    from playwright.sync_api import expect

    job.send("PUT", "/jobs/llm-70b/recording", json={"enabled": False, "from_step": 4})
    page = open_page(job.link("/jobs/llm-70b?details=open")).page
    expect(card(page)).to_contain_text("From step 4 on")
    expect(page.locator(".note-bar")).to_have_count(0)
    for rank in range(4):
        job.send("POST", "/jobs/llm-70b/ops", content=body_of(rank, 3), headers=HEADERS)
    expect(page.locator(".note-bar")).to_contain_text("Recording is off from step 4")


@pytest.mark.nightly
def test_without_the_admin_scope_recording_has_no_form(job, open_page):
    from playwright.sync_api import expect

    page = open_page(job.link("/jobs/llm-70b", "read", "write")).page
    expect(card(page)).to_contain_text("1,204 operations")
    expect(card(page).get_by_role("button")).to_have_count(0)
