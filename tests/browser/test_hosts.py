"""Hosts: the ones that several jobs found slow, and the history of one."""

from tests.browser.stocked_jobs import SHARED_HOST


def test_the_ledger_has_the_hosts_that_the_api_lists(stocked, open_page, keep):
    page = open_page(stocked.link("/hosts")).page
    rows = page.locator(".ledger tbody tr")
    rows.first.wait_for()
    hosts = stocked.get("/hosts")["items"]
    assert rows.count() == len(hosts)
    [host] = [each for each in hosts if each["host"] == SHARED_HOST]
    cells = rows.filter(has_text=SHARED_HOST).locator("td").all_inner_texts()
    assert cells[0] == str(host["jobs"])
    assert cells[1] == f"{host['worst_slowdown']:.2f}\u00d7"
    assert cells[2] == f"{host['gpu_hours_lost']:.1f}"
    keep(page, "hosts-light")


def test_hosts_of_one_job_are_there_when_asked_for(stocked, open_page):
    from playwright.sync_api import expect

    page = open_page(stocked.link("/hosts")).page
    page.get_by_label("In how many jobs").select_option("1")
    hosts = stocked.get("/hosts", min_jobs=1)["items"]
    expect(page.locator(".ledger tbody tr")).to_have_count(len(hosts))
    assert len(hosts) > len(stocked.get("/hosts")["items"])
    assert "jobs=1" in page.url


def test_a_host_has_its_runs_and_leads_to_the_windows_that_blame_it(stocked, open_page, keep):
    from playwright.sync_api import expect

    page = open_page(stocked.link("/"), theme="dark").page
    page.get_by_role("region", name="Hosts slow in several jobs").get_by_role(
        "link", name=SHARED_HOST
    ).click()
    expect(page).to_have_url(f"{stocked.url}/hosts/{SHARED_HOST}")
    expect(page.locator("h1")).to_contain_text("in each of the 2 jobs")
    host = stocked.get(f"/hosts/{SHARED_HOST}")
    lines = page.locator(".ledger tbody tr")
    expect(lines).to_have_count(len(host["runs"]))
    for line, run in zip(lines.all(), host["runs"], strict=True):
        blame = run["blame"]
        assert line.locator("th a").get_attribute("href") == f"/jobs/{run['job_id']}"
        expect(line.get_by_role("link", name="dp 1, stage 1")).to_be_visible()
        window = line.get_by_role("link", name=f"{blame['windows']} windows")
        wanted = f"?window={blame['first_window']}..{blame['last_window']}"
        assert window.get_attribute("href") == f"/jobs/{run['job_id']}{wanted}"
    assert page.locator(".stat .figure").nth(2).inner_text() == (
        f"{host['worst_slowdown']:.2f}\u00d7"
    )
    keep(page, "host-dark")


def test_a_host_that_no_job_named_is_said_to_be_unknown(stocked, open_page):
    from playwright.sync_api import expect

    watched = open_page(stocked.link("/hosts"))
    page = watched.page
    page.get_by_label("Any host").fill("no/such host")
    page.get_by_label("Any host").press("Enter")
    expect(page).to_have_url(f"{stocked.url}/hosts/no%2Fsuch%20host")
    expect(page.locator("h1")).to_have_text("No job had a worker on no/such host.")
    watched.forgive("404")


def test_a_host_that_was_never_slow_is_said_to_be_so(stocked, open_page):
    from playwright.sync_api import expect

    page = open_page(stocked.link("/hosts/host-000"), width=390).page
    expect(page.locator("h1")).to_have_text("host-000 was never slower than its peers.")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
