"""What a page's probe has seen, and how long to wait until it has seen it all."""

import asyncio
import time
from typing import TYPE_CHECKING, Any

from app.errors import DeliveryFailed

if TYPE_CHECKING:
    from playwright.async_api import CDPSession, Page

DRAWN_WITHIN_S = 60.0
_POLL_S = 0.05
# Long enough for whatever a drawn chart asks for next; no part of what is measured.
_QUIET_FOR_S = 0.4

_STATE = """() => ({
    ...window.paceline_probe,
    now_ms: performance.now(),
    drawn: document.querySelectorAll("main .plot .main-svg").length > 0
        && document.querySelector("main .waiting-cells, main .waiting-block") === null
        && [...document.querySelectorAll("main .plot")]
            .every(plot => !plot.checkVisibility() || plot.querySelector(".main-svg") !== null),
})"""
_SLOWEST = """since => performance.getEntriesByType("resource")
    .filter(each => each.startTime >= since)
    .map(each => ({
        path: new URL(each.name).pathname,
        ms: Math.round(each.duration),
        bytes: each.transferSize,
    }))
    .sort((one, other) => other.ms - one.ms).slice(0, 6)"""


async def settled(page: "Page", since: str = "") -> dict[str, Any]:
    """The probe's state once every chart is drawn and nothing is waited for.

    `since` names the moment after which something has to have been drawn.

    Raises:
        DeliveryFailed: that does not come; the message has the last state.
    """
    end_s, quiet_s = time.monotonic() + DRAWN_WITHIN_S, 0.0
    state: dict[str, Any] = {}
    while time.monotonic() < end_s:
        state = await page.evaluate(_STATE)
        is_still = state["drawn"] and state["waiting"] == 0
        is_still = is_still and (not since or state["drawn_ms"] > state[since] > 0)
        quiet_s = quiet_s + _POLL_S if is_still else 0.0
        if quiet_s >= _QUIET_FOR_S:
            return state
        await asyncio.sleep(_POLL_S)
    raise DeliveryFailed(
        f"{page.url}: not all charts are drawn after {DRAWN_WITHIN_S:.0f} s: {state}",
        retryable=False,
    )


async def slowest_requests(page: "Page", since_ms: float) -> list[dict[str, Any]]:
    """Path, milliseconds and bytes of the longest requests since a moment of the page."""
    found: list[dict[str, Any]] = await page.evaluate(_SLOWEST, since_ms)
    return found


async def heap_mb(session: "CDPSession", *, collected: bool) -> float:
    """JavaScript's heap now, or after what nobody holds has been thrown away."""
    if collected:
        await session.send("HeapProfiler.collectGarbage")
    usage = await session.send("Runtime.getHeapUsage")
    return round(float(usage["usedSize"]) / 1e6, 1)
