"""`follow`: do the figures of a live job hold still, and are they the same wherever they are said?

A page of the job and one of the fleet are read every second, with the API and the alerts. Changes
are counted from the first closed window on: before it, figures are of few steps and say so.
"""

import json
import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import httpx
import typer

from app.cli.supervisor import ChildProcess, paceline_command
from app.errors import InvalidRequest
from app.formatting import rough_hours
from benchmarks.service.page import HEIGHT_PX, WIDTH_PX, chromium_path, refuse_without_playwright
from benchmarks.service.stack import running_stack

if TYPE_CHECKING:
    from playwright.sync_api import Page

FOLLOWED = "followed"
_FAULT = "sequence-imbalance:sent=yes"
_STEPS = "20000"  # hours of them, and still few enough for `simulate`
_QUEUE_BYTES = 1 << 30
_EVERY_S = 1.0
_STOP_WITHIN_S = 10.0
# Figures that differ for as many samples in a row differ: pages take a moment to be drawn.
_SAMPLES_APART = 4
_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
# Of the page above the fold: the sentences and the strip of figures, by their labels.
_READ_JOB = """() => ({
    headline: document.querySelector("main h1")?.textContent ?? "",
    sub: document.querySelector("main .headline p")?.textContent ?? "",
    stats: Object.fromEntries([...document.querySelectorAll("main .stat")].map(stat => [
        stat.querySelector("dt").textContent, stat.querySelector("dd")?.textContent ?? ""])),
})"""
_READ_FLEET = """job => ({
    headline: document.querySelector("main h1")?.textContent ?? "",
    lost: document.querySelector(`main a[href='/jobs/${job}'] .lost b`)?.textContent
        ?? document.querySelector("main .lost b")?.textContent ?? "",
})"""
# What moves without anybody's doing, in the first screen of the page.
_WATCH = """() => {
    window.moved = {}
    new PerformanceObserver(list => {
        for (const { hadRecentInput, sources } of list.getEntries())
            for (const { node, previousRect: was, currentRect: now } of sources) {
                const by = Math.max(Math.abs(was.y - now.y), 0)
                if (!node || hadRecentInput || by < 1 || was.y > innerHeight) continue
                const name = `${node.nodeName} ${node.className ?? ""} ${node.textContent ?? ""}`
                window.moved[name.slice(0, 60)] = Math.max(window.moved[name.slice(0, 60)] ?? 0, by)
            }
    }).observe({ type: "layout-shift" })
}"""


def follow(
    minutes: Annotated[float, typer.Option(min=0.1, help="How long the job is followed.")] = 10.0,
    fault: Annotated[str, typer.Option(help="Of the simulated job.")] = _FAULT,
    url: Annotated[str, typer.Option(help="Follow a job of this server instead.")] = "",
    token: Annotated[str, typer.Option(help="With --url: a token that may read.")] = "",
    job: Annotated[str, typer.Option(help="With --url: the job's id.")] = FOLLOWED,
    chromium: Annotated[
        Path | None, typer.Option(exists=True, help="Where Chromium is; default: searched for.")
    ] = None,
) -> None:
    """Follow a live job in headless Chromium, and compare what pages, API and alerts say.

    Prints for each figure its largest relative change from one sample to the next, what moved
    above the fold, and figures that differed between page, API and alert. Starts a stack of its
    own with a simulated job in real time, unless --url is given.

    Example: python -m benchmarks follow --minutes 3
    """
    refuse_without_playwright()
    if url and not token:
        raise InvalidRequest("--url: want --token, too")
    with _followed(url, token, job, fault) as (base, key):
        found = _watch(base, key, job, 60 * minutes, chromium)
    typer.echo(json.dumps({"minutes": minutes, "fault": fault, **found}))


@contextmanager
def _followed(url: str, token: str, job: str, fault: str) -> Iterator[tuple[str, str]]:
    """Address and token of a server with a live job."""
    if url:
        yield url.rstrip("/"), token
        return
    with running_stack(workers=1, queue_bytes=_QUEUE_BYTES, consumes=True) as target:
        base = f"http://127.0.0.1:{target.port}"
        arguments = ("--to", base, "--token", target.token, "--job", job, "--steps", _STEPS)
        command = paceline_command("simulate", *arguments, "--fault", fault)
        trainer = ChildProcess("training", command, {})
        trainer.start()
        try:
            yield base, target.token
        finally:
            trainer.stop(within_s=_STOP_WITHIN_S)


@dataclass
class Course:
    """One figure over time: its largest change between two samples, as a share of the larger."""

    values: list[float] = field(default_factory=list)
    changes: int = 0
    largest: float = 0.0

    def add(self, value: float) -> None:
        """The next sample."""
        if self.values and value != self.values[-1]:
            self.changes += 1
            before = self.values[-1]
            self.largest = max(self.largest, abs(value - before) / max(abs(value), abs(before)))
        self.values.append(value)

    def as_json(self) -> dict[str, float]:
        """Range and changes."""
        return {
            "samples": len(self.values),
            "least": min(self.values),
            "most": max(self.values),
            "changes": self.changes,
            "largest_change": round(self.largest, 4),
        }


@dataclass
class Comparison:
    """Figures of one question in several places: those that differ for longer than a moment."""

    apart: Counter[str] = field(default_factory=Counter)
    seen: dict[str, tuple[str, int]] = field(default_factory=dict)
    compared: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)

    def add(self, question: str, places: Mapping[str, str]) -> None:
        """One sample of what each place says."""
        said = {place: text for place, text in places.items() if text}
        if len(said) < 2:
            return
        self.compared[question] += 1
        key = json.dumps(said, ensure_ascii=False) if len({*said.values()}) > 1 else ""
        before, times = self.seen.get(question, ("", 0))
        times = times + 1 if key and key == before else 1
        self.seen[question] = key, times
        if key and times == _SAMPLES_APART:
            self.apart[question] += 1
            self.examples[question] = key

    def as_json(self) -> dict[str, Any]:
        """How often each question was asked, and answered in two ways."""
        return {
            question: {
                "samples": number,
                "differences": self.apart[question],
                "example": self.examples.get(question),
            }
            for question, number in self.compared.items()
        }


def _watch(base: str, token: str, job: str, for_s: float, chromium: Path | None) -> dict[str, Any]:
    from playwright.sync_api import sync_playwright

    courses: defaultdict[str, Course] = defaultdict(Course)
    comparison = Comparison()
    reader = _Reader(base, token, job)
    end_s = time.monotonic() + for_s
    with sync_playwright() as playwright:
        found = chromium or chromium_path(playwright.chromium)
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        size: Any = {"width": WIDTH_PX, "height": HEIGHT_PX}
        context = browser.new_context(viewport=size)
        fleet, page = context.new_page(), context.new_page()
        fleet.goto(f"{base}/#token={token}")
        fleet.locator("main h1").first.wait_for()
        reader.wait_for_closed_window(end_s)
        page.goto(f"{base}/jobs/{job}")
        page.locator("main .stat .figure").first.wait_for()
        page.locator("main .main-svg").first.wait_for()
        page.wait_for_timeout(3 * 1000 * _EVERY_S)
        page.evaluate(_WATCH)
        while time.monotonic() < end_s:
            for question, places in _sample(reader, page, fleet, courses).items():
                comparison.add(question, places)
            page.wait_for_timeout(1000 * _EVERY_S)
        moved = page.evaluate("window.moved")
        browser.close()
    return {
        "figures": {name: course.as_json() for name, course in sorted(courses.items())},
        "moved_above_fold_px": moved,
        "compared": comparison.as_json(),
    }


def _sample(
    reader: "_Reader", page: "Page", fleet: "Page", courses: defaultdict[str, Course]
) -> dict[str, dict[str, str]]:
    """Reads everything once; returns what each place says of each question."""
    shown, listed = page.evaluate(_READ_JOB), fleet.evaluate(_READ_FLEET, reader.job)
    api, row, alert = reader.job_now(), reader.fleet_row(), reader.alert()
    for label, text in shown["stats"].items():
        if (value := _number(text)) is not None:
            courses[f"job page: {label}"].add(value)
    for name, text in (("headline", shown["headline"]), ("line below", shown["sub"])):
        for at, value in enumerate(_percents(text)):
            courses[f"job page: {name}, {at + 1}. percentage"].add(value)
    for name, value in (
        ("API: slowdown", api["slowdown"]),
        ("API: GPU-hours lost a day", row.get("lost_gpu_hours_per_day")),
        ("fleet page: lost a day", _number(listed["lost"])),
        ("alert: slowdown", alert.get("slowdown")),
    ):
        if value is not None:
            courses[name].add(value)
    slowdown = _two(api["slowdown"])
    return {
        "slowdown": {
            "job page": _first(shown["stats"].get("Slowdown", "")),
            "API: job": slowdown,
            "API: fleet": _two(row.get("slowdown")),
            "alert": _two(alert.get("slowdown")),
            "alert's text": _first(alert.get("text", "")),
        },
        "GPU-hours lost a day": {
            "fleet page": listed["lost"],
            "API": _digits(row.get("lost_gpu_hours_per_day")),
        },
    }


class _Reader:
    """What the API says of the job."""

    def __init__(self, base: str, token: str, job: str) -> None:
        self.job = job
        headers = {"Authorization": f"Bearer {token}"}
        self._http = httpx.Client(
            base_url=f"{base}/api/v1", headers=headers, trust_env=False, timeout=30
        )

    def wait_for_closed_window(self, end_s: float) -> None:
        """Until the job's first window has closed, or there is no time left."""
        while time.monotonic() < end_s:
            answer = self._http.get(f"/jobs/{self.job}/windows")
            windows = answer.json()["items"] if answer.status_code == httpx.codes.OK else []
            if any(each["state"] != "open" for each in windows):
                return
            time.sleep(_EVERY_S)

    def job_now(self) -> dict[str, Any]:
        """The job."""
        return self._get(f"/jobs/{self.job}")

    def fleet_row(self) -> dict[str, Any]:
        """Its line in the fleet."""
        items = self._get("/fleet?limit=100")["items"]
        return next((each for each in items if each["job_id"] == self.job), {})

    def alert(self) -> dict[str, Any]:
        """Its firing alert on the slowdown: the figure, and its text."""
        items = self._get("/alerts")["items"]
        for each in items:
            is_it = each["job_id"] == self.job and each["rule"] == "slowdown"
            if is_it and each["phase"] == "firing":
                return {"slowdown": each["value"], "text": each["sentence"]}
        return {}

    def _get(self, path: str) -> dict[str, Any]:
        answer = self._http.get(path)
        answer.raise_for_status()
        found: dict[str, Any] = answer.json()
        return found


def _number(text: str) -> float | None:
    found = _NUMBER.search(text)
    return None if found is None else float(found.group().replace(",", ""))


def _percents(text: str) -> list[float]:
    return [float(each) for each in re.findall(r"(\d+(?:\.\d+)?)\s?%", text)]


def _first(text: str) -> str:
    """The first ratio of a text: 1.42."""
    found = re.search(r"(\d+\.\d\d)\u00d7", text)
    return "" if found is None else found.group(1)


def _two(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _digits(value: float | None) -> str:
    return "" if value is None else rough_hours(value)
