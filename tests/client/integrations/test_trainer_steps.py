"""Callbacks of the Hugging Face Trainer and of Lightning, in the libraries' call order.

The call orders are those of transformers 5.23.0 and lightning 2.6.6.
"""

import copy
import gc
import inspect
import itertools
import logging
import pickle
import sys
import threading
import types
import weakref

import pytest
from paceline_client import NULL
from paceline_client.integrations import huggingface, lightning, trainer_steps
from paceline_client.recorder import Recorder
from paceline_client.recording.buffer import Buffer

from tests.client.conftest import TOKEN
from tests.client.recorders import WITHIN_S

COMPUTES = ("forward-compute", "backward-compute", "optimizer")


@pytest.fixture(autouse=True)
def _clean_environment(caplog, monkeypatch):
    caplog.set_level(logging.WARNING)
    for name in ("URL", "TOKEN", "JOB", "RUN_KEY"):
        monkeypatch.delenv(f"PACELINE_{name}", raising=False)
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    # Importing PyTorch takes seconds, and outside of a backward its engine takes no callback.
    monkeypatch.setitem(sys.modules, "torch.autograd", None)


class OfflineRecorder:
    """A recorder without a sender."""

    def __init__(self):
        self.buffer = Buffer(10_000, 60.0)
        self.recorder = Recorder(self.buffer, None)

    def taken(self):
        self.buffer.close()
        return self.buffer.take()


@pytest.fixture
def recorded():
    return OfflineRecorder()


def types_of(taken, step):
    """Op types of a step in order of start."""
    return [op[1] for op in sorted(taken.ops, key=lambda op: op[2]) if op[0] == step]


def kinds(taken):
    step_kinds = dict(taken.step_kinds)
    return {done[0]: step_kinds.get(done[0], "train") for done in taken.steps_done}


class Tensor:
    """An output whose gradient hooks run on `backward`."""

    requires_grad = True

    def __init__(self, *shape):
        self.shape, self.hooks = shape, []

    def register_hook(self, hook):
        self.hooks.append(hook)

    def backward(self):
        for hook in self.hooks:
            hook(None)


class Model:
    """The part of a module that the hooks use."""

    def __init__(self):
        self.before, self.after = [], []

    def modules(self):
        return [self]

    def register_forward_pre_hook(self, hook, with_kwargs):
        assert with_kwargs
        self.before.append(hook)

    def register_forward_hook(self, hook, with_kwargs):
        assert with_kwargs
        self.after.append(hook)

    def __call__(self, **inputs):
        for hook in self.before:
            hook(self, (), inputs)
        outputs = {"loss": Tensor(), "logits": Tensor(2, 8)}
        for hook in self.after:
            hook(self, (), inputs, outputs)
        return outputs["loss"]


class HuggingFace:
    """The Trainer's loop, as far as callbacks see it."""

    def __init__(self, callback=None):
        self.callbacks = [callback] if callback else []
        self.model_wrapped = self.model = Model()
        self.args = types.SimpleNamespace(torch_compile=False, world_size=1)
        self.state = types.SimpleNamespace(global_step=0)

    def add_callback(self, callback):
        self.callbacks.append(callback)

    def call(self, event):
        for callback in self.callbacks:
            method = getattr(callback, event, None)
            if method is not None:
                about = {"model": self.model, "optimizer": None, "train_dataloader": None}
                assert method(self.args, self.state, object(), **about) is None

    def train(self, steps, *, accumulate=1, after=None, fails_in=None):
        self.call("on_train_begin")
        self.call("on_epoch_begin")
        for step in range(steps):
            self.call("on_step_begin")
            for position in range(accumulate):
                loss = self.model(input_ids=Tensor(2, 8))
                if step == fails_in:
                    raise ArithmeticError("no such loss")
                loss.backward()
                if position < accumulate - 1:
                    self.call("on_substep_end")
            self.call("on_pre_optimizer_step")
            self.call("on_optimizer_step")
            self.state.global_step += 1
            self.call("on_step_end")
            self.call("on_log")
            for event in (after or {}).get(step, ()):
                self.model(input_ids=Tensor(2, 8))  # an evaluation also runs the model
                self.call(event)
        self.call("on_epoch_end")
        self.call("on_train_end")


def test_a_step_of_hugging_face_has_its_micro_batches_and_the_optimizer(recorded):
    HuggingFace(huggingface.PacelineCallback(recorder=recorded.recorder)).train(2, accumulate=2)
    taken = recorded.taken()
    micro_batch = ["forward-compute", "backward-compute"]
    assert types_of(taken, 0) == ["data-wait", *micro_batch, *micro_batch, "optimizer"]
    assert types_of(taken, 1) == types_of(taken, 0)
    assert [op[7] for op in taken.ops if op[1] == "forward-compute"] == [
        {"tokens": 16, "seq_len_sq": 128}
    ] * 4
    assert kinds(taken) == {0: "first", 1: "train"}


def test_hugging_face_evaluation_sets_the_kind_of_the_next_step(recorded):
    trainer = HuggingFace()
    huggingface.attach(trainer, recorder=recorded.recorder)
    trainer.train(4, after={1: ["on_evaluate"], 2: ["on_save"]})
    taken = recorded.taken()
    assert kinds(taken) == {0: "first", 1: "train", 2: "eval", 3: "checkpoint"}
    assert types_of(taken, 2) == types_of(taken, 1)  # no operation of the evaluation
    assert recorded.recorder.dropped == 0


@pytest.mark.parametrize("event", ["on_evaluate", "on_save"])
def test_warning_if_every_step_follows_an_evaluation_or_checkpoint(recorded, caplog, event):
    steps = 2 * trainer_steps.MAX_UNMARKED_STEPS
    trainer = HuggingFace(huggingface.PacelineCallback(recorder=recorded.recorder))
    trainer.train(steps, after={step: [event] for step in range(steps) if step % 5})
    assert not caplog.text
    trainer.train(steps, after={step: [event] for step in range(steps)})
    assert len(caplog.messages) == 1
    assert "10 steps in a row came after an evaluation or a checkpoint" in caplog.text


def test_data_wait_lies_between_two_steps(recorded):
    callback = huggingface.PacelineCallback(recorder=recorded.recorder)
    trainer = HuggingFace(callback)
    trainer.train(3, after={0: ["on_evaluate"]})
    ops = recorded.taken().ops
    [evaluated] = [op for op in ops if op[1] == "data-wait" and op[0] == 1]
    ended_ns = max(op[2] + op[3] for op in ops if op[0] == 0)
    began_ns = min(op[2] for op in ops if op[0] == 1 and op[1] in COMPUTES)
    assert ended_ns <= evaluated[2]
    assert evaluated[2] + evaluated[3] <= began_ns


def test_failed_hugging_face_step_is_incomplete(recorded):
    trainer = HuggingFace(huggingface.PacelineCallback(recorder=recorded.recorder))
    with pytest.raises(ArithmeticError):
        trainer.train(3, fails_in=1)
    assert kinds(recorded.taken()) == {0: "first"}


def test_a_second_training_is_another_run(paceline, monkeypatch):
    monkeypatch.setenv("PACELINE_RUN_KEY", "launch-1")
    paceline.accepts = ["step_kinds"]
    callback = huggingface.PacelineCallback(job="bert", url=paceline.url, token=TOKEN)
    trainer = HuggingFace(callback)
    for _ in range(2):
        trainer.state.global_step = 0
        trainer.train(1)
    paceline.wait_for(lambda: len(paceline.steps_done) == 2, WITHIN_S)
    keys = [body["run_key"] for _, body in paceline.puts]
    assert len(set(keys)) == 2
    assert all(key.startswith("launch-1") for key in keys)
    assert {body["framework"] for _, body in paceline.puts} == {"transformers"}
    assert len(trainer.model.before) == 1  # one hook


def test_recorder_of_a_failed_training_is_closed_before_a_retry(monkeypatch):
    closed = []

    class Closing(Recorder):
        def close(self, timeout_s=0.0):
            closed.append(self)

    started = [Closing(Buffer(10_000, 60.0), None) for _ in range(2)]
    begun = iter(started)
    monkeypatch.setattr(trainer_steps, "start_recorder", lambda **_: next(begun))
    trainer = HuggingFace()
    huggingface.attach(trainer)
    with pytest.raises(ArithmeticError):  # auto_find_batch_size restarts, but ends once
        trainer.train(1, fails_in=0)
    trainer.train(1)
    assert closed == started


@pytest.fixture
def topologies(monkeypatch):
    """The topology of every started recorder."""
    found = []

    def start(*, topology, **_):
        found.append(topology)
        return NULL

    monkeypatch.setattr(trainer_steps, "start_recorder", start)
    return found


class Mesh:
    """A DeviceMesh of four ranks on the last rank."""

    def __init__(self, *names):
        self.mesh_dim_names = names

    def get_coordinate(self):
        return [1, 1]

    def get_rank(self):
        return 3

    def size(self, dim=None):
        return 4 if dim is None else 2


@pytest.fixture
def last_of_four(monkeypatch):
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("PACELINE_RUN_KEY", "launch-1")


@pytest.mark.usefixtures("last_of_four")
def test_data_parallel_ranks_of_hugging_face_all_record(topologies):
    trainer = HuggingFace()
    vars(trainer)["accelerator"] = types.SimpleNamespace(parallelism_config=parallel(dp_shard=4))
    huggingface.attach(trainer)
    trainer.train(1)
    assert (topologies[0].dp_rank, topologies[0].dp_size, topologies[0].records) == (3, 4, True)


def parallel(mesh=None, **sizes):
    """Like accelerate's ParallelismConfig."""
    every = dict.fromkeys(("dp_replicate", "dp_shard", "tp", "cp", "sp"), 1) | sizes
    fields = {f"{name}_size": size for name, size in every.items()}
    return types.SimpleNamespace(device_mesh=mesh, **fields)


@pytest.mark.usefixtures("last_of_four")
@pytest.mark.parametrize("name", ["tp", "cp", "sp"])
def test_hugging_face_peers_with_the_same_data_are_one_dp_rank(topologies, name):
    trainer = HuggingFace()
    trainer.args.parallelism_config = parallel(Mesh("dp_shard", name), dp_shard=2, **{name: 2})
    huggingface.attach(trainer)
    trainer.train(1)
    assert (topologies[0].dp_rank, topologies[0].dp_size, topologies[0].records) == (1, 2, False)
    assert topologies[0].world_size == 4


@pytest.mark.usefixtures("last_of_four")
def test_peers_without_a_mesh_are_logged_and_not_recorded(topologies, caplog):
    trainer = HuggingFace()
    vars(trainer.model)["tp_size"] = 2  # sharded at load time
    huggingface.attach(trainer)
    trainer.train(1)
    assert not topologies[0].records
    assert len(caplog.messages) == 1
    assert "no mesh tells which ranks compute the same data: give topology=" in caplog.text


@pytest.mark.usefixtures("last_of_four")
def test_tensor_parallel_peers_of_lightning_are_one_dp_rank(topologies):
    trainer = Lightning(lightning.PacelineCallback())
    trainer.strategy.device_mesh = Mesh("data_parallel", "tensor_parallel")
    trainer.fit(1)
    assert (topologies[0].dp_rank, topologies[0].dp_size, topologies[0].records) == (1, 2, False)
    trainer.strategy.device_mesh = object()
    trainer.fit(1)
    assert "give topology=" in str(topologies[1].problem)


def test_hugging_face_trains_without_a_job(caplog):
    trainer = HuggingFace(huggingface.PacelineCallback())
    trainer.train(2)
    assert trainer.state.global_step == 2
    assert "no job: give job=, or set PACELINE_JOB" in caplog.text


def test_callback_without_attach_warns_of_unrecorded_operations(recorded, caplog):
    trainer = HuggingFace(huggingface.PacelineCallback(recorder=recorded.recorder))
    trainer.args.world_size = 2
    trainer.train(1)
    assert "gradients are not recorded: use attach(trainer, ...)" in caplog.text
    trainer = HuggingFace(huggingface.PacelineCallback(recorder=recorded.recorder))
    trainer.args.torch_compile = True
    trainer.train(1)
    assert "computations are not recorded: use attach(trainer, ...)" in caplog.text
    assert not trainer.model.before


def test_trainer_without_callbacks_is_logged(caplog):
    huggingface.attach(object(), job="bert")
    assert "the trainer is not recorded" in caplog.text


def test_trained_model_can_be_copied_and_holds_no_trainer(recorded):
    trainer = HuggingFace()
    vars(trainer)["lock"] = threading.Lock()  # as in an Accelerator: neither copyable nor picklable
    huggingface.attach(trainer, recorder=recorded.recorder)
    trainer.call("on_train_begin")
    trainer.call("on_step_begin")
    model, reference = trainer.model, weakref.ref(trainer)
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        copied(input_ids=Tensor(2, 8))  # averaged weights, for example: not part of training
    model(input_ids=Tensor(2, 8))
    del trainer
    gc.collect()
    assert reference() is None
    assert types_of(recorded.taken(), 0) == ["data-wait", "forward-compute"]


class DistributedDataParallel(Model):
    """DDP of two ranks, with or without a communication hook already."""

    def __init__(self, has_room=True):
        super().__init__()
        self.process_group, self.has_room = types.SimpleNamespace(size=lambda: 2), has_room
        self.hooks = []

    def register_comm_hook(self, state, hook):
        if not self.has_room:
            raise RuntimeError("register_comm_hook can only be called once")
        self.hooks.append(hook)


def trained_under(wrapper, recorded):
    trainer = HuggingFace()
    trainer.model_wrapped = trainer.model = wrapper
    huggingface.attach(trainer, recorder=recorded.recorder)
    trainer.train(1)
    return types_of(recorded.taken(), 0)


@pytest.fixture
def _distributed(monkeypatch):
    distributed = types.SimpleNamespace(get_world_size=lambda group: group.size())
    monkeypatch.setitem(sys.modules, "torch.distributed", distributed)


@pytest.mark.usefixtures("_distributed")
def test_ddp_buckets_are_hooked_if_no_hook_is_registered(recorded):
    wrapper = DistributedDataParallel()
    assert "forward-compute" in trained_under(wrapper, recorded)
    assert len(wrapper.hooks) == 1


@pytest.mark.usefixtures("_distributed")
def test_computations_are_recorded_if_ddp_has_a_hook_already(recorded, caplog):
    wrapper = DistributedDataParallel(has_room=False)
    assert "forward-compute" in trained_under(wrapper, recorded)
    assert "DDP is not recorded" in caplog.text


def test_fsdp1_is_not_mistaken_for_ddp(recorded):
    wrapper = type("FullyShardedDataParallel", (Model,), {})()
    wrapper.hooks = []
    wrapper.register_comm_hook = lambda *_: wrapper.hooks.append(_)
    wrapper.process_group = types.SimpleNamespace(size=lambda: 2)
    assert "forward-compute" in trained_under(wrapper, recorded)
    assert not wrapper.hooks


class Optimizer:
    def __init__(self):
        self.hooks = []

    def register_step_post_hook(self, hook):
        self.hooks.append(hook)

    def step(self):
        for hook in self.hooks:
            hook(self, (), {})


class Lightning:
    """Lightning's loop, as far as callbacks see it."""

    def __init__(self, callback, *, automatic=True):
        self.callback = callback
        self.strategy = types.SimpleNamespace(model=Model())
        self.optimizers = [Optimizer()]
        self.global_step = 0
        self.batches = itertools.count()
        epoch_loop = types.SimpleNamespace(total_batch_idx=0)
        self.fit_loop = types.SimpleNamespace(epoch_loop=epoch_loop)
        self.module = types.SimpleNamespace(automatic_optimization=automatic)

    def call(self, event, *about):
        assert getattr(self.callback, event)(self, self.module, *about) is None

    def fit(self, steps, *, accumulate=1, after=None):
        self.call("on_train_start")
        self.call("on_train_epoch_start")
        for step, position in itertools.product(range(steps), range(accumulate)):
            batch, index = {"input_ids": Tensor(2, 8)}, next(self.batches)
            self.fit_loop.epoch_loop.total_batch_idx = index
            self.call("on_train_batch_start", batch, index)
            self.call("on_before_backward", None)
            self.call("on_after_backward")
            if position == accumulate - 1:
                self.call("on_before_optimizer_step", self.optimizers[0])
                self.optimizers[0].step()
                self.global_step += 1
            self.call("on_train_batch_end", None, batch, index)
            for event, *about in (after or {}).get(step, ()):
                self.call(event, *about)
        self.call("on_train_end")


def test_a_step_of_lightning_has_its_micro_batches_and_the_optimizer(recorded):
    Lightning(lightning.PacelineCallback(recorder=recorded.recorder)).fit(2, accumulate=2)
    taken = recorded.taken()
    micro_batch = ["data-wait", "forward-compute", "backward-compute"]
    assert types_of(taken, 0) == [*micro_batch, *micro_batch, "optimizer"]
    assert types_of(taken, 1) == types_of(taken, 0)
    assert {op[7]["tokens"] for op in taken.ops if op[1] == "backward-compute"} == {16}
    assert kinds(taken) == {0: "first", 1: "train"}


def test_lightning_evaluation_sets_the_kind_of_the_next_step(recorded):
    trainer = Lightning(lightning.PacelineCallback(recorder=recorded.recorder))
    trainer.fit(4, after={1: [("on_validation_end",)], 2: [("on_save_checkpoint", {})]})
    assert kinds(recorded.taken()) == {0: "first", 1: "train", 2: "eval", 3: "checkpoint"}


def test_with_manual_optimization_each_batch_is_a_step(recorded):
    trainer = Lightning(lightning.PacelineCallback(recorder=recorded.recorder), automatic=False)
    trainer.fit(3)
    assert list(kinds(recorded.taken())) == [0, 1, 2]


def test_interrupted_fit_leaves_its_step_incomplete(recorded):
    trainer = Lightning(lightning.PacelineCallback(recorder=recorded.recorder))
    trainer.call("on_train_start")
    trainer.call("on_train_batch_start", {}, 0)
    trainer.call("on_exception", KeyboardInterrupt())
    assert not recorded.taken().steps_done


def test_work_given_by_the_script_replaces_the_batch_shape(recorded):
    def work(batch):
        return {"tokens": 5, "seq_len_sq": 25}

    Lightning(lightning.PacelineCallback(recorder=recorded.recorder, work=work)).fit(1)
    [forward] = [op for op in recorded.taken().ops if op[1] == "forward-compute"]
    assert forward[7] == {"tokens": 5, "seq_len_sq": 25}


@pytest.mark.parametrize("batch", [None, (1, 2), {"x": 1}, {"input_ids": None}])
def test_batch_of_unknown_shape_has_no_attributes(recorded, batch):
    callback = lightning.PacelineCallback(recorder=recorded.recorder)
    trainer = Lightning(callback)
    trainer.call("on_train_start")
    trainer.call("on_train_batch_start", batch, 0)
    trainer.call("on_train_end")
    assert [op[7] for op in recorded.taken().ops if op[1] == "forward-compute"] == [None]


def test_unpickled_callback_records(monkeypatch, paceline):
    monkeypatch.setenv("PACELINE_RUN_KEY", "launch-1")
    paceline.accepts = ["step_kinds"]
    there = lightning.PacelineCallback(job="bert", url=paceline.url, token=TOKEN)
    here = pickle.loads(pickle.dumps(there))
    Lightning(here).fit(1)
    paceline.wait_for(lambda: len(paceline.steps_done) == 1, WITHIN_S)


def test_callbacks_in_any_order_raise_nothing(recorded):
    lit = lightning.PacelineCallback(recorder=recorded.recorder)
    hugging = huggingface.PacelineCallback(recorder=NULL)
    for callback in (lit, hugging):
        for name in dir(callback):
            method = getattr(callback, name)
            if name.startswith("on_") and callable(method):
                number = len(inspect.signature(method).parameters) - (callback is hugging)
                method(*[None] * number)
