"""What to do about a slow job, as the card after the findings of its page."""

import json
import re
from urllib.parse import parse_qs, urlsplit

import pytest

from app import formatting
from tests.browser.waiting import until_handled


def card_of(page):
    return page.get_by_role("region", name="What to do")


def shown(stocked, open_page, job, query="", **options):
    """The job's page with its advice, and the page's card."""
    page = open_page(stocked.link(f"/jobs/{job}{query}"), **options).page
    card = card_of(page)
    card.locator("ol > li, .none").first.wait_for()
    return page, card


def advice(stocked, job, window="latest", **query):
    return stocked.get(f"/jobs/{job}/windows/{window}/advice", **query)


def fix_of(found, name):
    return next(each for each in found["fixes"] if each["fix"] == name)


def query_of(page):
    return parse_qs(urlsplit(page.url).query)


@pytest.mark.parametrize(
    ("theme", "width"), [("light", 1440), pytest.param("dark", 390, marks=pytest.mark.nightly)]
)
def test_the_card_after_the_findings_has_the_fix_its_gain_and_its_confidence(
    stocked, open_page, keep, theme, width
):
    from playwright.sync_api import expect

    page, card = shown(stocked, open_page, "slow-worker", theme=theme, width=width)
    found = advice(stocked, "slow-worker")
    fix = found["fixes"][0]
    assert fix["fix"] == "replace-worker"
    first, second = (page.locator(".job-panels .card").nth(place) for place in (0, 1))
    expect(first).to_have_accessible_name("Findings")
    expect(second).to_have_accessible_name("What to do")
    expect(card.get_by_role("listitem")).to_have_count(len(found["fixes"]))
    row = card.get_by_role("listitem").first
    expect(row.locator("h3")).to_have_text(fix["title"])
    expect(row.locator(".gain b")).to_have_text(f"{fix['speed_up']:.2f}\u00d7")
    won = formatting.rough_hours(fix["gpu_hours_per_day"])
    expect(row).to_contain_text(f"Wins about {won} GPU-hours a day")
    expect(row).to_contain_text(fix["risk"])
    confidence = formatting.confidence(fix["confidence"]).replace(" %", "\u202f%")
    expect(row.locator(".sure")).to_contain_text(confidence)
    expect(row.locator(".pays")).to_have_text("takes a restart, whose cost is not known")
    steps = f"steps {found['steps'][0]} to {found['steps'][-1]}"
    expect(card.locator(".explanation")).to_contain_text(steps)
    card.get_by_text("Not advised here").click()
    for other in (each for each in found["not_offered"] if not each["needs"]):
        expect(card.locator("details")).to_contain_text(other["reason"])
    keep(page, f"advice-{theme}-{width}")


def test_copy_puts_the_text_on_the_clipboard(stocked, open_page):
    from playwright.sync_api import expect

    page, card = shown(stocked, open_page, "slow-worker")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    pastes = advice(stocked, "slow-worker")["fixes"][0]["paste"]
    assert len(pastes) > 1
    row = card.get_by_role("listitem").first
    for paste in pastes:
        button = row.get_by_role("button", name=f"Copy, {paste['label']}", exact=True)
        button.click()
        expect(button).to_have_text("Copied")
        assert page.evaluate("navigator.clipboard.readText()") == paste["text"]
    expect(page.locator("#announcer")).to_have_text("Copied.")


@pytest.mark.nightly
def test_copy_selects_the_text_where_there_is_no_clipboard(stocked, open_page):
    from playwright.sync_api import expect

    page, card = shown(stocked, open_page, "slow-worker")
    page.evaluate("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    paste = advice(stocked, "slow-worker")["fixes"][0]["paste"][0]
    row = card.get_by_role("listitem").first
    button = row.get_by_role("button", name=f"Copy, {paste['label']}", exact=True)
    button.focus()
    page.keyboard.press("Enter")
    expect(button).to_have_text("Selected")
    assert page.evaluate("getSelection().toString()") == paste["text"]


def test_typed_layers_add_the_split_and_stay_in_the_address(stocked, open_page, keep):
    from playwright.sync_api import expect

    page, card = shown(stocked, open_page, "long-last-stage")
    why = "What removes the causes found can be predicted once more is known"
    expect(card.get_by_text(why)).to_be_visible()
    split = card.locator("ol > [data-key=resplit-stages]")
    expect(split).to_have_count(0)
    expect(card.locator("form")).to_contain_text("the number of layers is not known")
    layers = card.get_by_label("Layers of the model")
    layers.fill("0")  # refused by the field itself, and never asked
    layers.press("Enter")
    assert "layers" not in query_of(page)
    layers.fill("36")
    layers.press("Enter")
    fix = fix_of(advice(stocked, "long-last-stage", layers=36), "resplit-stages")
    expect(split.locator("h3")).to_have_text(fix["title"])
    expect(layers).to_be_focused()
    card.get_by_label("Restart, minutes").fill("10")
    card.get_by_label("Between checkpoints, minutes").fill("30")
    page.keyboard.press("Enter")
    expect(split.locator(".pays")).to_have_text(re.compile(r"^pays (after|now)"))
    asked = {"layers": ["36"], "restart_minutes": ["10"], "checkpoint_minutes": ["30"]}
    assert query_of(page) == asked
    keep(page, "advice-layers")
    page.reload()
    expect(split.locator("h3")).to_have_text(fix["title"])
    expect(card.get_by_label("Layers of the model")).to_have_value("36")


def test_facts_that_contradict_each_other_are_refused_beside_the_fields(stocked, open_page):
    from playwright.sync_api import expect

    query = "?layers=36&layout=9,9,9,9"
    watched = open_page(stocked.link(f"/jobs/long-last-stage{query}"))
    card = card_of(watched.page)
    expect(card.get_by_role("alert")).to_contain_text("Give either layers")
    card.get_by_label("or layers of each stage").fill("")
    watched.page.keyboard.press("Enter")
    expect(card.get_by_role("heading", name="not 9/9/9/9")).to_be_visible()
    expect(card.locator("form .refused")).to_be_empty()
    watched.forgive("422")


def test_the_what_if_page_opens_with_the_edits_of_the_fix(stocked, open_page):
    from playwright.sync_api import expect

    page, card = shown(stocked, open_page, "long-last-stage", "?layers=36")
    found = advice(stocked, "long-last-stage", layers=36)
    fix = fix_of(found, "resplit-stages")
    row = card.locator("[data-key=resplit-stages]")
    row.get_by_role("link", name="Open in what-if").click()
    expect(page.locator(".edit")).to_have_count(len(fix["what_if"]))
    speed_up = page.locator(".what-if-stats .figure").nth(1)
    expect(speed_up).to_have_text(f"{fix['speed_up']:.2f}\u00d7")
    query = query_of(page)
    assert query["window"] == [found["window"]]
    asked = json.loads(query["edits"][0])
    assert [each["change"]["kind"] for each in asked] == ["factor"] * len(asked)
    assert [each["select"] for each in asked] == [each["select"] for each in fix["what_if"]]


@pytest.mark.nightly
def test_an_open_window_has_the_advice_of_the_newest_closed_one(stocked, open_page):
    from playwright.sync_api import expect

    assert stocked.get("/jobs/restarted/windows/2-16")["window"]["state"] == "open"
    _, card = shown(stocked, open_page, "restarted", "?window=2-16")
    found = advice(stocked, "restarted")
    closed = f"of the newest closed window {found['window']}"
    expect(card.locator(".explanation")).to_contain_text(closed)
    expect(card.locator("ol h3").first).to_have_text(found["fixes"][0]["title"])


def test_chosen_steps_have_advice_of_their_own(stocked, open_page):
    from playwright.sync_api import expect

    _, card = shown(stocked, open_page, "slow-worker", "?window=1-24&steps=26-28")
    expect(card.locator(".explanation")).to_contain_text("steps 26 to 28")
    found = advice(stocked, "slow-worker", "1-24", steps="26-28")
    assert found["steps"] == [26, 27, 28]
    expect(card.locator(".gain b").first).to_have_text(f"{found['fixes'][0]['speed_up']:.2f}\u00d7")


@pytest.mark.nightly
@pytest.mark.parametrize("job", ["healthy", "low-fidelity", "not-analysed"])
def test_a_job_without_a_cause_has_no_such_card(stocked, open_page, job):
    from playwright.sync_api import expect

    watched = open_page(stocked.link(f"/jobs/{job}"))
    expect(watched.page.locator("h1")).to_be_visible()
    watched.settle()
    expect(card_of(watched.page)).to_have_count(0)


def test_tracked_fix_is_listed_with_its_prediction(stocked, open_page):
    from playwright.sync_api import expect

    page, card = shown(stocked, open_page, "slow-worker")
    fix = fix_of(advice(stocked, "slow-worker"), "other-schedule")
    row = card.get_by_role("listitem").filter(has_text=fix["title"])
    row.get_by_role("button", name=f"Track this fix: {fix['title']}").click()
    expect(row.get_by_role("button", name="Tracked: ")).to_have_text("Tracked")
    history = page.get_by_role("region", name="Fixes: predicted and achieved")
    tracked = history.get_by_role("listitem").filter(has_text=fix["title"])
    expect(tracked).to_contain_text(f"predicted {fix['speed_up']:.2f}\u00d7")
    expect(tracked).to_contain_text("not applied so far")
    tracked.get_by_role("button", name="Delete the prediction").click()
    expect(tracked).to_have_count(0)


ADVICE = re.compile(r"/advice\?")


def test_old_advice_cannot_be_copied_or_tracked_until_the_new_one_comes(stocked, open_page):
    from playwright.sync_api import expect

    page, card = shown(stocked, open_page, "slow-worker", "?restart_minutes=10")
    held = []
    page.route(ADVICE, lambda route: held.append(route))
    copy = card.get_by_role("button", name="Copy, ").first
    track = card.get_by_role("button", name="Track this fix").first
    expect(track).to_be_enabled()
    card.get_by_label("Restart, minutes").fill("20")
    page.keyboard.press("Enter")
    expect(card).to_have_attribute("aria-busy", "true")
    expect(copy).to_be_disabled()
    expect(track).to_be_disabled()
    until_handled(page, held)
    held[0].continue_()
    expect(card).to_have_attribute("aria-busy", "false")
    expect(copy).to_be_enabled()
    expect(track).to_be_enabled()


@pytest.mark.nightly
def test_nothing_old_stands_under_an_error(stocked, open_page):
    from playwright.sync_api import expect

    watched = open_page(stocked.link("/jobs/slow-worker?restart_minutes=10"))
    page, card = watched.page, card_of(watched.page)
    expect(card.get_by_role("listitem").first).to_be_visible()
    problem = {"status": 503, "json": {"detail": "too many simulations"}}
    page.route(ADVICE, lambda route: route.fulfill(**problem))
    card.get_by_label("Restart, minutes").fill("20")
    page.keyboard.press("Enter")
    expect(card.get_by_role("alert").first).to_have_text("Too many simulations.")
    expect(card.get_by_role("listitem")).to_have_count(0)
    expect(card.locator("details")).to_have_count(0)
    expect(card.locator(".explanation")).not_to_contain_text("steps")
    page.unroute(ADVICE)
    card.get_by_role("button", name="Try again").click()
    expect(card.get_by_role("listitem").first).to_be_visible()
    watched.forgive("503")


@pytest.mark.nightly
def test_only_what_can_be_noticed_is_tracked_and_a_refusal_has_its_reason(stocked, open_page):
    from playwright.sync_api import expect

    found = advice(stocked, "slow-worker")
    first, *others = found["fixes"]
    assert first["can_be_tracked"]
    assert others
    answer = {**found, "fixes": [first, *({**each, "can_be_tracked": False} for each in others)]}
    watched = open_page(stocked.link("/jobs/healthy"))
    page = watched.page
    page.route(ADVICE, lambda route: route.fulfill(json=answer))
    refusal = {"status": 409, "json": {"detail": "ranks are missing in it"}}
    page.route("**/api/v1/jobs/*/fixes", lambda route: route.fulfill(**refusal))
    page.goto(stocked.link("/jobs/slow-worker"))
    track = card_of(page).get_by_role("button", name="Track this fix: ")
    expect(track).to_have_count(1)
    row = card_of(page).get_by_role("listitem").first
    track.click()
    expect(row.get_by_role("alert")).to_have_text("Not tracked: ranks are missing in it")
    expect(track).to_be_enabled()
    watched.forgive("409")


@pytest.mark.nightly
def test_chosen_steps_have_nothing_to_track(stocked, open_page):
    from playwright.sync_api import expect

    _, card = shown(stocked, open_page, "slow-worker", "?window=1-24&steps=26-28")
    expect(card.get_by_role("button", name="Copy, ").first).to_be_enabled()
    expect(card.get_by_role("button", name="Track this fix")).to_have_count(0)
