"""A headless Chromium, and pages of it that write down when what happened."""

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from app.errors import StartUpFailed

if TYPE_CHECKING:
    from playwright.async_api import Browser, BrowserType, Page

PROBE = Path(__file__).with_name("probe.js")
WIDTH_PX, HEIGHT_PX = 1440, 1000
_NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
_FLAGS = ("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking")


def refuse_without_playwright() -> None:
    """Nothing, if Playwright is there.

    Raises:
        StartUpFailed: it is not; the message says how to get it.
    """
    if find_spec("playwright") is None:
        raise StartUpFailed("this wants Playwright: pip install 'paceline[bench]'")


@asynccontextmanager
async def browser(path: Path | None) -> AsyncIterator["Browser"]:
    """Chromium from this path, or wherever one is.

    Raises:
        StartUpFailed: there is none, or it does not start.
    """
    from playwright.async_api import Error, async_playwright

    async with async_playwright() as playwright:
        found = path or _found(playwright.chromium)
        try:
            opened = await playwright.chromium.launch(executable_path=found, args=list(_FLAGS))
        except Error as error:
            raise StartUpFailed(f"{found} does not start: {error.message}") from error
        yield opened
        await opened.close()


async def new_page(browser: "Browser") -> "Page":
    """A page with an empty cache, and the probe in it."""
    context = await browser.new_context(viewport={"width": WIDTH_PX, "height": HEIGHT_PX})
    await context.add_init_script(path=PROBE)
    return await context.new_page()


def _found(chromium: "BrowserType") -> Path:
    names = [shutil.which(name) for name in _NAMES]
    for path in (*names, chromium.executable_path):
        if path and Path(path).exists():
            return Path(path)
    raise StartUpFailed(
        "no Chromium: install it (apt-get install chromium, or playwright install chromium), "
        "or name it with --chromium"
    )
