"""A page that remembers everything a careful reader of its console would complain about."""

from playwright.sync_api import BrowserContext, ConsoleMessage, Page, Request


class Watched:
    """One page and its complaints: errors, warnings, CSP violations, requests to elsewhere."""

    def __init__(self, context: BrowserContext, origin: str) -> None:
        self.complaints: list[str] = []
        self._origin = origin
        self.page: Page = context.new_page()
        self.page.on("console", self._heard)
        self.page.on("pageerror", lambda error: self.complaints.append(f"page error: {error}"))
        self.page.on("request", self._asked)
        self.page.on("dialog", lambda dialog: self._opened(dialog.message))

    def forgive(self, part: str) -> None:
        """Drop the complaint that has this in it; it has to be there."""
        forgiven = next(complaint for complaint in self.complaints if part in complaint)
        self.complaints.remove(forgiven)

    def _heard(self, message: ConsoleMessage) -> None:
        # Chromium reports violations of the content security policy as errors, too.
        if message.type in {"error", "warning"}:
            self.complaints.append(f"{message.type}: {message.text}")

    def _asked(self, request: Request) -> None:
        if not request.url.startswith((f"{self._origin}/", "data:", "blob:")):
            self.complaints.append(f"request to elsewhere: {request.url}")

    def _opened(self, message: str) -> None:
        self.complaints.append(f"dialog: {message}")
