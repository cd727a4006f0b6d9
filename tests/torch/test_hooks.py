"""Operations recorded by the pipeline and DDP hooks on fakes, without PyTorch."""

import sys
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
from paceline_client.integrations import ddp, fsdp2, torch_pipeline
from paceline_client.integrations.computing import current_computation


class Listing:
    """A recorder that logs begins and ends in order."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def begin(self, optype, *, microbatch=-1, chunk=-1, **told):
        name = f"{optype} {microbatch}/{chunk}" + "".join(f" {k}={v}" for k, v in told.items())
        self.said.append(f"{name} begins")
        return name

    def end(self, begun, **told):
        self.said.append(f"{begun} ends")


@dataclass
class Work:
    """The handle that a transfer is waited for with."""

    name: str
    said: list[str]

    def wait(self) -> None:
        self.said.append(f"waited for {self.name}")


@dataclass
class Stage:
    stage_index: int = 1
    group_size: int = 2
    is_last: bool = False
    stage_index_to_group_rank: dict[int, int] = field(default_factory=lambda: {0: 0, 1: 1})

    def forward_one_chunk(self, number, args=(), kwargs=None):
        return f"forward {number}"

    def backward_one_chunk(self, number, loss=None, full_backward=True, last_backward=False):
        return f"backward {number} {loss} {full_backward}"

    def backward_weight_one_chunk(self, number, last_backward=False):
        return f"weights {number}"

    def get_fwd_recv_ops(self, number):
        return [SimpleNamespace(name="forward-recv")]

    def get_fwd_send_ops(self, number):
        return [SimpleNamespace(name="forward-send") for _ in range(2)]

    def get_bwd_recv_ops(self, number):
        return [SimpleNamespace(name="backward-recv")]

    def get_bwd_send_ops(self, number):
        return [SimpleNamespace(name="backward-send")]


class Schedule:
    """Like a PyTorch schedule: it looks up the two module functions on each call."""

    def __init__(self, stage, module, script, loss=None) -> None:
        self._stage = stage
        self._loss_fn = loss
        self._module = module
        self._script = script

    def _step_microbatches(self):
        self._script(self._stage, self._module)

    def step(self):
        self._step_microbatches()


@pytest.fixture
def recorder():
    return Listing()


@pytest.fixture
def module(monkeypatch, recorder):
    """Fake of torch.distributed.pipelining.schedules."""

    def batch(ops, desc=None):
        recorder.said.append("posted " + ", ".join(op.name for op in ops))
        return [Work(op.name, recorder.said) for op in ops]

    def wait(works):
        for work in works:
            work.wait()

    found = SimpleNamespace(_batch_p2p=batch, _wait_batch_p2p=wait)
    monkeypatch.setitem(sys.modules, "torch.distributed.pipelining.schedules", found)
    return found


def events_of(recorder, module, script, **stage):
    """Events recorded in a step that runs the script."""
    schedule = Schedule(Stage(**stage), module, script)
    torch_pipeline.attach(recorder, schedule)
    schedule.step()
    return recorder.said


def test_receive_begins_where_the_worker_waits_and_a_send_ends_at_the_next_work(recorder, module):
    def receives(stage, module):
        works = module._batch_p2p(stage.get_fwd_recv_ops(3))
        stage.forward_one_chunk(2)
        module._wait_batch_p2p(works)

    def sends(stage, module):
        works = module._batch_p2p(stage.get_bwd_send_ops(0))
        stage.backward_one_chunk(1)
        module._wait_batch_p2p(works)

    assert events_of(recorder, module, receives) == [
        "posted forward-recv",
        "forward-compute 2/0 begins",
        "forward-compute 2/0 ends",
        "forward-recv 3/0 begins",
        "waited for forward-recv",
        "forward-recv 3/0 ends",
    ]
    recorder.said.clear()
    assert events_of(recorder, module, sends) == [
        "backward-send 0/0 begins",
        "posted backward-send",
        "backward-send 0/0 ends",
        "backward-compute 1/0 begins",
        "backward-compute 1/0 ends",
        "waited for backward-send",
    ]


def test_fused_wait_ends_each_transfer_with_its_last_work(recorder, module):
    def script(stage, module):
        ops = stage.get_fwd_send_ops(1) + stage.get_bwd_recv_ops(0)
        module._wait_batch_p2p(module._batch_p2p(ops))

    assert events_of(recorder, module, script) == [
        "forward-send 1/0 begins",
        "posted forward-send, forward-send, backward-recv",
        "backward-recv 0/0 begins",
        "waited for forward-send",
        "waited for forward-send",
        "forward-send 1/0 ends",
        "waited for backward-recv",
        "backward-recv 0/0 ends",
    ]


def _endless():
    outputs: list[object] = []
    outputs.append(outputs)
    return outputs


@pytest.mark.parametrize("outputs", [SimpleNamespace(register_hook=None), _endless()])
def test_unhookable_outputs_raise_nothing(recorder, outputs):
    ddp._Passes(recorder, -1, None)._forward_ends(None, (), {}, outputs)
    assert recorder.said == []


class Output:
    """A tensor that requires a gradient."""

    requires_grad = True

    def __init__(self, *, is_leaf=False):
        self.is_leaf, self.hooks = is_leaf, []

    def register_hook(self, hook):
        self.hooks.append(hook)


class Autograd:
    """Calls the hooks of outputs, and queued callbacks at the end of a backward."""

    def __init__(self):
        self._at_end = []
        self.Variable = SimpleNamespace(_execution_engine=self)

    def queue_callback(self, call):
        self._at_end.append(call)

    def backward(self, *outputs):
        for output in outputs:
            for hook in output.hooks:
                hook(None)
        while self._at_end:
            self._at_end.pop()()


@pytest.fixture
def autograd(monkeypatch):
    found = Autograd()
    monkeypatch.setitem(sys.modules, "torch.autograd", found)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(is_grad_enabled=lambda: True))
    return found


BACKWARD = ["backward-compute -1/-1 begins", "backward-compute -1/-1 ends"]


@dataclass
class ModelOutput:
    """A dataclass returned by a model."""

    hidden: list[Output]
    loss: Output
    name: str = "no tensor"


@pytest.mark.parametrize("shape", [list, tuple, dict, ModelOutput])
@pytest.mark.parametrize("used", [(0,), (1,), (0, 1)])
def test_a_backward_begins_with_the_first_gradient_of_any_output(recorder, autograd, shape, used):
    outputs = [Output(), Output()]
    given = {"hidden": outputs[:1], "loss": outputs[1]}
    answer = shape(**given) if shape in (dict, ModelOutput) else shape(given.values())
    passes = ddp._Passes(recorder, -1, None)
    for _ in range(2):
        for each in outputs:
            each.hooks.clear()
        passes._forward_ends(None, (), {}, answer)
        autograd.backward(*[outputs[each] for each in used])
    assert recorder.said == [*BACKWARD, *BACKWARD]


def test_parameter_returned_as_output_gets_no_hook(recorder, autograd):
    parameter = Output(is_leaf=True)
    ddp._Passes(recorder, -1, None)._forward_ends(None, (), {}, [parameter])
    assert not parameter.hooks


def test_forwards_without_a_backward_are_logged_once(recorder, autograd, caplog):
    passes = ddp._Passes(recorder, -1, None)
    for _ in range(3 * ddp.MAX_UNSEEN_BACKWARDS):
        passes._forward_ends(None, (), {}, object())
    assert len(caplog.messages) == 1
    assert "no backward that could be recorded" in caplog.text


def test_forwards_without_gradients_are_not_logged(recorder, autograd, caplog, monkeypatch):
    passes, output = ddp._Passes(recorder, -1, None), Output()
    for _ in range(2 * ddp.MAX_UNSEEN_BACKWARDS):
        output.hooks.clear()
        passes._forward_ends(None, (), {}, output)
        autograd.backward(output)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(is_grad_enabled=lambda: False))
    for _ in range(2 * ddp.MAX_UNSEEN_BACKWARDS):
        passes._forward_ends(None, (), {}, object())
    assert not caplog.messages


def test_work_of_a_backend_without_futures_is_passed_through(recorder):
    def no_future():
        raise RuntimeError("this backend has no futures")

    work = SimpleNamespace(get_future=no_future)
    gather = fsdp2._Recorded(recorder, lambda **_: work, "params-all-gather")
    inputs = SimpleNamespace(device=SimpleNamespace(type="cuda"))
    assert gather(input_tensor=inputs, async_op=True) is work
    assert recorder.said == ["params-all-gather -1/-1 begins"]


def test_collectives_accept_positional_arguments(recorder, monkeypatch):
    called: list[tuple[object, ...]] = []

    def gather(output, sent, *, group, async_op):
        called.append(("gather", output, sent.name, group, async_op))

    def scatter(output, sent, *, op, group, async_op):
        called.append(("scatter", output, sent.name, op, group, async_op))

    dist = SimpleNamespace(all_gather_into_tensor=gather, reduce_scatter_tensor=scatter)
    monkeypatch.setitem(sys.modules, "torch.distributed", dist)
    sent = SimpleNamespace(name="sent", device=SimpleNamespace(type="cpu"))
    current_computation(recorder).begin("forward-compute")
    fsdp2._Recorded(recorder, fsdp2._Gather(), "params-all-gather")("to", sent, "us", False)
    fsdp2._Recorded(recorder, fsdp2._Scatter(), "grads-reduce-scatter")("to", sent, "us", "sum")
    assert called == [
        ("gather", "to", "sent", "us", False),
        ("scatter", "to", "sent", "sum", "us", False),
    ]
    names = [each.split()[0] for each in recorder.said if each.endswith("begins")]
    assert names == [  # a computation is split around a wait
        "forward-compute",
        "params-all-gather",
        "forward-compute",
        "grads-reduce-scatter",
        "forward-compute",
    ]


def test_send_without_a_wait_ends_with_the_step(recorder, module):
    said = events_of(recorder, module, lambda stage, m: m._batch_p2p(stage.get_fwd_send_ops(0)))
    assert said[-1] == "forward-send 0/0 ends"


def test_split_backward_is_recorded_as_input_and_weight_halves(recorder, module):
    def script(stage, module):
        stage.backward_one_chunk(0, full_backward=False)
        stage.backward_weight_one_chunk(0)

    said = events_of(recorder, module, script, stage_index=3, stage_index_to_group_rank={3: 1})
    assert said[::2] == ["backward-input-compute 0/1 begins", "backward-weight-compute 0/1 begins"]


def test_forward_of_the_last_stage_includes_the_loss(recorder, module):
    def script(stage, module):
        stage.forward_one_chunk(0)
        schedule._loss_fn("output")

    schedule = Schedule(Stage(is_last=True), module, script, lambda _: recorder.said.append("loss"))
    torch_pipeline.attach(recorder, schedule, work=lambda microbatch: {"tokens": 7})
    schedule.step()
    begun = "forward-compute 0/0 tokens=7"
    assert recorder.said == [f"{begun} begins", "loss", f"{begun} ends"]


def test_wrapped_stage_keeps_arguments_and_results(recorder, module):
    stage = Stage()
    torch_pipeline.attach(recorder, Schedule(stage, module, None))
    assert stage.forward_one_chunk(4, (), kwargs={}) == "forward 4"
    assert stage.backward_one_chunk(5, loss=1, last_backward=True) == "backward 5 1 True"


def test_detached_schedule_records_nothing(recorder, module):
    stage = Stage(is_last=True)
    schedule = Schedule(stage, module, lambda stage, m: stage.forward_one_chunk(0), loss=len)
    torch_pipeline.attach(recorder, schedule).detach()
    schedule.step()
    assert (recorder.said, schedule._loss_fn) == ([], len)


def test_failing_work_function_raises_nothing(recorder, module):
    schedule = Schedule(Stage(), module, lambda stage, m: stage.forward_one_chunk(0))
    torch_pipeline.attach(recorder, schedule, work=lambda microbatch: [{}][microbatch + 1])
    schedule.step()
    assert recorder.said == ["forward-compute 0/0 begins", "forward-compute 0/0 ends"]


@pytest.mark.parametrize(
    "schedule",
    [
        object(),
        Schedule(Stage(stage_index=2, stage_index_to_group_rank={2: 1}), None, None),
    ],
    ids=["no schedule", "stages that do not go round the ranks"],
)
def test_unsupported_schedule_is_logged_once(recorder, module, caplog, schedule):
    torch_pipeline.attach(recorder, schedule).detach()
    assert len(caplog.messages) == 1
    assert "the pipeline is not recorded" in caplog.text


def test_pytorch_without_wait_batch_p2p_is_left_unpatched(recorder, module, caplog):
    # PyTorch 2.5: one work for all of them, which the schedule itself waits for.
    del module._wait_batch_p2p
    module._batch_p2p = post = lambda ops, desc=None: Work("all", recorder.said)
    for _ in ("to train", "to evaluate"):
        said = events_of(recorder, module, lambda stage, m: m._batch_p2p(stage.get_fwd_send_ops(0)))
        assert said == []
    assert module._batch_p2p is post
    assert caplog.text.count("the pipeline is not recorded") == 2
