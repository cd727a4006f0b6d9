"""DDP and FSDP2 in real training: recorded operations and an unchanged loss."""

import pytest

from tests.torch.launch import needs_torch, train_ranks

pytestmark = [needs_torch, pytest.mark.timeout(900)]

COMPUTES = ("forward-compute", "backward-compute")


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    directory = tmp_path_factory.mktemp("ranks")
    return train_ranks(2, directory, "examples.torch_data_parallel")


def _outputs(ranks, name):
    """Output of the ranks for one way to train."""
    return [each for lines in ranks for each in lines if each["name"] == name]


def _names(step):
    return [name for name, *_ in step]


@pytest.mark.parametrize("name", ["ddp", "fsdp2"])
def test_recording_does_not_change_the_loss(ranks, name):
    for output in _outputs(ranks, name):
        assert output["loss"] == output["without"]


@pytest.mark.nightly
def test_losses_of_three_ranks_under_ddp_are_equal_to_the_last_bit(tmp_path):
    # A mean over ranks is rounded, unless they are two, four, eight ...
    for lines in train_ranks(3, tmp_path, "tests.torch.ddp_losses"):
        assert len(lines) == 3
        for each in lines:
            assert each["recorded"] == each["without"], each["options"]


def test_ddp_records_each_pass_and_buckets_of_the_last_backward(ranks):
    for output in _outputs(ranks, "ddp"):
        for step in output["steps"]:
            names = _names(step)
            assert [each for each in names if each in COMPUTES] == [*COMPUTES, *COMPUTES]
            last_backward = len(names) - 1 - names[::-1].index("backward-compute")
            # The buckets of the second micro-batch, which begin inside its backward.
            assert set(names[last_backward + 1 : -1]) == {"grads-reduce-scatter"}
            assert names.count("grads-reduce-scatter") == len(names) - last_backward - 2
            assert names[-1] == "optimizer"


def test_ddp_optimizer_begins_after_all_buckets_are_reduced(ranks):
    for output in _outputs(ranks, "ddp"):
        for step in output["steps"]:
            ends_s = [end_s for name, _, _, end_s in step if name == "grads-reduce-scatter"]
            assert step[-1][2] >= max(ends_s)


def test_fsdp2_gathers_each_layer_and_scatters_its_gradients(ranks):
    for output in _outputs(ranks, "fsdp2"):
        for step in output["steps"]:
            names = _names(step)
            assert names[0] == "forward-compute"
            assert names.count("grads-reduce-scatter") == 3  # one for each sharded layer
            # Each layer before its forward, and again before its backward except the last layer,
            # which is still gathered.
            before_backward = names[: names.index("backward-compute")]
            assert before_backward.count("params-all-gather") >= 3
            assert names[-1] == "optimizer"


def test_fsdp2_computations_do_not_overlap_collectives(ranks):
    for output in _outputs(ranks, "fsdp2"):
        for step in output["steps"]:
            computed = [(a, b) for name, _, a, b in step if name in COMPUTES]
            waited = [(a, b) for name, _, a, b in step if name not in (*COMPUTES, "optimizer")]
            assert not [1 for a, b in computed for c, d in waited if a < d and c < b]
