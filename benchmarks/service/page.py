"""`page`: how soon is a job's page drawn in Chromium, and how much memory does it hold?

A probe (probe.js) in the page records when what happened.
"""

import asyncio
import json
import shutil
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.errors import StartUpFailed
from benchmarks.measuring import BenchmarkFailed
from benchmarks.service import pushing
from benchmarks.service.ingest import copy_s
from benchmarks.service.pushing import StepFeed, page_stack, stages_of
from benchmarks.service.stack import JOB, StackUnderTest

if TYPE_CHECKING:
    from playwright.async_api import Browser, CDPSession, Page


DEFAULT_WORKERS = (1_024, 16_384)
STEPS_BEFORE = 10  # one window is closed, the next one is open
_ROW = f"main a[href^='/jobs/{JOB}']"
PROBE = Path(__file__).with_name("probe.js")
WIDTH_PX, HEIGHT_PX = 1440, 1000
_NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
_FLAGS = ("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking")
DRAWN_WITHIN_S = 60.0
_POLL_S = 0.05
# Long enough for the follow-up requests of a drawn chart; not part of the measurement.
_IDLE_FOR_S = 0.4
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


def page(
    workers: Annotated[
        list[int] | None, typer.Option(min=4, help="Workers of the job; several times for more.")
    ] = None,
    clicks: Annotated[int, typer.Option(min=1, help="How often each opening is measured.")] = 5,
    minutes: Annotated[
        float, typer.Option(min=0, help="How long new steps come with the page open.")
    ] = 1.0,
    microbatches: Annotated[int, typer.Option(min=1, help="Of each step of the job.")] = 8,
    chromium: Annotated[
        Path | None, typer.Option(exists=True, help="Where Chromium is; default: searched for.")
    ] = None,
) -> None:
    """Open a simulated job's page in headless Chromium: by a click in the fleet, and from nothing.

    Then new steps come, and what is measured is the time from the server's event to the last
    chart's repaint, how far anything moved, and JavaScript's heap. Starts a stack of its own for
    each size. Wants Playwright and Chromium.

    Example: python -m benchmarks page --workers 1024 --minutes 30
    """
    refuse_without_playwright()
    sizes = workers or list(DEFAULT_WORKERS)
    for num_workers in sizes:
        stages_of(num_workers)
    for num_workers in sizes:
        with page_stack(num_workers) as target:
            measured = asyncio.run(
                page_figures(target, num_workers, microbatches, clicks, minutes, chromium)
            )
        typer.echo(json.dumps(measured | {"copy_100mb_s": copy_s()}))


async def page_figures(
    target: StackUnderTest,
    num_workers: int,
    microbatches: int,
    clicks: int,
    minutes: float,
    path: Path | None,
) -> dict[str, Any]:
    """All of a job of so many workers, in milliseconds and megabytes."""
    feed = pushing.StepFeed.of(target, num_workers, microbatches)
    await feed.push(STEPS_BEFORE)
    async with chromium_browser(path) as browser:
        first_ms = [await _first_load_ms(browser, target) for _ in range(clicks)]
        page = await new_page(browser)
        await page.goto(f"http://127.0.0.1:{target.port}/#token={target.token}")
        clicked = await _clicks(page, clicks)
        live = await _updates(page, feed, minutes)
        await page.context.close()
    return {"workers": num_workers, "first_load": _median_and_max(first_ms), **clicked, **live}


async def _first_load_ms(browser: "Browser", target: StackUnderTest) -> float:
    """From nothing in the browser's cache, signing in included."""
    page = await new_page(browser)
    await page.goto(f"http://127.0.0.1:{target.port}/jobs/{JOB}#token={target.token}")
    state = await settled_state(page)
    await page.context.close()
    return float(state["drawn_ms"])


async def _clicks(page: "Page", clicks: int) -> dict[str, Any]:
    """From a click on the job's row in the fleet to all of its charts; the first one warms up."""
    took_ms, slowest = [], []
    for _ in range(1 + clicks):
        await page.locator(_ROW).first.wait_for()
        await page.locator(_ROW).first.click()
        state = await settled_state(page, since="clicked_ms")
        took_ms.append(state["drawn_ms"] - state["clicked_ms"])
        slowest = await slowest_requests(page, state["clicked_ms"])
        await page.go_back()
    await page.go_forward()
    await settled_state(page)
    return {"click_to_charts": _median_and_max(took_ms[1:]), "slowest_requests": slowest}


async def _updates(page: "Page", feed: StepFeed, minutes: float) -> dict[str, Any]:
    """New steps, one after the other, with the page open; at least one."""
    session = await page.context.new_cdp_session(page)
    before = await settled_state(page)
    await page.evaluate("paceline_probe.moved = {}")
    heaps_mb = [await heap_mb(session, collected=True)]
    took_ms: list[float] = []
    end_s = time.monotonic() + 60 * minutes
    while not took_ms or time.monotonic() < end_s:
        await feed.push()
        state = await settled_state(page, since="event_ms")
        took_ms.append(state["drawn_ms"] - state["event_ms"])
        heaps_mb.append(await heap_mb(session, collected=False))
    return {
        "update_to_repaint": _median_and_max(took_ms),
        "minutes": minutes,
        "updates": len(took_ms),
        "layout_shift": round(state["shift"] - before["shift"], 4),
        "moved_down_px": {name: px for name, px in state["moved"].items() if px},
        "longest_task_ms": round(state["longest_task_ms"]),
        "heap_mb_before": heaps_mb[0],
        "heap_mb_most": max(heaps_mb),
        "heap_mb_after": await heap_mb(session, collected=True),
    }


def _median_and_max(took_ms: list[float]) -> dict[str, int]:
    return {"median_ms": round(statistics.median(took_ms)), "most_ms": round(max(took_ms))}


def refuse_without_playwright() -> None:
    """Nothing, if Playwright is there.

    Raises:
        StartUpFailed: it is not; the message says how to get it.
    """
    if find_spec("playwright") is None:
        raise StartUpFailed("this wants Playwright: pip install playwright")


@asynccontextmanager
async def chromium_browser(path: Path | None) -> AsyncIterator["Browser"]:
    """Chromium from this path, or wherever one is.

    Raises:
        StartUpFailed: there is none, or it does not start.
    """
    from playwright.async_api import Error, async_playwright

    async with async_playwright() as playwright:
        found = path or chromium_path(playwright.chromium)
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


def chromium_path(chromium: Any) -> Path:
    """Where a browser is that Playwright can start.

    Raises:
        StartUpFailed: there is none.
    """
    names = [shutil.which(name) for name in _NAMES]
    for path in (*names, chromium.executable_path):
        if path and Path(path).exists():
            return Path(path)
    raise StartUpFailed(
        "no Chromium: install it (apt-get install chromium, or playwright install chromium), "
        "or name it with --chromium"
    )


async def settled_state(page: "Page", since: str = "") -> dict[str, Any]:
    """The probe's state once every chart is drawn and nothing is waited for.

    `since` names the moment after which something has to have been drawn.

    Raises:
        BenchmarkFailed: that does not come; the message has the last state.
    """
    end_s, idle_s = time.monotonic() + DRAWN_WITHIN_S, 0.0
    state: dict[str, Any] = {}
    while time.monotonic() < end_s:
        state = await page.evaluate(_STATE)
        is_idle = state["drawn"] and state["waiting"] == 0
        is_idle = is_idle and (not since or state["drawn_ms"] > state[since] > 0)
        idle_s = idle_s + _POLL_S if is_idle else 0.0
        if idle_s >= _IDLE_FOR_S:
            return state
        await asyncio.sleep(_POLL_S)
    raise BenchmarkFailed(
        f"{page.url}: not all charts are drawn after {DRAWN_WITHIN_S:.0f} s: {state}"
    )


async def slowest_requests(page: "Page", since_ms: float) -> list[dict[str, Any]]:
    """Path, milliseconds and bytes of the longest requests since a moment of the page."""
    found: list[dict[str, Any]] = await page.evaluate(_SLOWEST, since_ms)
    return found


async def heap_mb(session: "CDPSession", *, collected: bool) -> float:
    """JavaScript's heap, on request after a garbage collection."""
    if collected:
        await session.send("HeapProfiler.collectGarbage")
    usage = await session.send("Runtime.getHeapUsage")
    return round(float(usage["usedSize"]) / 1e6, 1)
