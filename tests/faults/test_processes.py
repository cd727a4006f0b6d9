"""Rows 1 to 5 and 20 to 22 of the fault matrix: Paceline's processes die or freeze."""

import resource
import socket
import time
from functools import partial

import pytest

from app.ingest.redis.events import RedisAnnouncer
from app.store import runs, shards
from app.store.alerting import service_watches
from app.store.database import Store
from tests.harness.crash_points import CONSUMER_POINTS, crash_at, freeze_at
from tests.harness.load import PushHabits
from tests.harness.processes import wait_until
from tests.harness.stack import TOKEN
from tests.harness.trial import SMALL_JOB, Trial

pytestmark = pytest.mark.nightly

NO_DUPLICATES = PushHabits(parts=2)  # nothing is sent twice unless a fault makes the worker do it
STREAM = f"GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"


def wait_until_dead(stack, process):
    wait_until(lambda: not stack.processes[process].is_running(), f"{process} dies")


def test_row_01_consumer_killed_at_any_point_loses_nothing(stack, name):
    stack.kill("consumer-1")  # the other one then has every shard
    with Trial(stack, name) as trial:
        for passes, point in enumerate(CONSUMER_POINTS, start=1):
            trial.fault(partial(stack.restart, "consumer-0", crash_at(point, passes)))
            wait_until_dead(stack, "consumer-0")
        assert trial.finish()["violations"] == []


def test_row_01_shards_of_a_dead_consumer_are_taken_over_within_20_s(stack, name):
    with Trial(stack, name) as trial:
        trial.fault(partial(stack.kill, "consumer-0"))
        trial.wait_for_steps(8)
        (load,) = trial.loads
        wait_until(lambda: load.closed_steps() >= 8, "the other consumer goes on", 20)
        assert trial.finish()["violations"] == []


def test_row_01_consumers_of_one_host_take_no_shard_from_each_other(stack, name):
    with Trial(stack, name) as trial:
        trial.fault(partial(stack.kill, "consumer-1"))
        wait_until(lambda: shares_and_moves(stack)[0] == [4], "the other one has all")
        stack.start("consumer-1")
        wait_until(lambda: shares_and_moves(stack)[0] == [2, 2], "each has its share")
        before = shares_and_moves(stack)
        trial.wait_for_steps(8)
        assert trial.finish()["violations"] == []
        assert shares_and_moves(stack) == before


def shares_and_moves(stack):
    store = Store(stack.store_url)
    with store.read() as conn:
        lines = service_watches.consumer_lines(conn, now_s=time.time())
        moves, _ = shards.moves(conn, now_s=0.0)
    store.close()
    return [len(line.shards) for line in lines if line.is_alive], moves


def test_row_02_consumer_frozen_beyond_its_lease_commits_nothing(stack, name):
    stack.kill("consumer-1")
    stack.restart("consumer-0", freeze_at("after_read", 3))
    fenced = fenced_commits(stack)
    with Trial(stack, name) as trial:
        frozen = stack.processes["consumer-0"]
        wait_until(frozen.is_frozen, "it is frozen while it holds batches")
        stack.start("consumer-1")
        (load,) = trial.loads
        wait_until(lambda: load.closed_steps() >= 4, "the other one has the shards")
        trial.fault(frozen.thaw)
        wait_until(lambda: fenced_commits(stack) > fenced, "its commit is refused")
        assert trial.finish()["violations"] == []


def fenced_commits(stack):
    store = Store(stack.store_url)
    with store.read() as conn:
        found = runs.service_totals(conn).get("fenced_commits", 0)
    store.close()
    return found


def test_row_03_api_killed_before_the_append_loses_no_acknowledged_batch(stack, name):
    stack.kill("api-1")
    with Trial(stack, name) as trial:
        trial.fault(partial(stack.restart, "api-0", crash_at("before_xadd", 5)))
        wait_until_dead(stack, "api-0")
        assert trial.finish()["violations"] == []


def test_row_04_append_by_an_api_killed_before_its_answer_has_one_effect(stack, name):
    stack.kill("api-1")
    with Trial(stack, name, [(SMALL_JOB, NO_DUPLICATES)]) as trial:
        trial.fault(partial(stack.restart, "api-0", crash_at("after_xadd", 5)))
        wait_until_dead(stack, "api-0")
        verdict = trial.finish()
    assert verdict["violations"] == []
    assert verdict["duplicates"] > 0


@pytest.mark.parametrize(("joint", "request_"), [("to_queue", b"XADD"), ("to_api", b"/ops")])
def test_row_04_append_with_a_lost_answer_has_one_effect(stack, name, joint, request_):
    proxy = stack.to_queue if joint == "to_queue" else stack.to_apis[0]
    before = proxy.dropped_answers
    with Trial(stack, f"{name}-{joint}", [(SMALL_JOB, NO_DUPLICATES)]) as trial:
        trial.fault(partial(proxy.drop_answer_to, request_))
        wait_until(lambda: proxy.dropped_answers > before, "an answer is lost")
        verdict = trial.finish()
    assert verdict["violations"] == []
    assert verdict["duplicates"] > 0


def test_row_05_sigterm_under_load_with_a_frozen_reader_ends_within_10_s(stack, name):
    with Trial(stack, name) as trial, frozen_reader(stack.api_ports[0]):
        announcer = RedisAnnouncer(f"redis://127.0.0.1:{stack.queue.port}")
        for _ in range(200):
            # More than the sockets hold: the server waits for a reader that never reads.
            announcer.announce({"event": "alert", "job_id": f"default/{'x' * 60_000}"})
        announcer.close()
        trial.wait_for_steps()
        trial.fault(lambda: None)
        assert stack.processes["api-0"].terminate(within_s=10) == 0
        assert stack.processes["consumer-0"].terminate(within_s=10) == 0
        assert trial.finish()["violations"] == []


def frozen_reader(port):
    reader = socket.socket()
    reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    reader.settimeout(10)
    reader.connect(("127.0.0.1", port))
    reader.sendall(STREAM.encode())
    assert b"200 OK" in reader.recv(1000)
    return reader


@pytest.mark.parametrize("seed", [1, 2])
def test_row_20_power_cut_of_every_process_loses_nothing(stack, name, seed):
    names = list(stack.processes)
    with Trial(stack, f"{name}-{seed}", seed=seed) as trial:
        trial.fault(partial(stack.kill, *names))
        for each in names[seed:] + names[:seed]:
            stack.start(each)
        assert trial.finish()["violations"] == []


@pytest.mark.parametrize("backend", ["queue", "database"])
def test_row_20_consumer_waits_for_a_backend_that_starts_later(stack, name, backend):
    if backend not in stack.processes:
        pytest.skip("no PostgreSQL server is installed: Debian's postgresql has one")
    consumers = stack.consumers
    with Trial(stack, f"{name}-{backend}") as trial:
        trial.fault(partial(stack.kill, backend, *consumers))
        before = {each: times_waited(stack, each) for each in consumers}
        for each in consumers:
            stack.start(each)
        for each in consumers:
            wait_until(lambda: times_waited(stack, each) >= before[each] + 2, "it waits")  # noqa: B023
        stack.processes[backend].start_and_wait()
        assert all(stack.processes[each].is_running() for each in consumers)
        assert trial.finish()["violations"] == []


def times_waited(stack, process):
    return stack.processes[process].log_text().count("[warning  ] waiting ")


def test_row_22_api_out_of_file_descriptors_recovers_and_loses_nothing(stack, name):
    api = stack.processes["api-0"]
    limits = resource.prlimit(api.pid, resource.RLIMIT_NOFILE)
    with Trial(stack, name) as trial:
        trial.fault(partial(resource.prlimit, api.pid, resource.RLIMIT_NOFILE, (64, limits[1])))
        connections = [
            socket.create_connection(("127.0.0.1", stack.api_ports[0])) for _ in range(100)
        ]
        trial.wait_for_steps(3)
        for each in connections:
            each.close()
        resource.prlimit(api.pid, resource.RLIMIT_NOFILE, limits)
        wait_until(lambda: stack.readiness(stack.api_ports[0]) == 200, "it is ready again")
        assert api.is_running()
        assert trial.finish()["violations"] == []
