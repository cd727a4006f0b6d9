"""The flight recorder of the installed PyTorch in a real job of four gloo processes."""

import pytest

from tests.torch.launch import needs_torch, train_ranks

pytestmark = [needs_torch, pytest.mark.nightly, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    directory = tmp_path_factory.mktemp("ranks")
    return [lines[0] for lines in train_ranks(4, directory, "tests.torch.flight_recorder_ranks")]


def test_flight_recorder_entries_name_groups_with_known_ranks(ranks):
    for output in ranks:
        rank = output["rank"]
        tp, dp = sorted({rank, rank ^ 1}), sorted({rank, rank ^ 2})
        names = [(name.rpartition(":")[2], members) for name, members, _ in output["collectives"]]
        assert names == [
            ("all_reduce", tp),
            ("all_reduce", tp),
            ("all_reduce", dp),
            ("all_gather", [0, 1, 2, 3]),
        ]
    for at in range(4):  # sequence numbers are the same on all members
        assert len({output["collectives"][at][2] for output in ranks}) == 1


def test_ranks_of_a_mesh_and_of_a_process_group_are_known(ranks):
    for output in ranks:
        rank = output["rank"]
        assert output["mesh_ranks"] == [sorted({rank, rank ^ 1}), sorted({rank, rank ^ 2})]


def test_gloo_has_no_durations_and_gives_no_rows(ranks):
    assert [(output["has_rows"], output["is_over"]) for output in ranks] == [(False, True)] * 4


def test_entries_with_durations_give_groups_with_axes_and_rows(ranks):
    for output in ranks:
        rank = output["rank"]
        assert output["num_rows"] == 4
        assert [ranks for _, ranks in output["groups"]] == [
            sorted({rank, rank ^ 1}),
            sorted({rank, rank ^ 2}),
            [0, 1, 2, 3],
        ]
        assert [axis for axis, _ in output["groups"]] == ["tp", "dp", ""]
