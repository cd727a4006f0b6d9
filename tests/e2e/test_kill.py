"""kill -9 of any process at random moments: every acknowledged op in exactly one closed window."""

import random
import threading
from collections import Counter
from functools import partial

import pytest

from app.ingest.trace_codec import unpack
from app.store import windows
from app.store.engine import Store
from app.synth.run import MadeJob
from app.trace.job import Parallelism
from tests.e2e.producers import OpKey, Producer, register
from tests.e2e.stack import Stack, select_nothing, wait_until

NUM_KILLS = 10


@pytest.mark.timeout(240)
@pytest.mark.parametrize("victim", ["consumer", "api", "queue"])
def test_a_killed_process_loses_no_acknowledged_op_and_counts_none_twice(victim, tmp_path):
    rng = random.Random(victim)
    url = f"sqlite:///{tmp_path / 'paceline.db'}"
    with Stack(tmp_path, url, step_deadline_s="600", window_steps="4") as stack:
        made = MadeJob(Parallelism(2, 2), 2)
        producer = Producer(stack, "killed", made, register(stack, "killed", made, "run-1"))
        stop = threading.Event()
        pushing = threading.Thread(target=producer.run, args=(stop,))
        pushing.start()
        for _ in range(NUM_KILLS):
            wait_until(partial(producer.is_past, producer.steps_pushed), "steps flow")
            select_nothing(rng.uniform(0.0, 0.3))
            stack.kill(victim)
            select_nothing(rng.uniform(0.0, 0.2))
            stack.start(victim)
            if victim != "consumer":
                wait_until(stack.answers, "the API answers again")
        stop.set()
        pushing.join()
        stack.http.post("/jobs/killed/end").raise_for_status()
        wait_until(lambda: _all_closed(stack, producer.steps_pushed), "all windows are closed")
    assert _stored_ops(url) == producer.acknowledged
    assert set(producer.acknowledged.values()) == {1}
    assert producer.steps_pushed > NUM_KILLS
    if victim != "consumer":
        assert producer.retries > 0, "no request met the fault"


def _all_closed(stack: Stack, num_steps: int) -> bool:
    items = stack.get("/jobs/killed/windows", limit=200)["items"]
    closed = [item for item in items if item["state"] != "open"]
    return bool(sum(item["num_steps"] for item in closed) == num_steps)


def _stored_ops(url: str) -> Counter[OpKey]:
    store = Store(url)
    found: Counter[OpKey] = Counter()
    with store.read() as conn:
        cursor = None
        while True:
            page, cursor = windows.page(conn, "default/killed", cursor=cursor, limit=100)
            for summary in page:
                blob = windows.trace(conn, "default/killed", summary.window_id)
                assert blob is not None, f"window {summary.window_id} is {summary.state}"
                ops = unpack(blob)
                columns = (ops.rank, ops.step, ops.optype, ops.seq_id)
                rows = zip(*(column.tolist() for column in columns), strict=True)
                found.update((summary.epoch, *row) for row in rows)
            if cursor is None:
                break
    store.close()
    return found
