"""`journey`: how many files and functions of app/ does one batch, turn, alert or webhook enter?

It measures how far a reader has to jump, not time: distinct files, distinct functions, and changes
of file between successive calls in a thread; comprehensions and imports do not count. Real objects
on SQLite, the event queue's twin in memory, and an HTTP receiver on loopback. Every journey is run
once before, so that kernels and caches are warm. Timers of the consumer (leases, ended runs, silent
ranks) are not due in the traced turns.
"""

import asyncio
import json
import logging
import os
import sys
import tempfile
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from ipaddress import ip_network
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType
from typing import Annotated, Any
from urllib.parse import urlsplit

import httpx
import structlog
import typer
from pydantic import SecretStr

import app
from app.alerts.receiver import Receiver
from app.consumer.context import ConsumerContext
from app.consumer.dispatcher import Dispatcher
from app.consumer.loop import Consumer
from app.consumer.main import notify_context
from app.consumer.sender import OutboxSender
from app.diagnosis.warm_up import warm_up
from app.errors import StartUpFailed
from app.ingest.assembly.assembler import WindowRules
from app.ingest.wire import codec
from app.main import Connections, create_app
from app.settings import Settings
from app.store import runs, windows
from app.store.alerting import receivers
from app.store.credentials.sealing import new_key, parse_keys
from app.store.database import Store, is_migrated
from app.store.migrations import migrate
from app.synth.faults.slow_compute import SlowWorker
from app.synth.job import SimulatedJob
from app.trace.job import Parallelism
from tests.harness.alerts.listener import webhook_listener
from tests.harness.batches import Batches
from tests.ingest.memory_queue import MemoryQueue

APP = Path(app.__file__).parent
HEALTHY = SimulatedJob(Parallelism(2, 2), 4)
SLOW = SimulatedJob(Parallelism(2, 2), 4, faults=(SlowWorker(1, 1, 1.8),))
WINDOWS_BEFORE = 5  # so that there is a history, and a slow worker has been alerted of
TOKEN = "pl_" + "j" * 40
SECRET = "whsec_" + "cGFjZWxpbmUh" * 3
_JOB = "default/job"
_WINDOW_STEPS = int(Settings.model_fields["window_steps"].default)
_BEGAN_S = 1.79e9
_LEASE_S = 15.0
_COMPREHENSIONS = frozenset({"<module>", "<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>"})


@dataclass(frozen=True, slots=True)
class Aim:
    """At most so many files and changes of file; None: as many as there are."""

    files: int
    changes: int | None = None


AIMS = {
    "post": Aim(15),
    "healthy-window": Aim(75, 700),
    "slow-window": Aim(85, 800),
    "dispatch": Aim(22),
    "webhook": Aim(15),
}


@dataclass
class Calls:
    """Calls into app/ of one journey, by thread, in their order."""

    by_thread: dict[int, list[CodeType]] = field(default_factory=lambda: defaultdict(list))

    @property
    def codes(self) -> list[CodeType]:
        """Every call."""
        return [code for calls in self.by_thread.values() for code in calls]

    @property
    def files(self) -> Counter[str]:
        """Calls into each file."""
        return Counter(_file_of(code) for code in self.codes)

    @property
    def pairs(self) -> Counter[tuple[str, str]]:
        """How often a call into one file came right after a call into another, either way round."""
        found: Counter[tuple[str, str]] = Counter()
        for calls in self.by_thread.values():
            for one, other in pairwise(map(_file_of, calls)):
                if one != other:
                    found[min(one, other), max(one, other)] += 1
        return found

    def figures(self) -> dict[str, int]:
        """What is counted."""
        return {
            "files": len(self.files),
            "functions": len(set(self.codes)),
            "changes": self.pairs.total(),
        }


class CallTracer:
    """Records calls into app/ of this thread and of threads that start in `tracing_threads`."""

    def __init__(self) -> None:
        self._calls: Calls | None = None
        self._prefix = f"{APP}{os.sep}"

    @contextmanager
    def tracing_threads(self) -> Iterator[None]:
        """Trace threads that start within the block, too."""
        threading.setprofile(self._add_call)
        try:
            yield
        finally:
            threading.setprofile(None)

    @contextmanager
    def tracing(self) -> Iterator[Calls]:
        """The calls of the block."""
        calls = self._calls = Calls()
        sys.setprofile(self._add_call)
        try:
            yield calls
        finally:
            sys.setprofile(None)
            self._calls = None

    def _add_call(self, frame: FrameType, event: str, _: Any) -> None:
        calls = self._calls
        if calls is None or event != "call":
            return
        code = frame.f_code
        if not code.co_filename.startswith(self._prefix) or code.co_name in _COMPREHENSIONS:
            return
        calls.by_thread[threading.get_ident()].append(code)


def journey(
    json_out: Annotated[
        Path | None,
        typer.Option("--json", allow_dash=True, help="Write the figures here; -: print."),
    ] = None,
    detail: Annotated[
        bool, typer.Option(help="List files with their calls, and pairs of files with changes.")
    ] = False,
    only: Annotated[str | None, typer.Option(help=f"One of {', '.join(AIMS)}.")] = None,
) -> None:
    """Print files, functions and changes of file of five journeys; exit status 1 beyond the aims.

    post: POST of one batch to its 202. healthy-window: a consumer's turn that closes one window of
    a healthy job. slow-window: the same with one slow worker, when its alert fires. dispatch: that
    alert from its group to the outbox. webhook: one message from the outbox to its receiver.

    Example: python -m benchmarks journey --only slow-window --detail
    """
    calls = _traced_journeys()
    figures = {name: _with_aim(name, each) for name, each in calls.items()}
    if json_out is not None:
        text = json.dumps(figures)
        if str(json_out) == "-":
            typer.echo(text)
        else:
            json_out.write_text(text)
    else:
        for line in _table(figures):
            typer.echo(line)
    if detail:
        for name in [only] if only else calls:
            _print_detail(name, calls[name])
    if any(each["missed"] for each in figures.values()):
        raise typer.Exit(1)


def _traced_journeys() -> dict[str, Calls]:
    """The calls of each journey; all are run once before, on a separate database."""
    warm_up()
    tracer, found = CallTracer(), dict[str, Calls]()
    with (
        _errors_only(),
        tracer.tracing_threads(),
        tempfile.TemporaryDirectory(prefix="paceline-journey-") as name,
        webhook_listener() as inbox,
    ):
        directory = Path(name)
        for turn in range(2):
            found["post"] = asyncio.run(_post(tracer, _database(directory / f"api-{turn}.db")))
            for kind, simulated in (("healthy-window", HEALTHY), ("slow-window", SLOW)):
                url = _database(directory / f"{kind}-{turn}.db")
                with closing(Service(url, simulated, inbox.url("hook"))) as service:
                    found[kind] = _closed_window(tracer, service)
                    if simulated is SLOW:
                        found["dispatch"], found["webhook"] = _notified(tracer, service)
    return found


@contextmanager
def _errors_only() -> Iterator[None]:
    """Standard output is the result alone."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    try:
        yield
    finally:
        structlog.configure(**before)


def _database(path: Path) -> str:
    url = f"sqlite:///{path}"
    migrate(url)
    return url


async def _post(tracer: CallTracer, url: str) -> Calls:
    """One binary batch from the request to its 202, on a connection without a socket."""
    store, queue = Store(url), MemoryQueue(1)
    parts = Connections(
        store=store,
        writer=queue.writer,
        listener=queue.listener(),
        announcer=queue.announcer,
        is_migrated=lambda: is_migrated(url),
        close=store.close,
    )
    api = create_app(Settings(token=SecretStr(TOKEN)), parts)
    client = httpx.AsyncClient(
        transport=httpx.ASGITransport(api, raise_app_exceptions=False),
        base_url="http://localhost",
        headers={"authorization": f"Bearer {TOKEN}"},
    )
    sizes = {"dp_size": HEALTHY.parallelism.dp_size, "pp_size": HEALTHY.parallelism.pp_size}
    headers = {"content-type": codec.BINARY_TYPE}
    calls = Calls()
    async with api.router.lifespan_context(api), client:
        job = {"parallelism": sizes, "run_key": "run-1"}
        (await client.put("/api/v1/jobs/job", json=job)).raise_for_status()
        for body in _bodies(HEALTHY, range(1))[:3]:
            with tracer.tracing() as calls:
                answer = await client.post("/api/v1/jobs/job/ops", content=body, headers=headers)
            if answer.status_code != 202:
                raise StartUpFailed(f"a batch was answered {answer.status_code}: {answer.text}")
    return calls


def _bodies(simulated: SimulatedJob, steps: range) -> list[bytes]:
    batches = Batches(epoch=1, parts=1)
    return [
        codec.encode(each) for step in steps for each in batches.of_step(simulated.make([step]))
    ]


class Service:
    """One consumer, its dispatcher and its sender, by a clock that only we move."""

    def __init__(self, url: str, simulated: SimulatedJob, receiver_url: str) -> None:
        self.now_s = _BEGAN_S
        port = urlsplit(receiver_url).port or 80
        settings = Settings(
            alert_windows=WINDOWS_BEFORE + 1,
            alert_for_s=0.0,
            webhook_allow=(ip_network("127.0.0.0/8"),),
            webhook_allow_http=True,
            webhook_ports=(port,),
        )
        self._simulated = simulated
        self._queue = MemoryQueue(1, clock_s=lambda: self.now_s)
        self._store = Store(url, keys=parse_keys(new_key(), "this benchmark"))
        rules = settings.default_rules()
        self._work = ConsumerContext(
            store=self._store,
            queue=self._queue.reader,
            announcer=self._queue.announcer,
            default_rules=rules,
            group_wait_s=settings.alert_group_wait_s,
            assembler_rules=WindowRules(
                settings.window_steps, settings.step_deadline_s, settings.revise_for_s
            ),
            silent_after_s=settings.silent_after_s,
            start_within_s=settings.start_within_s,
            num_shards=1,
            lease_s=_LEASE_S,
            monotonic=lambda: self.now_s,
            unix_time=lambda: self.now_s,
            database_time=lambda _: self.now_s,
        )
        context = notify_context(settings, self._store, rules)
        context = replace(context, database_time=lambda _: self.now_s)
        self._consumer = Consumer(self._work, "consumer-0")
        self.dispatcher, self.sender = Dispatcher(context), OutboxSender(context)
        self._batches = Batches(epoch=1, parts=1)
        self._register(receiver_url)

    def close(self) -> None:
        """Free what it holds."""
        self.sender.close()
        self._store.close()

    def push(self, *steps: int) -> None:
        """All batches of these steps, as the API puts them into the queue."""
        for step in steps:
            for batch in self._batches.of_step(self._simulated.make([step])):
                asyncio.run(self._queue.writer.append(_JOB, codec.encode(batch)))

    def turn(self) -> None:
        """One turn of the consumer, so soon after the one before that no timer is due."""
        self.now_s += 0.01
        self._consumer.turn(threading.Event())

    def num_closed(self) -> int:
        """Windows of the job that are closed."""
        with self._store.read() as conn:
            found, _ = windows.page(conn, _JOB)
        return sum(each.state != "open" for each in found)

    def _register(self, receiver_url: str) -> None:
        sizes = self._simulated.parallelism
        run = runs.Registration("job", sizes, sizes.world_size, None, {}, "run-1")
        hook = Receiver("hook", "default", "hook", "standard", receiver_url, (SECRET,))
        with self._store.write() as conn:
            runs.register(conn, _JOB, run, now_s=self.now_s)
            receivers.add(conn, hook)


def _closed_window(tracer: CallTracer, service: Service) -> Calls:
    """The turn that takes the last step of a window and closes it, after some windows."""
    *before, last = range((WINDOWS_BEFORE + 1) * _WINDOW_STEPS)
    for step in before:
        service.push(step)
        service.turn()
    service.push(last)
    with tracer.tracing() as calls:
        service.turn()
    if service.num_closed() != WINDOWS_BEFORE + 1:
        raise StartUpFailed(f"{service.num_closed()} windows are closed, not all that were pushed")
    return calls


def _notified(tracer: CallTracer, service: Service) -> tuple[Calls, Calls]:
    """The dispatch of one alert, and the sending of one webhook."""
    service.now_s += 2.0
    with tracer.tracing() as dispatching:
        num_groups = service.dispatcher.dispatch_due()
    with tracer.tracing() as sending:
        num_sent = service.sender.send_due()
        service.sender.settle()
    if num_groups < 1 or num_sent < 1:
        raise StartUpFailed(f"{num_groups} groups were dispatched, {num_sent} messages sent")
    return dispatching, sending


def _table(figures: dict[str, dict[str, Any]]) -> Iterator[str]:
    yield f"{'':16}{'files':>7}{'functions':>11}{'changes':>9}   aim"
    for name, each in figures.items():
        aim = f"{each['aim_files']} files"
        if each["aim_changes"] is not None:
            aim += f", {each['aim_changes']} changes"
        yield f"{name:16}{each['files']:7}{each['functions']:11}{each['changes']:9}   {aim}"


def _with_aim(name: str, calls: Calls) -> dict[str, Any]:
    found, aim = calls.figures(), AIMS[name]
    is_beyond = aim.changes is not None and found["changes"] > aim.changes
    return {
        **found,
        "aim_files": aim.files,
        "aim_changes": aim.changes,
        "missed": found["files"] > aim.files or is_beyond,
    }


def _print_detail(name: str, calls: Calls) -> None:
    typer.echo(f"\n{name}: calls into each file")
    for file, count in calls.files.most_common():
        typer.echo(f"{count:7} {file}")
    typer.echo(f"\n{name}: changes between two files")
    for (one, other), count in calls.pairs.most_common():
        typer.echo(f"{count:7} {one} {other}")


def _file_of(code: CodeType) -> str:
    return str(Path(code.co_filename).relative_to(APP))
