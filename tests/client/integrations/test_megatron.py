"""The Megatron hook records each stage's operations by micro-batch and chunk."""

import dataclasses
import logging
import sys
import types

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline_client import NULL, Topology
from paceline_client.integrations import megatron
from paceline_client.integrations.megatron_calls import (
    config_of,
    shares_embedding,
    synchronises,
)
from paceline_client.integrations.megatron_steps import ExpectedTransfers
from paceline_client.recorder import Recorder
from paceline_client.recording.buffer import Buffer

from tests.client.integrations import fake_megatron as twin

MODULES = (megatron.SCHEDULES, megatron.P2P, megatron.TIMERS, megatron.OPTIMIZERS)


class Job:
    """One process of a job under the fake Megatron, with its recorder."""

    def __init__(self, monkeypatch, **topology):
        fields = {"rank": 0, "dp_rank": 0, "stage": 0, "dp_size": 1, "pp_size": 2, **topology}
        self.topology = Topology(**fields)
        self.buffer = Buffer(10_000, 60.0)
        self.recorder = Recorder(self.buffer, None)
        for name in MODULES:
            monkeypatch.setitem(sys.modules, name, twin)
            for parent in _parent_packages(name):
                monkeypatch.setitem(sys.modules, parent, types.ModuleType(parent))
        optimizers = "megatron.core.optimizer.distrib_optimizer"
        monkeypatch.setitem(sys.modules, optimizers, twin)
        self.installed = megatron.install(self.recorder, topology=self.topology)

    def train(self, num_microbatches=2, *, chunks=1, p2p=None, model=None, optimizer=None, **call):
        models = [twin.model() for _ in range(chunks)] if chunks > 1 else model or twin.model()
        name = "forward_backward_no_pipelining"
        if self.topology.pp_size > 1:
            call["p2p_communicator"] = p2p or twin.stage(self.topology.stage, self.topology.pp_size)
            inter = "with" if chunks > 1 else "without"
            name = f"forward_backward_pipelining_{inter}_interleaving"
        getattr(twin, name)(
            forward_step_func=call.pop("forward_step_func", lambda data, model: None),
            data_iterator=[None] * chunks,
            model=models,
            num_microbatches=num_microbatches,
            **call,
        )
        if not call.get("forward_only"):
            (optimizer or twin.MixedPrecisionOptimizer(twin.config())).step()

    def taken(self):
        self.buffer.close()
        return self.buffer.take()

    def ops(self):
        """(type, micro-batch, chunk) in order of start."""
        ops = sorted(self.taken().ops, key=lambda op: (op[0], op[2]))
        return [(op[1], op[6], op[5]) for op in ops]


def _parent_packages(name):
    parts = name.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts))]


@pytest.fixture
def job(monkeypatch, caplog):
    caplog.set_level(logging.WARNING)
    made = []

    def make(**topology):
        made.append(Job(monkeypatch, **topology))
        return made[-1]

    yield make
    megatron.uninstall()


def forwards_and_backwards(ops):
    return [op for op in ops if not op[0].endswith(("reduce", "grad", "optimizer", "scatter"))]


def test_the_first_of_two_stages_records_1f1b_with_micro_batches(job):
    run = job()
    run.train(num_microbatches=3)
    assert run.ops() == [
        ("forward-compute", 0, 0),
        ("forward-send", 0, 0),
        ("forward-compute", 1, 0),
        ("forward-send", 1, 0),  # in one call with the following receive
        ("backward-recv", 0, 0),
        ("backward-compute", 0, 0),
        ("forward-compute", 2, 0),
        ("forward-send", 2, 0),
        ("backward-recv", 1, 0),
        ("backward-compute", 1, 0),
        ("backward-recv", 2, 0),
        ("backward-compute", 2, 0),
        ("embedding-grads-all-reduce", -1, -1),
        ("optimizer-clip-main-grad", -1, -1),
        ("optimizer", -1, -1),
    ]


def test_last_of_two_stages_records_its_receives_and_sends(job):
    run = job(rank=1, stage=1)
    run.train(num_microbatches=2)
    assert forwards_and_backwards(run.ops()) == [
        ("forward-recv", 0, 0),
        ("forward-compute", 0, 0),
        ("backward-compute", 0, 0),
        ("backward-send", 0, 0),
        ("forward-recv", 1, 0),
        ("forward-compute", 1, 0),
        ("backward-compute", 1, 0),
        ("backward-send", 1, 0),
    ]


def test_overlapped_receive_begins_where_it_is_waited_for(job):
    run, p2p = job(vpp_size=2), twin.stage(0)
    run.train(num_microbatches=2, chunks=2, p2p=p2p)
    ops = forwards_and_backwards(run.ops())
    assert [op for op in ops if op[0] == "forward-recv"] == [
        ("forward-recv", 0, 1),
        ("forward-recv", 1, 1),
    ]
    assert ops.index(("forward-recv", 0, 1)) == ops.index(("forward-compute", 0, 1)) - 1
    assert [op[1:] for op in ops if op[0] == "backward-compute"] == [(0, 1), (1, 1), (0, 0), (1, 0)]
    assert [op[1:] for op in ops if op[0] == "backward-recv"] == [(0, 1), (1, 1), (0, 0), (1, 0)]
    assert [op[1:] for op in ops if op[0] == "backward-send"] == [(0, 1), (1, 1)]
    assert sum(work.waited for work in p2p.works) == 2  # as often as without the hook


def peers_receives(order, sender, num_stages, num_chunks):
    """(micro-batch, chunk) of a stage's sends, as numbered by the receiving stage."""
    last = sender == num_stages - 1
    return [
        (microbatch, chunk + 1 if last else chunk)
        for microbatch, chunk in order
        if not (last and chunk == num_chunks - 1)
    ]


@given(st.integers(2, 5), st.integers(1, 4), st.integers(1, 9), st.integers(1, 6))
def test_receive_ids_match_the_sends_of_the_peer(stages, chunks, batches, group):
    order = twin.get_schedule_table(batches, chunks, group)
    for stage in range(stages):
        expected = ExpectedTransfers(order, chunks, stage == 0, stage == stages - 1)
        sent = peers_receives(order, (stage - 1) % stages, stages, chunks)
        assert [expected.received("forward-recv") for _ in sent] == sent
        assert expected.received("forward-recv") == (-1, -1)
        # Backward is mirrored: last chunk first, from the last stage to the first.
        mirror = peers_receives(order, (stages - 2 - stage) % stages, stages, chunks)
        sent = [(microbatch, chunks - 1 - chunk) for microbatch, chunk in mirror]
        assert [expected.received("backward-recv") for _ in sent] == sent


def test_middle_stage_records_only_its_own_gradient_reductions(job):
    run = job(rank=2, stage=1, dp_size=2, pp_size=3, tp_size=2)
    run.train(num_microbatches=1)
    assert [op[0] for op in run.ops()][-4:] == [
        "grads-reduce-scatter",
        "layernorm-grads-all-reduce",  # no embedding: a middle stage
        "optimizer-clip-main-grad",
        "optimizer",
    ]


def test_params_all_gather_after_a_step_belongs_to_the_next(job):
    run = job(dp_size=2, pp_size=1)
    for _ in range(2):
        run.train(num_microbatches=1, optimizer=twin.DistributedOptimizer(twin.config()))
    taken = run.taken()
    gathers = [(op[0], op[5]) for op in taken.ops if op[1] == "params-all-gather"]
    assert gathers == [(1, 0), (2, 0)]
    by_type = {op[1]: op for op in taken.ops if op[0] == 0}
    gather = next(op for op in taken.ops if op[1] == "params-all-gather")
    optimizer = by_type["optimizer"]
    assert optimizer[2] + optimizer[3] <= gather[2]  # it ends where the gather begins


def test_a_chained_optimizer_is_one_step(job):
    run = job(dp_size=1, pp_size=1)
    chained = twin.ChainedOptimizer(twin.config())
    parts = [twin.MixedPrecisionOptimizer(twin.config()) for _ in range(2)]
    chained.chained_optimizers = tuple(parts)
    run.train(num_microbatches=1, optimizer=chained)
    taken = run.taken()
    assert [op[1] for op in taken.ops if "optimizer" in op[1]] == [
        "optimizer-clip-main-grad",
        "optimizer",
    ]
    assert [done[0] for done in taken.steps_done] == [0]


def test_step_with_non_finite_gradients_is_complete(job):
    run, optimizer = job(pp_size=1), twin.MixedPrecisionOptimizer(twin.config())
    optimizer.finite = False
    run.train(optimizer=optimizer)
    taken = run.taken()
    assert [op[1] for op in taken.ops][-2:] == ["optimizer-clip-main-grad", "optimizer"]
    assert [done[0] for done in taken.steps_done] == [0]


def test_steps_after_evaluations_and_checkpoints_have_their_kind(job):
    run, timers = job(pp_size=1), twin.Timers(2, "max")
    run.train()
    run.train()
    run.train(forward_only=True)
    run.train()
    timers("save-checkpoint", log_level=0).start(barrier=True)
    timers("save-checkpoint").stop(barrier=True)
    run.train()
    run.train()
    taken = run.taken()
    assert {op[0] for op in taken.ops} == {0, 1, 2, 3, 4}  # no operation of the evaluation
    assert len([op for op in taken.ops if op[0] == 2]) == len(
        [op for op in taken.ops if op[0] == 1]
    )
    assert timers.calls == [
        ("save-checkpoint", "start", True),
        ("save-checkpoint", "stop", True),
    ]
    found = dict(kinds_of(taken))
    assert found == {0: "first", 1: "train", 2: "eval", 3: "checkpoint", 4: "train"}


def kinds_of(taken):
    step_kinds = dict(getattr(taken, "step_kinds", ()))
    return [(done[0], step_kinds.get(done[0], "train")) for done in taken.steps_done]


def test_megatron_timers_keep_working(job):
    run, timers = job(dp_size=2, pp_size=1), twin.Timers(2, "max")
    run.train(model=twin.model(timers=timers))
    assert ("all-grads-sync", "start", False) in timers.calls
    assert timers("all-grads-sync").elapsed() == 7.0
    assert timers("forward-backward", log_level=1).name == "forward-backward"
    assert "grads-reduce-scatter" in {op[0] for op in run.ops()}


def test_batch_generator_timer_records_a_data_wait(job):
    run, timers = job(pp_size=1), twin.Timers(2, "max")

    def forward(data, model):
        timers("batch-generator", log_level=2).start()
        timers("batch-generator").stop()

    run.train(num_microbatches=1, forward_step_func=forward)
    assert "data-wait" in {op[0] for op in run.ops()}


def test_microbatch_attributes_apply_to_forward_and_backward(job):
    run, lengths = job(), iter([4096, 1024])
    run.train(forward_step_func=lambda data, model: megatron.tell(tokens=next(lengths)))
    attributes = {(op[1], op[6]): op[7] for op in run.taken().ops if op[1].endswith("-compute")}
    for kind in ("forward-compute", "backward-compute"):
        assert attributes[kind, 0]["tokens"] == 4096
        assert attributes[kind, 1]["tokens"] == 1024


def test_step_with_a_foreign_optimizer_ends_when_the_next_begins(job):
    run = job()
    for _ in range(3):
        run.train(optimizer=types.SimpleNamespace(step=lambda: None))  # torch.optim.Adam, say
    assert [done[0] for done in run.taken().steps_done] == [0, 1]


def test_failed_step_is_incomplete(job):
    run, optimizer = job(pp_size=1), twin.MixedPrecisionOptimizer(twin.config())
    with twin.failing(optimizer), pytest.raises(ArithmeticError):
        run.train(optimizer=optimizer)
    run.train()
    assert [done[0] for done in run.taken().steps_done] == [1]


def patch_iterations(monkeypatch, iterations):
    """Patch Megatron-LM's iteration count; each read advances the iterator."""
    arguments = types.SimpleNamespace()

    def get_args():
        arguments.curr_iteration = next(iterations)
        return arguments

    module = types.SimpleNamespace(get_args=get_args)
    monkeypatch.setitem(sys.modules, "megatron.training.global_vars", module)


def test_resumed_job_uses_the_iteration_count_of_megatron(job, monkeypatch):
    run = job(pp_size=1)
    patch_iterations(monkeypatch, iter([700, 701]))
    run.train()
    run.train()
    assert [done[0] for done in run.taken().steps_done] == [700, 701]


def test_constant_iteration_count_is_ignored(job, monkeypatch):
    run = job(pp_size=1)
    patch_iterations(monkeypatch, iter([700, 700, 700]))
    for _ in range(3):
        run.train()
    assert [done[0] for done in run.taken().steps_done] == [700, 701, 702]


def test_unrecorded_rank_leaves_megatron_unpatched(job):
    run = job(records=False)
    assert run.installed is run.recorder
    assert not hasattr(twin.forward_step, "__wrapped__")
    run.train()
    assert run.taken() is None


def test_uninstall_restores_megatron(job):
    before = twin.forward_step, twin.Timers.__call__, twin.DistributedOptimizer.step
    run = job()
    assert twin.forward_step is not before[0]
    assert (
        megatron.install(run.recorder, topology=run.topology) is run.recorder
    )  # already installed
    megatron.uninstall()
    assert (twin.forward_step, twin.Timers.__call__, twin.DistributedOptimizer.step) == before


def test_unsupported_megatron_is_logged_and_left_unpatched(job, monkeypatch, caplog):
    def forward_step(forward_step_func, batch):
        """Of another version."""

    before = twin.backward_step
    monkeypatch.setattr(twin, "forward_step", forward_step)
    run = job()
    assert "forward_step takes no current_microbatch in this megatron-core" in caplog.text
    assert run.installed is run.recorder
    assert vars(twin)["forward_step"] is forward_step
    assert vars(twin)["backward_step"] is before


def test_missing_megatron_gives_the_null_recorder(monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "megatron", None)
    recorder = megatron.install(job="llm", url="http://127.0.0.1:1", token="pl_x", run_key="a")
    assert recorder is NULL
    assert "Megatron's parallel state does not tell" in caplog.text


def test_failed_start_is_logged_once_for_all_chunks(job, caplog, monkeypatch):
    for name in ("URL", "TOKEN", "JOB"):
        monkeypatch.delenv(f"PACELINE_{name}", raising=False)
    topology = Topology(rank=0, dp_rank=0, stage=0, dp_size=1, pp_size=1)
    for _ in range(3):
        assert megatron.install(topology=topology, run_key="a") is NULL
    assert len(caplog.messages) == 1
    assert "no job" in caplog.text


def test_frozen_or_unreadable_config_does_not_stop_recording(job):
    run, model = job(dp_size=2, pp_size=1), twin.model()
    model.config = Frozen(None, 1.0, 2)
    run.train(model=model, optimizer=twin.MixedPrecisionOptimizer(twin.config(clip_grad=None)))
    found = {op[0] for op in run.ops()}
    assert "optimizer" in found
    assert "optimizer-clip-main-grad" not in found
    for read in (config_of, shares_embedding, synchronises):
        assert not read([])


@dataclasses.dataclass(frozen=True)
class Frozen:
    """An immutable configuration."""

    timers: None
    clip_grad: float
    microbatch_group_size_per_vp_stage: int
