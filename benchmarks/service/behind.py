"""Does a Paceline with too little CPU, and broken parts, blame jobs for its own trouble?

`paceline serve` gets half a core, and eight healthy jobs push twice what it can take. Whatever is
frozen, killed or cold meanwhile, also where its clock jumps: no job may be called stalled or
silent, no alert say so, and no GPU-hour count as lost. One job really hangs in each round: that is
to be told once all of it is processed, within a minute, and not before. A stream of events is held
as a page holds it: its banner has to come and go with what the API says.
"""

import json
import random
import secrets
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer

from app.store.as_of import BEHIND_AFTER_S, RETRIED_WITHIN_S
from benchmarks.measuring import BenchmarkFailed
from benchmarks.service.pushing import WorkerBatches, batches_of_workers
from benchmarks.service.starved import FAULTS, SILENT_AFTER_S, Served, served
from tests.harness.processes import wait_until

NUM_JOBS = 8
_DP, _PP, _MICROBATCHES = 4, 2, 8
_OPS_TYPE = "application/vnd.paceline.ops+msgpack"
_LOAD = 2.0  # times what is bearable
_UNDISTURBED_LOAD = 0.8
_BANNER_WITHIN_S = 5.0
_BANNER_LASTS_S = 8.0  # as long as a page shows it without hearing of it again
_CALIBRATED_FOR_S = 30.0
_POLL_S = 1.0
_TOLD_WITHIN_S = 60.0
_CAUGHT_UP_WITHIN_S = 300.0
_ABSENT = ("stalled", "silent")
_ABSENCE_RULES = ("stalled", "silent-worker")


@dataclass
class Training:
    """One healthy job: pushes a step every `step_s`, and what was refused again, as workers do."""

    name: str
    workers: list[WorkerBatches]
    client: httpx.Client
    step_s: float = 0.0
    hangs: threading.Event = field(default_factory=threading.Event)
    over: threading.Event = field(default_factory=threading.Event)
    num_steps: int = 0
    num_refused: int = 0
    hung_s: float | None = None
    loses_rank: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Train until it is over."""
        sizes = {"dp_size": _DP, "pp_size": _PP}
        body = {"parallelism": sizes, "run_key": secrets.token_hex(8)}
        self._until_taken(partial(self.client.put, f"/jobs/{self.name}", json=body))
        with ThreadPoolExecutor(len(self.workers)) as pool:
            self._train(pool)

    def _train(self, pool: Executor) -> None:
        next_s = time.monotonic()
        while not self.over.is_set():
            if self.hangs.is_set():
                self.hung_s = self.hung_s or time.monotonic()
                self.over.wait(_POLL_S)
                continue
            lost = self.loses_rank.is_set()
            if lost:
                self.hung_s = self.hung_s or time.monotonic()
            # At once, as the processes of a job do.
            for pushed in [pool.submit(self._push, worker) for worker in self.workers[lost:]]:
                pushed.result()
            self.num_steps += 1
            next_s += self.step_s
            self.over.wait(max(0.0, next_s - time.monotonic()))

    def _push(self, worker: WorkerBatches) -> None:
        push = partial(
            self.client.post,
            f"/jobs/{self.name}/ops",
            content=worker.body(self.num_steps),
            headers={"content-type": _OPS_TYPE},
        )
        self._until_taken(push)

    def _until_taken(self, send: Callable[[], httpx.Response]) -> None:
        wait_s = 0.5
        while not self.over.is_set():
            try:
                answer = send()
                if answer.status_code < 300:
                    return
                if answer.status_code not in (429, 503):
                    raise BenchmarkFailed(f"{self.name}: {answer.status_code} {answer.text[:200]}")
                after_s = float(answer.headers.get("retry-after", 0))
            except httpx.HTTPError:
                after_s = 0.0
            self.num_refused += 1
            self.over.wait(max(after_s, random.uniform(0.0, wait_s)))  # noqa: S311
            wait_s = min(30.0, 2 * wait_s)


@dataclass
class Banner:
    """What a page hears of being behind, beside what the API says of it at its looks."""

    is_up: bool = False
    came_up_at: list[float] = field(default_factory=list)
    longest_wait_s: float = 0.0
    _heard_s: float = 0.0
    _said: bool = False
    _said_since_s: float = 0.0

    def listen(self, client: httpx.Client, over: threading.Event) -> None:
        """Hold a stream of events until it is over, and again where it breaks off."""
        while not over.wait(_POLL_S):
            try:
                with client.stream("GET", "/events", timeout=60.0) as answer:
                    answer.raise_for_status()
                    self._hear(answer.iter_lines(), over)
            except httpx.HTTPError:
                continue  # the API starts again

    def _hear(self, lines: Iterator[str], over: threading.Event) -> None:
        kind = ""
        for line in lines:
            if over.is_set():
                return
            name, _, text = line.partition(": ")
            if name == "event":
                kind = text
            if name == "data" and kind == "lag":
                is_up, self._heard_s = json.loads(text)["behind_s"] is not None, time.monotonic()
                if is_up and not self.is_up:
                    self.came_up_at.append(time.time())
                self.is_up = is_up

    def said_behind(self, is_behind: bool, now_s: float) -> None:
        """What a look at the API said: the banner has to say the same, from then or before."""
        if self.is_up and now_s - self._heard_s > _BANNER_LASTS_S:
            self.is_up = False  # the stream broke off, and a page takes it down by itself
        if is_behind != self._said:
            self._said, self._said_since_s = is_behind, now_s
        if self.is_up != self._said:
            self.longest_wait_s = max(self.longest_wait_s, now_s - self._said_since_s)


@dataclass
class Watch:
    """Looks at all that Paceline says every second, and keeps what is wrong."""

    client: httpx.Client
    trainings: Mapping[str, Training]
    over: threading.Event = field(default_factory=threading.Event)
    wrong: list[str] = field(default_factory=list)
    behind_s: dict[str, float] = field(default_factory=dict)
    current_since_s: dict[str, float] = field(default_factory=dict)
    told_s: dict[str, float] = field(default_factory=dict)
    num_looks: int = 0
    longest_behind_s: float = 0.0
    banner: Banner = field(default_factory=Banner)

    def run(self) -> None:
        """Look until it is over."""
        while not self.over.wait(_POLL_S):
            try:
                self.look()
            except httpx.HTTPError:
                continue  # the API starts again

    def look(self) -> None:
        """Look once."""
        now_s = time.monotonic()
        jobs = self._get("/jobs")["items"]
        for job in jobs:
            self._see_job(job, now_s)
        self.banner.said_behind(any(job["behind_s"] >= BEHIND_AFTER_S for job in jobs), now_s)
        hung = {name for name, training in self.trainings.items() if training.hung_s is not None}
        for alert in self._get("/alerts")["items"]:
            if alert["rule"] in _ABSENCE_RULES and not alert["is_state_unknown"]:
                self._blame(alert["job_id"], f"alert {alert['rule']} is {alert['phase']}", hung)
        if not hung and (lost := self._get("/fleet")["summary"]["gpu_hours_stalled_today"]):
            self.wrong.append(f"{lost:g} GPU-hours count as lost by stalled jobs")
        self.num_looks += 1

    def _see_job(self, job: Mapping[str, Any], now_s: float) -> None:
        name, behind_s = job["job_id"], float(job["behind_s"])
        training = self.trainings.get(name)
        if training is None:
            return
        self.longest_behind_s = max(self.longest_behind_s, behind_s)
        if job["state"] == "unknown" or behind_s >= BEHIND_AFTER_S:
            self.current_since_s.pop(name, None)
        else:
            self.current_since_s.setdefault(name, now_s)
        self.behind_s[name] = behind_s
        if job["state"] not in _ABSENT:
            return
        if training.hung_s is None or behind_s >= BEHIND_AFTER_S:
            self.wrong.append(f"{name} is {job['state']}, {behind_s:.0f} s behind")
        else:
            self.told_s.setdefault(name, now_s)

    def _blame(self, name: str, what: str, hung: set[str]) -> None:
        if name not in hung:
            self.wrong.append(f"{name}: {what}")

    def _get(self, path: str) -> Any:
        answer = self.client.get(path)
        answer.raise_for_status()
        return answer.json()


@dataclass(frozen=True, slots=True)
class RoundResult:
    """One round; `told_after_s` counts from when all that the hung job sent was processed.

    `banner_after_s` is the longest that the banner said something else than the API, `banners_at`
    the Unix seconds at which it came up.
    """

    number: int
    fault: str
    lasted_s: float
    num_looks: int
    num_refused: int
    longest_behind_s: float
    told_after_s: float | None
    banners_at: list[float]
    banner_after_s: float
    wrong: list[str]


def play_round(
    found: Served, number: int, fault: str, lasts_s: float, step_s: float
) -> RoundResult:
    """Eight jobs at this pace, one fault, and one job that hangs; then the load ends."""
    with ExitStack() as stack:
        watch, trainings, end = _started(found, stack, f"round-{number}", step_s)
        began_s = time.monotonic()
        hung = next(iter(trainings.values()))
        time.sleep(lasts_s / 4)
        hung.hangs.set()
        FAULTS[fault](found, lasts_s / 2)
        time.sleep(max(0.0, lasts_s - (time.monotonic() - began_s)))
        # The others go on at a pace that is bearable, so that the hang can be seen for itself.
        for training in trainings.values():
            training.step_s = 4 * step_s
        told_after_s = _told_after_s(watch, hung)
        end()
    result = _result(number, fault, began_s, watch, trainings)
    return replace(result, told_after_s=told_after_s)


def _started(
    found: Served, stack: ExitStack, prefix: str, step_s: float
) -> tuple[Watch, dict[str, Training], Callable[[], None]]:
    """Jobs that train, whoever looks at them, and what ends both."""
    workers = batches_of_workers(_DP, _PP, _MICROBATCHES, 1)
    names = [f"{prefix}-{job}" for job in range(NUM_JOBS)]
    trainings = {
        name: Training(name, workers, stack.enter_context(found.client()), step_s) for name in names
    }
    watch = Watch(stack.enter_context(found.client()), trainings)
    listen = partial(watch.banner.listen, stack.enter_context(found.client()), watch.over)
    loops: list[Callable[[], None]] = [
        watch.run,
        listen,
        *(training.run for training in trainings.values()),
    ]
    threads = [threading.Thread(target=loop) for loop in loops]
    for thread in threads:
        thread.start()

    def end() -> None:
        for training in trainings.values():
            training.over.set()
        watch.over.set()
        for thread in threads:
            thread.join()
        for training in trainings.values():
            training.client.post(f"/jobs/{training.name}/end").raise_for_status()

    return watch, trainings, end


def _result(
    number: int, name: str, began_s: float, watch: Watch, trainings: Mapping[str, Training]
) -> RoundResult:
    return RoundResult(
        number,
        name,
        time.monotonic() - began_s,
        watch.num_looks,
        sum(training.num_refused for training in trainings.values()),
        watch.longest_behind_s,
        None,
        watch.banner.came_up_at,
        watch.banner.longest_wait_s,
        sorted(set(watch.wrong)),
    )


def play_undisturbed(found: Served, lasts_s: float, step_s: float) -> RoundResult:
    """Eight jobs at a bearable pace and no fault; in the end one hangs, and one loses a rank.

    Whatever reads as behind before is wrong.
    """
    with ExitStack() as stack:
        watch, trainings, end = _started(found, stack, "undisturbed", step_s)
        began_s = time.monotonic()
        while time.monotonic() - began_s < lasts_s:
            time.sleep(_POLL_S)
        if watch.banner.came_up_at or watch.longest_behind_s >= BEHIND_AFTER_S:
            at = ", ".join(_clock(came_s) for came_s in watch.banner.came_up_at) or "none"
            watch.wrong.append(
                f"up to {watch.longest_behind_s:.0f} s behind; banners at {at} (UTC), "
                f"of a round since {_clock(time.time() - lasts_s)}"
            )
        hung, thinned, *_ = trainings.values()
        hung.hangs.set()
        thinned.loses_rank.set()
        told_after_s = [_told_after_s(watch, training) for training in (hung, thinned)]
        end()
    result = _result(0, "undisturbed", began_s, watch, trainings)
    known = [after_s for after_s in told_after_s if after_s is not None]
    return replace(result, told_after_s=max(known) if len(known) == len(told_after_s) else None)


def _clock(at_s: float) -> str:
    return time.strftime("%H:%M:%S", time.gmtime(at_s))


def _told_after_s(watch: Watch, hung: Training) -> float | None:
    """Seconds from when the hang could be known until it was told; None: it never was."""
    deadline_s = time.monotonic() + _CAUGHT_UP_WITHIN_S
    while hung.name not in watch.told_s and time.monotonic() < deadline_s:
        time.sleep(_POLL_S)
    if hung.name not in watch.told_s or hung.hung_s is None:
        return None
    known_s = max(watch.current_since_s.get(hung.name, 0.0), hung.hung_s + SILENT_AFTER_S)
    return max(0.0, watch.told_s[hung.name] - known_s)


def bearable_step_s(found: Served) -> float:
    """Seconds a step of each job that this machine can take, pushed flat out for a while."""
    workers = batches_of_workers(_DP, _PP, _MICROBATCHES, 1)
    with ExitStack() as stack:
        trainings = [
            Training(f"calibration-{job}", workers, stack.enter_context(found.client()))
            for job in range(NUM_JOBS)
        ]
        threads = [threading.Thread(target=training.run) for training in trainings]
        for thread in threads:
            thread.start()
        client = trainings[0].client
        wait_until(partial(_is_analysed, client), "a first window is analysed", 300.0)
        before, began_s = _analysed(client), time.monotonic()
        time.sleep(_CALIBRATED_FOR_S)
        steps, took_s = _analysed(client) - before, time.monotonic() - began_s
        for training in trainings:
            training.over.set()
        for thread in threads:
            thread.join()
        for training in trainings:
            client.post(f"/jobs/{training.name}/end").raise_for_status()
    if steps <= 0:
        raise BenchmarkFailed(f"no step was analysed within {_CALIBRATED_FOR_S:g} s")
    return took_s * NUM_JOBS / steps


def _is_caught_up(client: httpx.Client) -> bool:
    """Whether what was pushed flat out is processed: half as late as what counts as behind."""
    time.sleep(_POLL_S)
    try:
        items = client.get("/jobs").json()["items"]
    except httpx.HTTPError:
        return False
    return all(job["behind_s"] < BEHIND_AFTER_S / 2 for job in items)


def _is_analysed(client: httpx.Client) -> bool:
    time.sleep(_POLL_S)  # half a core has more to do than to answer this
    return _analysed(client) > 0


def _analysed(client: httpx.Client) -> int:
    """Steps of all jobs in closed windows; fewer than were sent."""
    try:
        items = client.get("/jobs").json()["items"]
    except httpx.HTTPError:
        return 0
    return sum((job["latest_window"] or {}).get("last_step", 0) for job in items)


def behind(
    rounds: Annotated[int, typer.Option(help="Rounds of 60 s, after one of `first` seconds.")] = 20,
    first: Annotated[float, typer.Option(help="Seconds of the first round, an overload.")] = 600.0,
    out: Annotated[Path, typer.Option(help="Each round is appended as a line.")] = Path(
        "behind.jsonl"
    ),
    resume: Annotated[bool, typer.Option(help="Go on after the rounds in the file.")] = False,
    undisturbed: Annotated[
        float, typer.Option(help="Seconds at 0.8 of the bearable load instead, without a fault.")
    ] = 0.0,
) -> None:
    """Overload `paceline serve` on half a core, with faults; exit status 1 if it blames a job.

    The log of the latest round's server is kept beside the results.
    """
    lines = out.read_text().splitlines() if resume and out.exists() else []
    done = [json.loads(line) for line in lines]
    if not resume:
        out.unlink(missing_ok=True)
    names = list(FAULTS)
    for number in range(len(done), 1 if undisturbed else rounds + 1):
        with ExitStack() as stack:
            directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="paceline-behind-"))
            fault = "overload" if number == 0 or undisturbed else names[number % len(names)]
            found = stack.enter_context(
                served(Path(directory), has_fake_clock=fault == "clock jumps")
            )
            step_s = bearable_step_s(found)
            if undisturbed:
                caught_up = partial(_is_caught_up, stack.enter_context(found.client()))
                wait_until(caught_up, "what was pushed flat out is processed", 600.0)
                result = play_undisturbed(found, undisturbed, step_s / _UNDISTURBED_LOAD)
            else:
                lasts_s = first if number == 0 else 60.0
                result = play_round(found, number, fault, lasts_s, step_s / _LOAD)
            shutil.copy(Path(directory) / "serve.log", out.with_suffix(".log"))
        done.append(asdict(result))
        with out.open("a") as file:
            file.write(json.dumps(asdict(result)) + "\n")
        typer.echo(_line(asdict(result)))
    bad = [
        result
        for result in done
        if result["wrong"] or _is_late(result) or result["banner_after_s"] > _BANNER_WITHIN_S
    ]
    typer.echo(
        f"{len(done)} rounds, {len(bad)} with a job blamed, a late banner or a hang not told"
    )
    raise typer.Exit(1 if bad else 0)


def _is_late(result: Mapping[str, Any]) -> bool:
    after_s = result["told_after_s"]
    return after_s is None or after_s > _TOLD_WITHIN_S + RETRIED_WITHIN_S


def _line(result: Mapping[str, Any]) -> str:
    told = "hang never told" if result["told_after_s"] is None else (
        f"hang told after {result['told_after_s']:.0f} s"
    )  # fmt: skip
    wrong = "; ".join(result["wrong"][:3]) or "nothing wrong said"
    seen = f"{result['num_looks']} looks, up to {result['longest_behind_s']:.0f} s behind"
    refused = f"{result['num_refused']} refused"
    banner = f"{len(result['banners_at'])} banners, {result['banner_after_s']:.1f} s late"
    return f"{result['number']:3} {result['fault']:16} {seen}, {banner}, {refused}, {told}: {wrong}"
