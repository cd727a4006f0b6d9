"""A page that remembers everything a careful reader of its console would complain about."""

import time

from playwright.sync_api import BrowserContext, ConsoleMessage, Page, Request

from tests.browser.waiting import PATIENCE_S

# What a page lacks two frames from now: its title, pictures that something grey stands for.
_LACKS_IN_TWO_FRAMES = """async () => {
    for (let frame = 0; frame < 2; frame += 1)
        await new Promise(resolve => requestAnimationFrame(resolve))
    await document.fonts.ready
    const grey = document.querySelectorAll("[class^=waiting-], [aria-busy=true]")
    const plots = [...document.querySelectorAll("main .plot")]
        .filter(plot => plot.checkVisibility() && !plot.querySelector(".main-svg"))
    return [...grey, ...plots]
        .map(node => node.closest("[aria-label]")?.ariaLabel ?? node.className)
        .concat(document.querySelector("main h1") ? [] : ["a title"])
}"""


class Watched:
    """One page and its complaints: errors, warnings, CSP violations, requests to elsewhere.

    `is_own`: it is not used again, as its test changes more than `leave` takes away.
    """

    def __init__(self, context: BrowserContext) -> None:
        self.complaints: list[str] = []
        self.is_own = False
        self._origin = ""
        self._in_flight: set[Request] = set()
        self.page: Page = context.new_page()
        self.page.on("console", self._heard)
        self.page.on("pageerror", lambda error: self.complaints.append(f"page error: {error}"))
        self.page.on("request", self._asked)
        self.page.on("requestfinished", lambda request: self._in_flight.discard(request))
        self.page.on("requestfailed", lambda request: self._in_flight.discard(request))
        self.page.on("dialog", lambda dialog: self._opened(dialog.message))

    def begin(self, origin: str) -> None:
        """Complain of what does not come from this origin, and forget all that was."""
        self._origin = origin
        self.complaints.clear()
        self._in_flight.clear()

    def leave(self) -> None:
        """Go away from the address, and take away all that was kept, and how requests go."""
        page, context = self.page, self.page.context
        for other in context.pages[1:]:
            other.close()
        page.unroute_all(behavior="ignoreErrors")
        context.unroute_all(behavior="ignoreErrors")
        context.set_offline(False)
        context.clear_permissions()
        context.clear_cookies()
        devtools = context.new_cdp_session(page)
        kept = {"origin": self._origin, "storageTypes": "local_storage,indexeddb,cache_storage"}
        devtools.send("Storage.clearDataForOrigin", kept)
        devtools.detach()
        page.goto("about:blank")

    def forgive(self, part: str) -> None:
        """Drop the complaint that has this in it; it has to be there, or to come."""
        end_s = time.monotonic() + PATIENCE_S
        while not (found := [complaint for complaint in self.complaints if part in complaint]):
            assert time.monotonic() < end_s, f"no complaint has {part!r}: {self.complaints}"
            self._lacking()  # Playwright hears of complaints, too, while it waits for the page
        self.complaints.remove(found[0])

    def settle(self) -> None:
        """Returns when nothing is asked for any more and what was answered is drawn."""
        end_s = time.monotonic() + PATIENCE_S
        while lacking := self._lacking():
            assert time.monotonic() < end_s, f"{self.page.url} still lacks {lacking}"

    def _lacking(self) -> list[str]:
        # Playwright hears of answers while it waits for the page, and what they bring is drawn
        # within two frames of it.
        lacking: list[str] = self.page.evaluate(_LACKS_IN_TWO_FRAMES)
        return lacking + [request.url for request in self._in_flight]

    def _heard(self, message: ConsoleMessage) -> None:
        # Chromium reports violations of the content security policy as errors, too.
        if message.type in {"error", "warning"}:
            self.complaints.append(f"{message.type}: {message.text}")

    def _asked(self, request: Request) -> None:
        # The stream of events never ends.
        if not request.url.split("?")[0].endswith("/events"):
            self._in_flight.add(request)
        if not request.url.startswith((f"{self._origin}/", "data:", "blob:")):
            self.complaints.append(f"request to elsewhere: {request.url}")

    def _opened(self, message: str) -> None:
        self.complaints.append(f"dialog: {message}")
