"""The real schedules of megatron-core on the CPU in one process, with fake peers."""

import sys
import types
from importlib import import_module

import pytest
from paceline_client import Topology
from paceline_client.integrations import megatron
from paceline_client.recorder import Recorder
from paceline_client.recording.buffer import Buffer

from tests.client.integrations import fake_megatron as twin


@pytest.fixture(scope="module")
def core():
    """Megatron's schedules, transfers and torch."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("warnings.warn", lambda *_, **__: None)  # silence its import warnings
        pytest.importorskip("megatron.core", reason="megatron-core is not installed")
        torch = import_module("torch")
        yield types.SimpleNamespace(
            torch=torch,
            schedules=import_module(megatron.SCHEDULES),
            p2p=import_module(megatron.P2P),
            groups=import_module("megatron.core.pipeline_parallel.utils"),
            config=import_module("megatron.core.transformer").TransformerConfig,
            kind=import_module("megatron.core.enums").ModelType.encoder_or_decoder,
        )


class Group:
    """A process group as seen by one rank."""

    def __init__(self, rank=0, size=1):
        self.rank, self.size = lambda: rank, lambda: size


class Stage:
    """One stage of a job whose peers answer at once; records which receive each forward used."""

    def __init__(self, core, monkeypatch, stage, num_stages, num_chunks=1, **config):
        self.core, self.used, self.received = core, [], []
        torch, self.group = core.torch, Group(stage, num_stages)
        cpu, zeros = torch.device("cpu"), torch.zeros
        monkeypatch.setattr(torch.cuda, "current_device", lambda: cpu)
        monkeypatch.setattr(torch, "zeros", lambda *size, device=None, **more: zeros(*size, **more))
        monkeypatch.setattr(core.p2p, "_p2p_ops", self.transfer)
        monkeypatch.setattr(core.groups, "get_pg_rank", lambda group: group.rank())
        monkeypatch.setattr(core.groups, "get_pg_size", lambda group: group.size())
        self.config = core.config(
            num_layers=num_stages * num_chunks,
            hidden_size=4,
            num_attention_heads=1,
            pipeline_model_parallel_size=num_stages,
            virtual_pipeline_model_parallel_size=num_chunks if num_chunks > 1 else None,
            pipeline_dtype=torch.float32,
            batch_p2p_comm=False,
            **config,
        )
        if num_chunks > 1:
            self.config.microbatch_group_size_per_vp_stage = num_stages
        self.models = [self.model(chunk) for chunk in range(num_chunks)]
        self.buffer = Buffer(10_000, 60.0)
        self.recorder = Recorder(self.buffer, None)
        sizes = {"dp_size": 1, "pp_size": num_stages, "vpp_size": num_chunks}
        topology = Topology(rank=stage, dp_rank=0, stage=stage, **sizes)
        megatron.install(self.recorder, topology=topology)

    def model(self, chunk):
        inner, stage = self.core.torch.nn.Linear(4, 4), self

        class Chunk(self.core.torch.nn.Module):  # type: ignore[name-defined,misc]
            def __init__(self):
                super().__init__()
                self.inner, self.config = inner, stage.config
                self.model_type, self.input = stage.core.kind, None
                self.share_embeddings_and_output_weights = True

            def set_input_tensor(self, tensors):
                self.input = tensors[0]
                stage.used.append((chunk, tensors[0]))

        return Chunk()

    def transfer(self, *, tensor_recv_prev, **others):
        if tensor_recv_prev is not None:
            self.received.append(tensor_recv_prev)
        names = ("tensor_send_prev", "tensor_recv_next", "tensor_send_next")
        asked = {"tensor_recv_prev": tensor_recv_prev, **{name: others[name] for name in names}}
        return {
            name.removeprefix("tensor_"): twin.Work()
            for name, tensor in asked.items()
            if tensor is not None
        }

    def forward(self, data, model):
        given = self.core.torch.ones(2, 1, 4) if model.input is None else model.input
        return model.inner(given), lambda output: (output.sum(), {})

    def train(self, num_microbatches):
        p2p = self.core.p2p.P2PCommunicator.__new__(self.core.p2p.P2PCommunicator)
        p2p.pp_group, p2p.config, p2p.next_rank, p2p.prev_rank = self.group, self.config, 1, 0
        chunks = self.config.virtual_pipeline_model_parallel_size
        p2p.virtual_pipeline_model_parallel_size = chunks
        groups = {"tp": Group(), "cp": Group(), "embd": None, "pos_embd": None, "dp_cp": Group()}
        several = len(self.models) > 1
        inter = "with" if several else "without"
        run = getattr(self.core.schedules, f"forward_backward_pipelining_{inter}_interleaving")
        run(
            forward_step_func=self.forward,
            data_iterator=[None] * len(self.models) if several else None,
            model=self.models if several else self.models[0],
            num_microbatches=num_microbatches,
            seq_length=2,
            micro_batch_size=1,
            p2p_communicator=p2p,
            pg_collection=types.SimpleNamespace(pp=self.group, **groups),
        )

    def ops(self):
        return ops_of(self.buffer)


def ops_of(buffer):
    """(type, micro-batch, chunk) in order of start."""
    buffer.close()
    taken = buffer.take()
    assert taken is not None
    ops = sorted(taken.ops, key=lambda op: op[2])
    return [(op[1], op[6], op[5]) for op in ops if "reduce" not in op[1]]


@pytest.fixture
def stage(core, monkeypatch):
    yield lambda *args, **config: Stage(core, monkeypatch, *args, **config)
    megatron.uninstall()


@pytest.mark.parametrize("name", twin.SIGNATURES)
def test_fake_signatures_match_megatron(core, name):
    home = megatron.SCHEDULES
    if "." in name:
        home = megatron.P2P if name.startswith("P2P") else megatron.TIMERS
    assert twin.parameters(import_module(home), name) == twin.SIGNATURES[name]


@pytest.mark.parametrize(("rank", "size"), [(0, 2), (1, 2), (0, 4), (1, 4), (3, 4)])
def test_fake_call_order_matches_megatron(stage, rank, size, monkeypatch):
    real = stage(rank, size)
    real.train(6)
    found = real.ops()
    megatron.uninstall()
    for name in (megatron.SCHEDULES, megatron.P2P, megatron.TIMERS, megatron.OPTIMIZERS):
        monkeypatch.setitem(sys.modules, name, twin)
    buffer = Buffer(10_000, 60.0)
    topology = Topology(rank=rank, dp_rank=0, stage=rank, dp_size=1, pp_size=size)
    megatron.install(Recorder(buffer, None), topology=topology)
    twin.forward_backward_pipelining_without_interleaving(
        forward_step_func=lambda data, model: None,
        data_iterator=None,
        model=twin.model(),
        num_microbatches=6,
        p2p_communicator=twin.stage(rank, size),
    )
    assert ops_of(buffer) == found


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize(("rank", "size"), [(0, 2), (1, 2), (0, 4), (2, 4), (3, 4)])
def test_a_receive_has_the_ids_of_the_forward_that_uses_it(stage, rank, size, overlap):
    real = stage(rank, size, 3, overlap_p2p_comm=overlap)
    real.train(2 * size)
    ops = real.ops()
    forwards = [op[1:] for op in ops if op[0] == "forward-compute"]
    used = {id(tensor): ids for (_, tensor), ids in zip(real.used, forwards, strict=True)}
    assert [chunk for chunk, _ in real.used] == [chunk for _, chunk in forwards]
    received = [op[1:] for op in ops if op[0] == "forward-recv"]
    assert received == [used[id(tensor)] for tensor in real.received]
    for name in ("forward", "backward"):
        assert len({op for op in ops if op[0] == f"{name}-compute"}) == 6 * size
        sent = [op[1:] for op in ops if op[0] == f"{name}-send"]
        assert len(sent) == len(set(sent))
        assert set(sent) <= set(forwards)
