"""Places for requests that are worked on, and the time that each may take."""

import asyncio
import threading

import pytest
from starlette.concurrency import run_in_threadpool

from app.api.http.request_kinds import ADMISSIONS, Kind, KindAdmission, kind_of
from app.api.http.work_places import Line, WorkPlaces
from app.errors import CallerGone, NoPlace, TooCostly, Unavailable
from app.store.database import Store
from app.work_budget import WorkBudget, checkpoint, within
from tests.api.http.held_requests import (
    BATCH,
    DOWNLOAD,
    PAGE,
    QUESTION,
    REPORT,
    HeldRoute,
    asked,
    held,
    ignore,
    turns,
)

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("method", "path", "kind"),
    [
        (*BATCH, Kind.BATCH),
        (*REPORT, Kind.REPORT),
        ("POST", "/api/v1/jobs/llm-70b/end", Kind.REPORT),
        ("POST", "/v1/traces", Kind.REPORT),
        (*PAGE, Kind.PERSON),
        ("GET", "/api/v1/jobs/llm-70b/ops", Kind.PERSON),
        ("POST", "/api/v1/alerts/0123456789abcdef/acknowledge", Kind.PERSON),
        ("POST", "/api/v1/receivers/ep_1/test", Kind.PERSON),
        ("GET", "/jobs/llm-70b", Kind.PERSON),
        (*QUESTION, Kind.COMPUTE),
        ("POST", "/api/v1/rules/check", Kind.PARSE),
        ("PUT", "/api/v1/rules", Kind.PARSE),
        ("GET", "/api/v1/rules", Kind.PERSON),
        ("GET", "/api/v1/compare", Kind.COMPUTE),
        ("GET", "/api/v1/compare/charts/steps", Kind.COMPUTE),
        ("GET", "/api/v1/fleet/charts/loss", Kind.COMPUTE),
        ("GET", "/api/v1/jobs/llm-70b/windows/latest/advice", Kind.COMPUTE),
        ("GET", "/api/v1/jobs/llm-70b/windows/latest/critical-path", Kind.COMPUTE),
        ("GET", "/api/v1/jobs/llm-70b/windows/latest/charts/workers.png", Kind.PICTURE),
        (*DOWNLOAD, Kind.DOWNLOAD),
        ("GET", "/api/v1/jobs/llm-70b/windows/latest/trace", Kind.DOWNLOAD),
    ],
)
def test_request_has_the_kind_of_what_it_makes_the_service_do(method, path, kind):
    scope = {"type": "http", "method": method, "path": path, "headers": []}
    assert kind_of(scope) is kind


@pytest.mark.parametrize(
    ("name", "value", "kind"),
    [
        (b"content-length", b"65536", Kind.COMPUTE),
        (b"content-length", b"65537", Kind.PARSE),
        (b"content-length", b"1" * 5000, Kind.PARSE),
        (b"content-length", b"-1", Kind.PARSE),
        (b"transfer-encoding", b"chunked", Kind.PARSE),
    ],
)
def test_long_question_has_the_kind_of_a_text(name, value, kind):
    method, path = QUESTION
    scope = {"type": "http", "method": method, "path": path, "headers": [(name, value)]}
    assert kind_of(scope) is kind


def test_all_places_together_leave_threads_for_whoever_has_none():
    # AnyIO has 40; batches are read on the event loop, and by at most 4 threads.
    in_threads = sum(
        admission.places for kind, admission in ADMISSIONS.items() if kind is not Kind.BATCH
    )
    assert in_threads + 4 < 40


class Caller:
    """A caller that has sent this body, and hangs up when told to."""

    def __init__(self, body=b""):
        self.body = body
        self.hangs_up = asyncio.Event()
        self.messages = []
        self._is_sent = False

    async def receive(self):
        if not self._is_sent:
            self._is_sent = True
            return {"type": "http.request", "body": self.body, "more_body": False}
        await self.hangs_up.wait()
        return {"type": "http.disconnect"}

    async def send(self, message):
        self.messages.append(message)


def places(route, **kinds):
    given = {Kind[name.upper()]: each for name, each in kinds.items()}
    return WorkPlaces(route, admissions={**ADMISSIONS, **given})


async def test_pushes_on_all_places_and_in_line_keep_nobody_else_waiting():
    route = HeldRoute()
    app = places(route, batch=KindAdmission(99, 4), report=KindAdmission(99, 2, work_s=9.0))
    async with held(app, route, *[[BATCH]] * 4, [PAGE], [REPORT]):
        assert route.inside == [BATCH[1], BATCH[1], PAGE[1], REPORT[1]]


async def test_questions_on_all_places_keep_no_page_and_no_push_waiting():
    route = HeldRoute()
    async with held(places(route), route, *[[QUESTION]] * 20, [PAGE], [BATCH], [REPORT]):
        assert route.inside[-3:] == [PAGE[1], BATCH[1], REPORT[1]]
        assert len(route.inside) == 3 + ADMISSIONS[Kind.COMPUTE].places // 2


@pytest.mark.parametrize(("request_", "refusal"), [(QUESTION, NoPlace), (BATCH, Unavailable)])
async def test_request_without_a_place_in_time_is_refused_in_words(request_, refusal):
    route, brief = HeldRoute(), KindAdmission(99, 1, wait_s=0.01)
    app = places(route, batch=brief, compute=KindAdmission(99, 1, wait_s=0.01, work_s=9.0))
    async with held(app, route, [request_]):
        for _ in range(3):
            with pytest.raises(refusal, match="too many"):
                await app(asked(request_), Caller().receive, ignore)


async def test_work_in_a_thread_ends_when_its_caller_hangs_up_and_frees_its_place():
    begun, ended = threading.Event(), []

    def compute():
        begun.set()
        try:
            while True:
                checkpoint()
        except CallerGone as error:
            ended.append(type(error))
            raise

    async def route(scope, receive, send):
        await run_in_threadpool(compute)

    caller, app = Caller(), places(route, compute=KindAdmission(99, 1, work_s=60.0))
    answer = asyncio.create_task(app(asked(QUESTION), caller.receive, caller.send))
    await asyncio.to_thread(begun.wait, 60)
    caller.hangs_up.set()
    await asyncio.wait([answer])
    assert ended == [CallerGone]
    assert caller.messages == []
    follower = HeldRoute()
    app._app = follower
    async with held(app, follower, [QUESTION]):
        assert follower.inside == [QUESTION[1]]


async def test_caller_that_hangs_up_in_line_leaves_it():
    route = HeldRoute()
    app = places(route, compute=KindAdmission(99, 1, wait_s=60.0, work_s=60.0))
    async with held(app, route, [QUESTION]):
        caller = Caller()
        waiting = asyncio.create_task(app(asked(QUESTION), caller.receive, caller.send))
        await turns()
        assert not waiting.done()
        caller.hangs_up.set()
        await waiting
        assert len(route.inside) == 1


async def test_work_over_its_time_is_refused_and_says_so():
    async def route(scope, receive, send):
        await run_in_threadpool(compute)

    def compute():
        while True:
            checkpoint()

    app = places(route, compute=KindAdmission(99, 1, work_s=0.01))
    with pytest.raises(TooCostly, match=r"takes more than 0\.01 s to compute: ask for fewer"):
        await app(asked(QUESTION), Caller().receive, ignore)


@pytest.mark.parametrize(("request_", "num_inside"), [(QUESTION, 2), (DOWNLOAD, 1)])
async def test_place_is_free_when_the_answer_begins_unless_it_is_made_while_sent(
    request_, num_inside
):
    class Sent(HeldRoute):
        async def __call__(self, scope, receive, send):
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await super().__call__(scope, receive, send)

    route = Sent()
    one = {"compute": KindAdmission(99, 1, work_s=9.0)}
    one["download"] = KindAdmission(99, 1, work_s=9.0, until_sent=True)
    async with held(places(route, **one), route, [request_], [request_]):
        assert len(route.inside) == num_inside


def test_statements_that_read_keep_to_the_budget_and_those_that_write_go_on(tmp_path):
    store, budget = Store(f"sqlite:///{tmp_path / 'a.db'}"), WorkBudget(60.0)
    budget.cancel()
    with within(budget):
        with pytest.raises(CallerGone), store.read() as conn:
            conn.exec_driver_sql("SELECT 1")
        with store.write() as conn:
            conn.exec_driver_sql("CREATE TABLE written (id INTEGER)")
    with store.read() as conn:
        assert conn.exec_driver_sql("SELECT count(*) FROM written").scalar_one() == 0
    store.close()


async def test_cancelled_push_leaves_its_place_to_the_next():
    line = Line(1)
    await line.enter("a")
    gone, next_one = (asyncio.create_task(line.enter("a")) for _ in range(2))
    await turns()
    gone.cancel()
    line.leave("a")
    await next_one
    line.leave("a")
    await line.enter("a")


async def test_projects_in_line_take_turns():
    line, order = Line(2), []

    async def push(project):
        await line.enter(project)
        order.append(project)
        await asyncio.sleep(0)
        line.leave(project)

    await line.enter("b")
    await line.enter("a")
    pushes = [asyncio.create_task(push(project)) for project in "aaaab"]
    await turns()
    line.leave("a")
    line.leave("b")
    await asyncio.gather(*pushes)
    assert "b" in order[:2]
