"""The pages that tests open: used again, as a new one parses every script anew.

That takes longer than most of what a test does with a page.
"""

from typing import Literal

from playwright.sync_api import Browser

from tests.browser.waiting import PATIENCE_S
from tests.browser.watched import Watched

HEIGHT_PX = 1000


class Pages:
    """Pages of one browser, each with a context of its own.

    What a test leaves behind is taken away: cookies, storage, routes, permissions, other tabs. Only
    a clock that it installed stays: such a page has to be `own`, and is closed.
    """

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._free: list[Watched] = []
        self._opened: list[Watched] = []

    def open(
        self,
        url: str,
        *,
        width: int = 1440,
        theme: Literal["light", "dark"] = "light",
        own: bool = False,
    ) -> Watched:
        """A page at this address, of a reader who is not signed in and has changed no setting."""
        watched = self._new() if own or not self._free else self._free.pop()
        watched.is_own = own
        watched.begin("/".join(url.split("/", 3)[:3]))
        self._opened.append(watched)
        watched.page.emulate_media(color_scheme=theme)
        watched.page.set_viewport_size({"width": width, "height": HEIGHT_PX})
        watched.page.goto(url)
        return watched

    def take_back(self) -> list[str]:
        """Complaints of all pages that were opened since the last time; the pages are left."""
        complaints = [complaint for watched in self._opened for complaint in watched.complaints]
        while self._opened:
            watched = self._opened.pop()
            if watched.is_own or watched.page.is_closed():
                watched.page.context.close()
            else:
                watched.leave()
                self._free.append(watched)
        return complaints

    def _new(self) -> Watched:
        context = self._browser.new_context(locale="en-GB", timezone_id="UTC")
        context.set_default_timeout(1000 * PATIENCE_S)
        return Watched(context)
