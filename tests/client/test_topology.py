"""Topology of a process, and one run key for all ranks."""

import itertools
import logging
import sys
import types

import paceline_client
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paceline_client import run_keys, topology
from paceline_client.topology import Topology

from tests.client.conftest import TOKEN
from tests.client.recorders import WITHIN_S, recorder


@pytest.fixture(autouse=True)
def _clean_environment(caplog, monkeypatch):
    caplog.set_level(logging.WARNING)
    variables = ("PACELINE_RUN_KEY", "TORCHELASTIC_RESTART_COUNT")
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", *variables):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delitem(sys.modules, "torch.distributed", raising=False)


class World:
    """A process group."""


class FakeTorch:
    """torch.distributed of one process; `broadcasts` holds the objects sent by rank 0."""

    def __init__(self, monkeypatch):
        self.rank, self.world_size, self.backend = 0, 1, "gloo"
        self.group = types.SimpleNamespace(WORLD=World())
        self.broadcasts: list[list[str]] = []
        self.devices: list[str | None] = []
        self.cuda = types.SimpleNamespace(
            is_initialized=lambda: True, current_device=lambda: 0, device_count=lambda: 8
        )
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
        self.cuda.is_available = lambda: False
        monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=self.cuda))

    def broadcast(self, objects, src, device):
        assert src == 0
        self.devices.append(device)
        if self.rank == 0:
            self.broadcasts.append(list(objects))
        objects[:] = self.broadcasts[-1]


@pytest.fixture
def torch(monkeypatch):
    return FakeTorch(monkeypatch)


class Mesh:
    """A DeviceMesh of named dimensions on one rank."""

    def __init__(self, rank, **sizes):
        self.mesh_dim_names = tuple(sizes) or None
        self.sizes, self.rank = tuple(sizes.values()), rank
        positions = list(itertools.product(*(range(size) for size in self.sizes)))
        self.coordinate = list(positions[rank]) if rank < len(positions) else None

    def get_coordinate(self):
        return self.coordinate

    def get_rank(self):
        return self.rank

    def size(self, dim=None):
        total = 1
        for size in self.sizes if dim is None else self.sizes[dim : dim + 1]:
            total *= size
        return total


def topology_of(torch, rank, *, named="dp", **sizes):
    mesh = Mesh(rank, **sizes)
    torch.rank, torch.world_size = rank, mesh.size()
    return topology.from_device_mesh(mesh, dp=named)


def test_torchrun_variables_give_the_topology(monkeypatch):
    # 2 stages x 2 data-parallel x 2 tensor-parallel: tp side by side, then dp, then stages.
    monkeypatch.setenv("WORLD_SIZE", "8")
    found = []
    for rank in range(8):
        monkeypatch.setenv("RANK", str(rank))
        position = topology.from_torch(pp_size=2, tp_size=2)
        found.append((position.dp_rank, position.stage, position.records))
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


def test_torch_distributed_takes_precedence_over_the_environment(torch, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "8")
    torch.rank, torch.world_size = 3, 4
    position = topology.from_torch(pp_size=2, vpp_size=3)
    assert (position.rank, position.dp_rank, position.stage) == (3, 1, 1)
    assert (position.dp_size, position.pp_size, position.vpp_size) == (2, 2, 3)


@pytest.mark.parametrize("sizes", [{"pp_size": None}, {"tp_size": "2"}, {"vpp_size": 1.5}])
def test_non_integer_sizes_are_logged_and_nothing_is_recorded(sizes, caplog):
    position = topology.from_torch(**sizes)
    assert not position.records
    assert f"{next(iter(sizes))} is" in caplog.text
    assert position.run_key()


def test_non_numeric_world_size_variable_is_reported(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "x")
    for position in (topology.from_torch(), topology.from_device_mesh(Mesh(0, dp=2))):
        assert "invalid literal" in str(position.problem)


@pytest.mark.parametrize("sizes", [{"pp_size": 3}, {"pp_size": 0}, {"tp_size": 0}, {"pp_size": 8}])
def test_sizes_unfit_for_the_world_size_are_logged_and_not_recorded(torch, sizes, caplog):
    torch.world_size = 4
    position = topology.from_torch(**sizes)
    assert not position.records
    assert "4 ranks cannot be" in str(position.problem)
    assert str(position.problem) in caplog.text


@given(st.permutations(["pp", "dp", "cp", "tp"]), st.tuples(*[st.integers(1, 3)] * 4))
def test_every_worker_of_a_mesh_is_recorded_once(order, sizes):
    with pytest.MonkeyPatch.context() as patched:
        torch, by_name = FakeTorch(patched), dict(zip(order, sizes, strict=True))
        positions = [
            topology_of(torch, rank, **by_name) for rank in range(Mesh(0, **by_name).size())
        ]
    recorded = [(position.dp_rank, position.stage) for position in positions if position.records]
    assert sorted(recorded) == [
        (dp_rank, stage) for dp_rank in range(by_name["dp"]) for stage in range(by_name["pp"])
    ]
    assert {position.world_size for position in positions} == {len(positions)}
    assert [position.rank for position in positions] == list(range(len(positions)))


def test_several_mesh_dimensions_can_be_data_parallel(torch):
    # Rank 5 of (2, 2, 2) is at (1, 0, 1): replica 1, shard 0.
    position = topology_of(torch, 5, named=("replicas", "shards"), replicas=2, shards=2, tp=2)
    assert (position.dp_rank, position.dp_size, position.records) == (2, 4, False)
    position = topology_of(torch, 6, replicas=2, ep=2, pp=2, named="replicas")
    assert (position.dp_rank, position.stage, position.dp_size, position.ep_size) == (3, 0, 4, 2)


def test_unusable_mesh_is_reported_and_not_recorded(torch):
    problems = {
        "'rows' is unknown": topology_of(torch, 0, rows=2),
        "have no names": topology.from_device_mesh(UnnamedMesh()),
        "not in the mesh": topology_of(torch, 7, dp=2),
        "does not tell": topology.from_device_mesh(None),
    }
    torch.world_size = 4
    problems["the mesh has 2 ranks"] = topology.from_device_mesh(Mesh(0, dp=2))
    for problem, position in problems.items():
        assert problem in str(position.problem)
        assert not position.records


class UnnamedMesh(Mesh):
    def __init__(self):
        super().__init__(0, x=2)
        self.mesh_dim_names = None


class ParallelState:
    """Megatron's parallel state on rank 5 of 2 stages x 2 data-parallel x 2 context-parallel."""

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


def test_megatron_parallel_state_gives_the_topology(torch):
    torch.rank, torch.world_size = 5, 8
    position = topology.from_megatron(ParallelState())
    assert repr(position) == "rank 5 of 8: dp rank 0 of 2, stage 1 of 2, dsp 2"
    assert not topology.from_megatron(ParallelState(context=1)).records
    assert not topology.from_megatron(ParallelState(tensor_model=1)).records


def test_missing_megatron_is_reported(monkeypatch):
    monkeypatch.setitem(sys.modules, "megatron", None)
    assert "Megatron's parallel state does not tell" in str(topology.from_megatron().problem)


def test_invalid_topology_is_reported_and_not_recorded():
    fields = {"rank": 0, "dp_rank": 0, "stage": 0, "dp_size": 2, "pp_size": 2}
    assert Topology.given(**fields).records
    for changes, problem in (
        ({"stage": 2}, "stage is 2, but must be less than pp_size, 2"),
        ({"dp_rank": -1}, "dp_rank is -1, not a whole number from 0"),
        ({"tp_size": 0}, "tp_size is 0, not a whole number from 1"),
        ({"rank": 4}, "rank is 4, but must be less than world_size, 4"),
        ({"dp_size": "2"}, "dp_size is '2', not a whole number from 1"),
        ({"shape": 1}, "the topology is incomplete"),
    ):
        position = Topology.given(**{**fields, **changes})
        assert problem in str(position.problem)
        assert not position.records
        assert "unknown position" in repr(position)


def key_after_restart(torch, rank, key=None, **options):
    torch.rank, torch.group.WORLD = rank, World()
    return run_keys.run_key(None, key, **options)


def test_all_ranks_get_the_run_key_of_rank_0(torch):
    torch.world_size = 3
    keys = [key_after_restart(torch, rank) for rank in range(3)]
    assert keys == [torch.broadcasts[0][0]] * 3
    again = [key_after_restart(torch, rank) for rank in range(3)]  # on any number of nodes
    assert again == [torch.broadcasts[1][0]] * 3
    assert again != keys


def test_given_run_key_of_rank_0_reaches_all_and_changes_on_restart(torch, monkeypatch):
    given_keys = ["job-7", None, "job-7", "another"]
    keys = [key_after_restart(torch, rank, each) for rank, each in enumerate(given_keys)]
    assert set(keys) == {torch.broadcasts[0][0]}
    assert keys[0].startswith("job-7-")
    monkeypatch.setenv("PACELINE_RUN_KEY", "job-7")  # set on rank 0 only
    again = key_after_restart(torch, 0)
    monkeypatch.delenv("PACELINE_RUN_KEY")
    assert key_after_restart(torch, 1) == again
    assert again.startswith("job-7-")
    assert again != keys[0]
    key_after_restart(torch, 0)
    assert "job-7" not in key_after_restart(torch, 1, "job-7")  # rank 0 has no key


def test_spooled_run_keeps_its_given_run_key(torch):
    keys = [key_after_restart(torch, rank, "job-7", is_spooled=True) for rank in (0, 1, 0)]
    assert keys == ["job-7"] * 3


def test_second_run_key_of_a_process_needs_no_broadcast(torch):
    first = key_after_restart(torch, 0, "job-7")
    assert run_keys.run_key(None, "job-7") == first
    assert run_keys.run_key(None, first) == first
    assert run_keys.run_key(None, f"{first}-2") == f"{first}-2"
    second = run_keys.run_key(None, "job-8")
    assert second == first.replace("job-7", "job-8")
    assert len(torch.devices) == 1


def test_repeated_run_key_call_broadcasts_once(torch):
    assert run_keys.run_key() == topology.from_torch().run_key()
    assert len(torch.broadcasts) == 1


def test_run_key_has_at_most_256_characters(torch):
    assert len(key_after_restart(torch, 0, "k" * 300)) <= 256


def test_nccl_broadcast_uses_the_local_rank_gpu_if_none_is_chosen(torch, monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "5")
    for backend in ("gloo", "cpu:gloo,cuda:nccl", "nccl"):  # the second broadcasts from the host
        torch.backend = backend
        key_after_restart(torch, 0)
    torch.cuda.current_device = lambda: 2  # chosen by the script
    key_after_restart(torch, 0)
    torch.cuda.is_initialized, torch.cuda.current_device = lambda: False, None  # must not be called
    key_after_restart(torch, 0)
    torch.cuda.device_count = lambda: 1
    key_after_restart(torch, 0)  # one visible GPU
    assert torch.devices == [None, None, "cuda:5", None, "cuda:5", None]


def test_gpu_bound_to_the_group_takes_precedence(torch, monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "5")
    torch.backend, torch.group.WORLD.bound_device_id = "nccl", "cuda:3"
    run_keys.run_key()
    assert torch.devices == ["cuda:3"]


def test_single_process_appends_a_unique_suffix_to_its_run_key(monkeypatch):
    monkeypatch.setenv("PACELINE_RUN_KEY", "slurm-4711")
    keys = [Topology(rank=0, dp_rank=0, stage=0, dp_size=1, pp_size=1).run_key() for _ in range(2)]
    assert all(str(key).startswith("slurm-4711-") for key in keys)
    assert len(set(keys)) == 2
    assert run_keys.run_key(1, keys[0]) == keys[0]
    assert run_keys.run_key(1, "slurm-4711", is_spooled=True) == "slurm-4711"


def test_ranks_without_torch_keep_the_given_key_and_warn_if_stale(monkeypatch, caplog):
    monkeypatch.setenv("PACELINE_RUN_KEY", "slurm-4711")
    assert run_keys.run_key(4) == "slurm-4711"
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "17")
    for new in ("17", "slurm-4711-17"):
        assert run_keys.run_key(4, new) == new
    assert run_keys.run_key(4, is_spooled=True) == "slurm-4711"
    assert caplog.text == ""
    assert run_keys.run_key(4) == "slurm-4711"
    assert "TORCHELASTIC_RESTART_COUNT is 17" in caplog.text


def test_only_a_single_process_generates_a_key_without_torch(monkeypatch, caplog):
    assert run_keys.run_key() != run_keys.run_key()
    assert not caplog.text
    monkeypatch.setenv("WORLD_SIZE", "x")
    assert run_keys.run_key()
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert run_keys.run_key() is None
    assert "start after init_process_group" in caplog.text


def test_failed_broadcast_is_logged_and_raises_nothing(torch, caplog):
    torch.rank = 1  # without a broadcast by rank 0
    assert run_keys.run_key() is None
    assert "cannot agree on a run key" in caplog.text
    assert run_keys.run_key(None, "job-7") == "job-7"


def test_every_rank_joins_the_broadcast_even_if_misconfigured(torch, paceline):
    torch.world_size = 4
    runs = []
    for rank, key in enumerate(["job-7", None]):
        torch.rank, torch.group.WORLD = rank, World()
        runs.append(recorder(paceline.url, rank=rank, run_key=key, gpu_readings=False))
    # A misconfigured rank must not block the others.
    for options in ({"rank": None}, {"gpus": "x"}, {"topology": topology.invalid_topology("lost")}):
        torch.group.WORLD = World()
        run = paceline_client.start("j", paceline.url, TOKEN, **options)
        assert run is paceline_client.NULL
    assert len(torch.devices) == 5
    for run in runs:
        run.record("gc", 0, 1, 1)
        assert run.flush(WITHIN_S)
        run.close()
    assert {body["run_key"] for _, body in paceline.puts} == {torch.broadcasts[0][0]}
