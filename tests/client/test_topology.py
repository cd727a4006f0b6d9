"""Each process finds its place, and all ranks of a run the same key."""

import itertools
import logging
import sys
import types

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline_client import topology
from paceline_client.topology import Topology


@pytest.fixture(autouse=True)
def _no_job(caplog, monkeypatch):
    caplog.set_level(logging.WARNING)
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "PACELINE_RUN_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delitem(sys.modules, "torch.distributed", raising=False)


class World:
    """A process group."""


class Torch:
    """torch.distributed of one process; `handed` is what the first rank's broadcasts have held."""

    def __init__(self, monkeypatch):
        self.rank, self.world_size, self.backend = 0, 1, "gloo"
        self.group = types.SimpleNamespace(WORLD=World())
        self.handed: list[str] = []
        self.devices: list[str | None] = []
        self.cuda = types.SimpleNamespace(current_device=lambda: 0, device_count=lambda: 8)
        dist = types.SimpleNamespace(
            is_available=lambda: True,
            is_initialized=lambda: True,
            get_rank=lambda: self.rank,
            get_world_size=lambda: self.world_size,
            get_backend=lambda: self.backend,
            broadcast_object_list=self.broadcast,
            group=self.group,
        )
        monkeypatch.setitem(sys.modules, "torch.distributed", dist)
        monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=self.cuda))

    def broadcast(self, objects, src, device):
        assert src == 0
        self.devices.append(device)
        if self.rank == 0:
            self.handed.append(objects[0])
        objects[0] = self.handed[-1]


@pytest.fixture
def torch(monkeypatch):
    return Torch(monkeypatch)


class Mesh:
    """A DeviceMesh of named dimensions, seen by one rank."""

    def __init__(self, rank, **sizes):
        self.mesh_dim_names = tuple(sizes) or None
        self.sizes, self.rank = tuple(sizes.values()), rank
        places = list(itertools.product(*(range(size) for size in self.sizes)))
        self.place = list(places[rank]) if rank < len(places) else None

    def get_coordinate(self):
        return self.place

    def get_rank(self):
        return self.rank

    def size(self, dim=None):
        total = 1
        for size in self.sizes if dim is None else self.sizes[dim : dim + 1]:
            total *= size
        return total


def of_mesh(torch, rank, *, named="dp", **sizes):
    mesh = Mesh(rank, **sizes)
    torch.rank, torch.world_size = rank, mesh.size()
    return topology.from_device_mesh(mesh, dp=named)


def test_torchruns_variables_are_enough(monkeypatch):
    # 2 stages x 2 data-parallel x 2 tensor-parallel: tp side by side, then dp, then stages.
    monkeypatch.setenv("WORLD_SIZE", "8")
    found = []
    for rank in range(8):
        monkeypatch.setenv("RANK", str(rank))
        place = topology.from_torch(pp_size=2, tp_size=2)
        found.append((place.dp_rank, place.stage, place.records))
    assert found == [
        (0, 0, True),
        (0, 0, False),
        (1, 0, True),
        (1, 0, False),
        (0, 1, True),
        (0, 1, False),
        (1, 1, True),
        (1, 1, False),
    ]


def test_torch_itself_is_believed_before_the_variables(torch, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "8")
    torch.rank, torch.world_size = 3, 4
    place = topology.from_torch(pp_size=2, vpp_size=3)
    assert (place.rank, place.dp_rank, place.stage) == (3, 1, 1)
    assert (place.dp_size, place.pp_size, place.vpp_size) == (2, 2, 3)


@pytest.mark.parametrize("sizes", [{"pp_size": 3}, {"pp_size": 0}, {"tp_size": 0}, {"pp_size": 8}])
def test_stages_that_do_not_fit_the_ranks_are_said_and_nothing_recorded(torch, sizes, caplog):
    torch.world_size = 4
    place = topology.from_torch(**sizes)
    assert not place.records
    assert "4 ranks cannot be" in str(place.problem)
    assert str(place.problem) in caplog.text


@given(st.permutations(["pp", "dp", "cp", "tp"]), st.tuples(*[st.integers(1, 3)] * 4))
def test_every_worker_of_a_mesh_is_recorded_once(order, sizes):
    with pytest.MonkeyPatch.context() as patched:
        torch, by_name = Torch(patched), dict(zip(order, sizes, strict=True))
        places = [of_mesh(torch, rank, **by_name) for rank in range(Mesh(0, **by_name).size())]
    recorded = [(place.dp_rank, place.stage) for place in places if place.records]
    assert sorted(recorded) == [
        (dp_rank, stage) for dp_rank in range(by_name["dp"]) for stage in range(by_name["pp"])
    ]
    assert {place.world_size for place in places} == {len(places)}
    assert [place.rank for place in places] == list(range(len(places)))


def test_several_dimensions_may_be_data_parallel(torch):
    # Rank 5 of (2, 2, 2) is at (1, 0, 1): replica 1, shard 0.
    place = of_mesh(torch, 5, named=("replicas", "shards"), replicas=2, shards=2, tp=2)
    assert (place.dp_rank, place.dp_size, place.records) == (2, 4, False)
    place = of_mesh(torch, 6, replicas=2, ep=2, pp=2, named="replicas")
    assert (place.dp_rank, place.stage, place.dp_size, place.ep_size) == (3, 0, 4, 2)


def test_a_mesh_that_does_not_tell_is_said_and_nothing_recorded(torch):
    problems = {
        "'rows' is none that is known": of_mesh(torch, 0, rows=2),
        "have no names": topology.from_device_mesh(Nameless()),
        "not in the mesh": of_mesh(torch, 7, dp=2),
        "does not tell": topology.from_device_mesh(None),
    }
    torch.world_size = 4
    problems["holds 2 ranks"] = topology.from_device_mesh(Mesh(0, dp=2))
    for problem, place in problems.items():
        assert problem in str(place.problem)
        assert not place.records


class Nameless(Mesh):
    def __init__(self):
        super().__init__(0, x=2)
        self.mesh_dim_names = None


class ParallelState:
    """Megatron's, of rank 5 of 2 stages x 2 data-parallel x 2 context-parallel."""

    def __init__(self, **ranks):
        self.ranks = {"data": 0, "pipeline_model": 1, "tensor_model": 0, "context": 0, **ranks}

    def get_data_parallel_rank(self, with_context_parallel):
        assert not with_context_parallel
        return self.ranks["data"]

    def get_data_parallel_world_size(self, with_context_parallel):
        assert not with_context_parallel
        return 2

    def get_virtual_pipeline_model_parallel_world_size(self):
        return None

    def get_expert_model_parallel_world_size(self):
        return 1

    def __getattr__(self, name):
        kind, of, what = name.removeprefix("get_").partition("_parallel_")
        assert of
        sizes = {"pipeline_model": 2, "tensor_model": 1, "context": 2}
        return lambda: self.ranks[kind] if what == "rank" else sizes[kind]


def test_megatrons_parallel_state_tells_all(torch):
    torch.rank, torch.world_size = 5, 8
    place = topology.from_megatron(ParallelState())
    assert repr(place) == "rank 5 of 8: dp rank 0 of 2, stage 1 of 2, dsp 2"
    assert not topology.from_megatron(ParallelState(context=1)).records
    assert not topology.from_megatron(ParallelState(tensor_model=1)).records


def test_megatron_that_is_not_there_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "megatron", None)
    assert "Megatron's parallel state does not tell" in str(topology.from_megatron().problem)


def test_a_place_that_cannot_be_is_said_and_nothing_recorded():
    fields = {"rank": 0, "dp_rank": 0, "stage": 0, "dp_size": 2, "pp_size": 2}
    assert Topology.given(**fields).records
    for changes, problem in (
        ({"stage": 2}, "stage is 2, and pp_size 2: it has to be less"),
        ({"dp_rank": -1}, "dp_rank is -1: a whole number from 0 is wanted"),
        ({"tp_size": 0}, "tp_size is 0: a whole number from 1 is wanted"),
        ({"rank": 4}, "rank is 4, and world_size 4: it has to be less"),
        ({"dp_size": "2"}, "dp_size is '2': a whole number from 1 is wanted"),
        ({"shape": 1}, "the topology is not told whole"),
    ):
        place = Topology.given(**{**fields, **changes})
        assert problem in str(place.problem)
        assert not place.records
        assert "nowhere" in repr(place)


def restarted(torch, rank):
    torch.rank, torch.group.WORLD = rank, World()
    return topology.run_key()


def test_all_ranks_of_a_run_get_the_key_of_the_first_one(torch):
    torch.world_size = 3
    keys = [restarted(torch, rank) for rank in range(3)]
    assert keys == [torch.handed[0]] * 3
    again = [restarted(torch, rank) for rank in range(3)]  # on as many nodes as you like
    assert again == [torch.handed[1]] * 3
    assert again != keys


def test_who_asks_again_is_answered_without_another_broadcast(torch):
    assert topology.run_key() == topology.from_torch().run_key()
    assert len(torch.handed) == 1


def test_a_rank_that_has_not_chosen_its_gpu_sends_from_its_own(torch, monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "5")
    topology.run_key()
    torch.backend = "cpu:gloo,cuda:nccl"
    restarted(torch, 0)
    torch.cuda.current_device = lambda: 2  # the script's own choice
    restarted(torch, 0)
    torch.cuda.current_device, torch.cuda.device_count = lambda: 0, lambda: 1
    restarted(torch, 0)  # it sees no more than one
    assert torch.devices == [None, "cuda:5", None, None]


def test_a_key_that_is_told_comes_first(torch, monkeypatch):
    monkeypatch.setenv("PACELINE_RUN_KEY", "slurm-4711")
    assert topology.alone().run_key() == "slurm-4711"


def test_without_torch_only_a_process_alone_makes_up_a_key(monkeypatch, caplog):
    assert topology.run_key() != topology.run_key()
    assert not caplog.text
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert topology.run_key() is None
    assert "start after init_process_group" in caplog.text


def test_a_broadcast_that_fails_costs_no_training(torch, caplog):
    torch.rank = 1  # and nothing was handed out
    assert topology.run_key() is None
    assert "cannot agree on a run key" in caplog.text


def test_real_process_groups_agree_as_the_twin_does(torch, monkeypatch):
    monkeypatch.undo()  # the real one, if it is there
    monkeypatch.delenv("PACELINE_RUN_KEY", raising=False)
    dist = pytest.importorskip("torch.distributed", reason="torch is not installed")
    keys = []
    for _ in range(2):
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        keys += [topology.run_key(), topology.from_torch().run_key()]
        dist.destroy_process_group()
    assert keys[0] == keys[1] != keys[2] == keys[3]
