"""The groups that a worker's ranks communicate in."""

from app.api.routes.windows.arrivals import groups_of_worker
from tests.arrival_results import block
from tests.results import window_result


def result(**changes):
    return window_result(arrivals=block() | changes)


def named(groups):
    return [each.name for each in groups]


def test_ranks_of_the_worker_are_marked_among_members():
    [group] = groups_of_worker(result(), 2, 0)
    assert [(each.rank, each.is_own) for each in group.members] == [
        *((2, True), (0, False), (1, False), (3, False)),
    ]
    assert (group.axis, group.num_ranks, group.transfer_s) == ("dp", 4, 0.5)
    assert group.members[0].waited_for_s == 0.5


def test_groups_without_a_rank_of_the_worker_are_left_out():
    other = block()["groups"][0] | {"name": "tp 3", "axis": "tp", "ranks": [1, 3]}
    other["members"] = [each for each in other["members"] if each["rank"] in (1, 3)]
    both = result(groups=[other, *block()["groups"]])
    assert named(groups_of_worker(both, 2, 0)) == ["dp, stage 0"]
    assert named(groups_of_worker(both, 3, 0)) == ["tp 3", "dp, stage 0"]
    assert groups_of_worker(both, 2, 1) == []


def test_all_gpus_of_a_worker_are_its_own_ranks():
    inside = {"dp_rank": [0, 0, 1, 1], "local_rank": [0, 1, 2, 3]}
    [group] = groups_of_worker(result(**inside), 1, 0)
    assert {each.rank for each in group.members if each.is_own} == {2, 3}


def test_own_rank_is_listed_in_a_large_group():
    large = block(tuple(float(100 - rank) for rank in range(100)), members=16)
    large["groups"][0]["ranks"] = list(range(64))
    [group] = groups_of_worker(window_result(arrivals=large), 80, 0)
    own = group.members[-1]
    assert (own.rank, own.is_own, own.waited_for_s) == (80, True, 20.0)
    assert len(group.members) == 17
    # A group of other stages may have it: unknown, so not listed.
    large["groups"][0]["axis"] = "ep"
    assert groups_of_worker(window_result(arrivals=large), 80, 0) == []


def test_a_result_without_arrivals_has_no_groups():
    assert groups_of_worker(window_result(), 0, 0) == []
