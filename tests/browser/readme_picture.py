"""Takes the README's picture: the demo's slow worker, some twenty steps after the onset.

Run `python -m tests.browser.readme_picture` from the root of the repository.
"""

import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from tests.browser.conftest import FLAGS, IS_DRAWN, found_chromium
from tests.browser.paceline import Paceline, running
from tests.browser.waiting import until, wait_until

PICTURE = Path(__file__).parents[2] / "docs" / "job-slow-worker.png"
_JOB = "demo-slow-worker"
_AFTER_STEP = 40
_WIDTH_PX, _HEIGHT_PX = 1440, 900


def take(demo: Paceline, path: Path) -> None:
    """Write the picture, once the demo's job has taken forty steps."""
    wait_until(lambda: (demo.figure(_JOB, "last_step") or 0) >= _AFTER_STEP, "forty steps")
    chromium = found_chromium()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        page = browser.new_page(
            viewport={"width": _WIDTH_PX, "height": _HEIGHT_PX}, color_scheme="light"
        )
        page.goto(demo.link.replace("/#", f"/jobs/{_JOB}#"))
        page.locator(".panels .main-svg").first.wait_for()
        until(page, IS_DRAWN)
        path.parent.mkdir(exist_ok=True)
        page.screenshot(path=path, full_page=True)
        browser.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory, running("demo", Path(directory)) as demo:
        take(demo, PICTURE)
