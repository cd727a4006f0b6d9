"""What a job's page says is the same in every place, and true of now."""


def test_the_cost_of_a_finding_equals_that_of_the_headline(stocked, open_page):
    from playwright.sync_api import expect

    result = stocked.get("/jobs/long-last-stage/windows/latest", arrays="false")
    cost = result["findings"][0]["cost"]
    assert cost > result["gpu_time_wasted"]
    page = open_page(stocked.link("/jobs/long-last-stage")).page
    shown = f"{100 * cost:.0f}\u202f%"
    expect(page.locator("h1")).to_contain_text(f"it costs {shown} of the job's GPU time")
    found = page.locator(".findings li").first
    expect(found.locator(".share b")).to_have_text(shown)
    expect(found.locator(".share span")).to_have_text("of GPU time")
    expect(found.locator("h3")).to_have_text("Long last stage: stage 3")
    page.get_by_text("Why more than the GPU time wasted?").click()
    expect(page.locator(".findings .over-loss p")).to_have_text(
        "Costs are against peers, the loss is against the mean of all workers. "
        "The fault itself raises that mean, so a cost may exceed the loss."
    )
    expect(page.locator(".findings")).not_to_contain_text("of loss")
    # No more than all of the loss is won back, and the reason is one step away.
    assert result["stage_share"][3] > 1
    won_back = page.locator(".stat", has_text="Won back by last stage")
    expect(won_back.locator(".figure")).to_have_text("100 %")
    won_back.get_by_role("button", name="why?").hover()
    expect(page.get_by_role("tooltip")).to_contain_text("a mean that the fault itself raises")


def test_a_job_with_silent_ranks_is_nowhere_called_healthy(stocked, open_page):
    from playwright.sync_api import expect

    page = open_page(stocked.link("/jobs/silent")).page
    expect(page.locator(".live")).to_contain_text("1 rank silent, last data")
    findings = page.locator(".findings")
    expect(findings).to_contain_text("rank 40 (dp 1, stage 1) has sent nothing since")
    # The worker that is named is the one whose rank it is in the made job: dp 4, tp 8.
    expect(findings.locator(".since a")).to_have_attribute("href", "/jobs/silent/workers/1-1")
    expect(findings).not_to_contain_text("Nothing stands out")
    expect(findings).not_to_contain_text("Every worker reported")
    used = page.get_by_label("Data used")
    expect(used).to_contain_text("40 in this window; now rank 40")
    expect(used).to_contain_text("missing: rank 40 (dp 1, stage 1) in steps 24 to 39")


def test_each_reason_of_causes_in_a_low_fidelity_window_is_listed_once(stocked, open_page):
    from playwright.sync_api import expect

    page = open_page(stocked.link("/jobs/low-fidelity")).page
    reasons = page.locator(".ruled-out dl").last.locator("dd")
    expect(reasons.first).to_be_attached()
    texts = reasons.all_text_contents()
    assert len(texts) == len(set(texts))
    expect(page.locator(".fingerprint")).to_contain_text("withheld: low fidelity")
    expect(page.locator(".fingerprint dt")).to_have_count(3)


def test_old_data_is_not_shown_as_live(stocked, open_page):
    from playwright.sync_api import expect

    page = open_page(stocked.link("/jobs/healthy"), own=True).page
    won_back = page.locator(".stat", has_text="Won back by worker")
    expect(won_back).to_contain_text("n/a")
    expect(won_back).to_contain_text("nothing worth winning back")
    expect(page.locator(".fingerprint")).to_contain_text("Backward compute")
    page.clock.install()
    page.reload()
    expect(page.locator(".live")).to_contain_text("ago")
    page.clock.fast_forward(60_000)
    expect(page.locator(".live")).to_contain_text("Last data")
    expect(page.locator(".live")).not_to_contain_text("Live")


def test_a_job_without_figures_lists_its_missing_data(stocked, open_page):
    from playwright.sync_api import expect

    page = open_page(stocked.link("/jobs/not-analysed")).page
    missing = page.get_by_label("Missing data")
    expect(missing).to_contain_text("none of 8")
    expect(missing).to_contain_text("no worker has sent data yet")


def test_the_finding_of_uneven_sequences_shows_the_variation_of_computations(stocked, open_page):
    from playwright.sync_api import expect

    finding = open_page(stocked.link("/jobs/sequence-lengths")).page.locator(".findings li").first
    (found, *_) = stocked.get("/jobs/sequence-lengths/windows/latest")["findings"]
    variation = found["evidence"]["coefficient_of_variation"]
    expect(finding).to_contain_text(f"by {100 * variation:.0f}\u202f% of their mean")
