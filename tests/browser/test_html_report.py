"""The report of `paceline analyze --html` as a browser shows it, from the file alone."""

import pytest

from tests.cli.test_analyze import paceline, simulated_trace


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    trace = simulated_trace(folder, "--fault", "slow-worker:dp=1,stage=0,factor=2.5")
    path = folder / "report.html"
    done = paceline("analyze", str(trace), "--html", str(path))
    assert done.exit_code == 0, done.stderr
    return path


def test_report_draws_its_charts_and_fits_a_phone_in_both_themes(chromium, report):
    context = chromium.new_context(offline=True)
    page = context.new_page()
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(report.as_uri())
    page.locator(".plot .main-svg").first.wait_for()
    for width_px, theme in ((320, "dark"), (390, "light"), (1440, "dark")):
        page.set_viewport_size({"width": width_px, "height": 900})
        page.emulate_media(color_scheme=theme)
        assert page.evaluate("document.documentElement.scrollWidth") <= width_px
        drawn = page.locator(".plot:has(.main-svg)").count()
        assert drawn == page.locator(".plot").count() > 2
    assert page.evaluate("document.fonts.check('13px Inter')")
    assert complaints == []
    context.close()
