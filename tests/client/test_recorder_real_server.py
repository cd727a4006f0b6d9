"""Recorders against a complete Paceline, whose API freezes and resumes during the run."""

import signal

import paceline_client
import pytest
from paceline_client import Topology

from tests.client.recorders import WITHIN_S
from tests.e2e.stack import TOKEN, Stack, wait_until

pytestmark = pytest.mark.nightly

JOB, DP = "recorded", 2


@pytest.fixture(scope="module")
def stack(tmp_path_factory):
    directory = tmp_path_factory.mktemp("real")
    with Stack(directory, f"sqlite:///{directory / 'paceline.db'}", window_steps="4") as found:
        yield found


def start(stack, dp_rank, spool_dir):
    topology = Topology(rank=dp_rank, dp_rank=dp_rank, stage=0, dp_size=DP, pp_size=1)
    return paceline_client.start(
        JOB, stack.url, TOKEN, topology=topology, run_key="r", host=f"n{dp_rank}",
        spool_dir=spool_dir, gc_pauses=False,
    )  # fmt: skip


def train(runs, steps, kind="train"):
    for step in steps:
        for run in runs:
            with run.step(step, kind):
                for microbatch in range(2):
                    for optype in ("forward-compute", "backward-compute"):
                        with run.op(optype, microbatch=microbatch, chunk=0, tokens=64):
                            pass
                for optype in ("grads-reduce-scatter", "optimizer"):
                    with run.op(optype):
                        pass
    assert all(run.flush(WITHIN_S) for run in runs)


def test_server_counts_every_recorded_operation_despite_a_freeze(stack, tmp_path):
    assert "WRONG" not in paceline_client.check(stack.url, TOKEN, JOB, topology=Topology(
        rank=0, dp_rank=0, stage=0, dp_size=DP, pp_size=1
    ))  # fmt: skip
    runs = [start(stack, dp_rank, tmp_path) for dp_rank in range(DP)]
    with runs[1].op("gc"):  # outside a step
        pass
    train(runs, [0], "first")
    train(runs, range(1, 4))
    train(runs, [4], "eval")
    stack.http.put(
        f"/jobs/{JOB}/recording", json={"enabled": True, "every": 3, "steps": 1, "from_step": 9}
    ).raise_for_status()
    api = stack._processes["api"]
    api.send_signal(signal.SIGSTOP)
    for run in runs:
        with run.step(5), run.op("optimizer"):
            pass
    assert not any(run.flush(0.2) for run in runs)
    api.send_signal(signal.SIGCONT)
    assert all(run.flush(WITHIN_S) for run in runs)
    train(runs, range(6, 16))
    for run in runs:
        run.close()

    recorded = [step for step in range(16) if step < 9 or step % 3 == 0]
    operations = DP * (6 * (len(recorded) - 1) + 1)  # step 5 has one operation

    def is_analysed():
        job = stack.get(f"/jobs/{JOB}")
        return job["last_step"] == recorded[-1] and job["ingest"]["accepted"] == operations

    wait_until(is_analysed, "all is analysed", within_s=WITHIN_S)
    job = stack.get(f"/jobs/{JOB}")
    assert job["ingest"]["conflict"] == job["ingest"]["lost_batches"] == job["ingest"]["dead"] == 0
    assert job["drops"]["worst"] == [{"dp_rank": 1, "stage": 0, "dropped": 1}]
    assert [run.dropped for run in runs] == [0, 1]
