"""The page of one job, from a click in the fleet, from nothing, and as new steps come."""

import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.cli.bench.ingest_stack import JOB, Target
from app.cli.bench.page import chromium, job, reading

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page

    from app.cli.bench.page.job import Feed

STEPS_BEFORE = 10  # one window is closed, the next one is open
_ROW = f"main a[href^='/jobs/{JOB}']"


async def figures(
    target: Target,
    num_workers: int,
    microbatches: int,
    clicks: int,
    minutes: float,
    path: Path | None,
) -> dict[str, Any]:
    """All of a job of so many workers, in milliseconds and megabytes."""
    feed = job.Feed.of(target, num_workers, microbatches)
    await feed.push(STEPS_BEFORE)
    async with chromium.browser(path) as browser:
        first_ms = [await _first_load_ms(browser, target) for _ in range(clicks)]
        page = await chromium.new_page(browser)
        await page.goto(f"http://127.0.0.1:{target.port}/#token={target.token}")
        clicked = await _clicks(page, clicks)
        live = await _live(page, feed, minutes)
        await page.context.close()
    return {"workers": num_workers, "first_load": _of(first_ms), **clicked, **live}


async def _first_load_ms(browser: "Browser", target: Target) -> float:
    """From nothing in the browser's cache, signing in included."""
    page = await chromium.new_page(browser)
    await page.goto(f"http://127.0.0.1:{target.port}/jobs/{JOB}#token={target.token}")
    state = await reading.settled(page)
    await page.context.close()
    return float(state["drawn_ms"])


async def _clicks(page: "Page", clicks: int) -> dict[str, Any]:
    """From a click on the job's row in the fleet to all of its charts; the first one warms up."""
    took_ms, slowest = [], []
    for _ in range(1 + clicks):
        await page.locator(_ROW).first.wait_for()
        await page.locator(_ROW).first.click()
        state = await reading.settled(page, since="clicked_ms")
        took_ms.append(state["drawn_ms"] - state["clicked_ms"])
        slowest = await reading.slowest_requests(page, state["clicked_ms"])
        await page.go_back()
    await page.go_forward()
    await reading.settled(page)
    return {"click_to_charts": _of(took_ms[1:]), "slowest_requests": slowest}


async def _live(page: "Page", feed: "Feed", minutes: float) -> dict[str, Any]:
    """New steps, one after the other, with the page open; at least one."""
    session = await page.context.new_cdp_session(page)
    before = await reading.settled(page)
    await page.evaluate("paceline_probe.moved = {}")
    heaps_mb = [await reading.heap_mb(session, collected=True)]
    took_ms: list[float] = []
    end_s = time.monotonic() + 60 * minutes
    while not took_ms or time.monotonic() < end_s:
        await feed.push()
        state = await reading.settled(page, since="event_ms")
        took_ms.append(state["drawn_ms"] - state["event_ms"])
        heaps_mb.append(await reading.heap_mb(session, collected=False))
    return {
        "update_to_repaint": _of(took_ms),
        "minutes": minutes,
        "updates": len(took_ms),
        "layout_shift": round(state["shift"] - before["shift"], 4),
        "moved_down_px": {name: px for name, px in state["moved"].items() if px},
        "longest_task_ms": round(state["longest_task_ms"]),
        "heap_mb_before": heaps_mb[0],
        "heap_mb_most": max(heaps_mb),
        "heap_mb_after": await reading.heap_mb(session, collected=True),
    }


def _of(took_ms: list[float]) -> dict[str, int]:
    return {"median_ms": round(statistics.median(took_ms)), "most_ms": round(max(took_ms))}
