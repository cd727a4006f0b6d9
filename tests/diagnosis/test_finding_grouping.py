from app.diagnosis.finding import group_culprits
from app.result.finding import Culprit
from app.trace.job import Parallelism

SIZES = Parallelism(4, 2)
# Four workers a host: one host for each stage but for the last replica.
HOSTS = {(dp, stage): f"host-{2 * stage + (dp == 3)}" for dp in range(4) for stage in range(2)}


def test_one_worker_is_named_with_its_host():
    assert group_culprits([(1, 0)], HOSTS, SIZES) == (Culprit(1, 0, "host-0"),)
    assert group_culprits([(1, 0)], {}, SIZES) == (Culprit(1, 0),)


def test_all_workers_of_a_host_are_grouped_as_the_host():
    assert group_culprits([(0, 0), (1, 0), (2, 0)], HOSTS, SIZES) == (Culprit(host="host-0"),)


def test_the_only_worker_of_a_host_stays_a_worker():
    assert group_culprits([(3, 0)], HOSTS, SIZES) == (Culprit(3, 0, "host-1"),)


def test_some_workers_of_a_host_are_not_grouped():
    assert group_culprits([(0, 0), (2, 0)], HOSTS, SIZES) == (
        Culprit(0, 0, "host-0"),
        Culprit(2, 0, "host-0"),
    )


def test_a_host_with_one_healthy_worker_is_no_culprit():
    hosts = {(dp, 0): "host-0" for dp in range(8)}
    sizes = Parallelism(16, 1)
    assert group_culprits([(dp, 0) for dp in range(8)], hosts, sizes) == (Culprit(host="host-0"),)
    assert len(group_culprits([(dp, 0) for dp in range(7)], hosts, sizes)) == 7


def test_all_stages_of_a_dp_rank_are_grouped():
    assert group_culprits([(2, 1), (2, 0), (0, 1)], {}, SIZES) == (
        Culprit(dp_rank=2),
        Culprit(0, 1),
    )


def test_all_dp_ranks_of_a_stage_are_grouped():
    assert group_culprits([(dp, 1) for dp in range(4)], {}, SIZES) == (Culprit(stage=1),)


def test_culprits_keep_their_order_without_repeats():
    assert group_culprits([(3, 1), (0, 0), (3, 1)], {}, SIZES) == (Culprit(3, 1), Culprit(0, 0))
