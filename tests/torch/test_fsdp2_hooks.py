"""The wrappers of FSDP2's collectives, without PyTorch."""

import sys
from types import SimpleNamespace

import pytest
from paceline_client.integrations import fsdp2

from tests.torch.test_hooks import Listing


class Sharded:
    """The hooked part of an FSDPModule, with custom collectives."""

    def __init__(self, said):
        self.group = SimpleNamespace(
            _all_gather_comm=lambda **_: said.append("gathered"),
            _reduce_scatter_comm=lambda **_: said.append("scattered"),
        )

    def modules(self):
        return [self]

    def _get_fsdp_state(self):
        return SimpleNamespace(_fsdp_param_groups=[self.group])

    def set_custom_all_gather(self, comm):
        self.group._all_gather_comm = comm

    def set_custom_reduce_scatter(self, comm):
        self.group._reduce_scatter_comm = comm


def test_fsdp2_hooks_keep_custom_collectives(monkeypatch):
    recorder = Listing()
    fsdp = SimpleNamespace(FSDPModule=Sharded)
    monkeypatch.setitem(sys.modules, "torch.distributed.fsdp", fsdp)
    model, inputs = Sharded(recorder.said), SimpleNamespace(device=SimpleNamespace(type="cuda"))
    for _ in ("once", "and once more, which changes nothing"):
        assert fsdp2.attach(recorder, model, computes=False)
    model.group._all_gather_comm(input_tensor=inputs)
    model.group._reduce_scatter_comm(input_tensor=inputs)
    assert recorder.said == [
        "params-all-gather -1/-1 begins",
        "gathered",
        "params-all-gather -1/-1 ends",
        "grads-reduce-scatter -1/-1 begins",
        "scattered",
        "grads-reduce-scatter -1/-1 ends",
    ]


def test_partly_unsupported_model_is_left_unchanged(monkeypatch, caplog):
    class SeveralGroups(Sharded):
        def set_custom_all_gather(self, comm):
            raise ValueError("not supported with multiple param groups")

    monkeypatch.setitem(sys.modules, "torch.distributed.fsdp", SimpleNamespace(FSDPModule=Sharded))
    recorder = Listing()
    first, second = Sharded(recorder.said), SeveralGroups(recorder.said)
    monkeypatch.setattr(first, "modules", lambda: [first, second])
    before = dict(vars(first.group)), dict(vars(second.group))
    assert not fsdp2.attach(recorder, first, computes=False)
    assert (vars(first.group), vars(second.group)) == before
    assert "FSDP2 is not recorded: not supported with multiple param groups" in caplog.text


def test_pytorch_has_the_private_methods_where_fsdp2_waits():
    """If PyTorch removes these private methods, waits are no longer recorded without any error."""
    within = "torch.distributed.fsdp._fully_shard"
    group = pytest.importorskip(f"{within}._fsdp_param_group").FSDPParamGroup
    state = pytest.importorskip(f"{within}._fsdp_state").FSDPState
    assert callable(group.wait_for_unshard)
    assert callable(group.post_backward)
    assert callable(state._root_post_backward_final_callback)
