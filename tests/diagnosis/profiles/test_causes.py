"""Verdicts on plain profiles: made ones by hand, and the recordings from a real GPU."""

import json

import pytest

from app.diagnosis.profiles.job import read
from app.diagnosis.profiles.result import profile_result
from app.errors import InvalidRequest, InvalidTrace
from tests.results import result_of
from tests.small_profiles import SHARED_GPU, SHARED_REAL, SmallProfile, needs_profiles

RANKS = (0, 1, 2, 3)


def made(
    folder,
    computing_us,
    late_us=None,
    *,
    num_steps=4,
    loader_us=None,
    optimizer=False,
    ranks=RANKS,
    blocks=None,
):
    """Files of a data-parallel job: each rank computes, then all reduce for 500 us.

    `late_us` is the time that each rank's host launches late, idle on the GPU, and `loader_us` how
    much of it the host waits for the data loader; `blocks` are those of each rank's kernel. Ranks'
    clocks are a second apart.
    """
    world = len(computing_us)
    late_us = late_us or [0] * world
    loader_us = loader_us or [0] * world
    meeting_us = max(a + b for a, b in zip(computing_us, late_us, strict=True))
    step_us = meeting_us + 500
    paths = []
    for rank in ranks:
        profile = SmallProfile(rank, world).backward()
        for step in range(num_steps):
            at = 1_000_000 * rank + step * step_us
            if optimizer:
                profile.optimizer(at + step_us - 1)
            else:
                profile.steps(at, at + step_us, first=step)
            if loader_us[rank]:
                name = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
                profile.event("user_annotation", name, at, loader_us[rank])
            start = at + late_us[rank]
            grid = [blocks[rank], 1, 1] if blocks else None
            profile.kernel(start, computing_us[rank], launch=at + 1, grid=grid)
            arrival = start + computing_us[rank]
            profile.all_reduce(arrival, at + step_us, launch=at + 2, ranks=range(world))
        paths.append(profile.write(folder, f"mine-rank{rank}.json.gz"))
    return paths


def result(paths, steps=None):
    found = profile_result(read(paths, steps))
    json.dumps(found.as_json(), allow_nan=False)
    assert result_of(found.as_json()) == found
    return found


def headline(found):
    return " ".join(found.profile.headline)


def test_a_rank_that_computes_longer_than_its_peers_is_a_slow_worker(tmp_path):
    found = result(made(tmp_path, [6000, 9000, 6000, 6000]))
    (finding,) = found.findings
    assert finding.cause == "slow-worker"
    assert finding.as_json()["culprits"] == [{"dp_rank": 1, "stage": 0, "rank": 1}]
    assert finding.cost == pytest.approx(3000 / 9500)
    assert finding.cost_range is None
    assert finding.evidence["waited_for_s"] == pytest.approx(0.003)
    assert finding.sentence == (
        "rank 1 computes 9 ms a step where its peers take 6 ms (1.5x), and the others wait 3 ms a "
        "step for it; it costs 32 % of the step"
    )
    (culprit,) = found.arrivals.culprits
    assert (culprit.rank, culprit.kind) == (1, "compute")
    assert found.unexplained_share == pytest.approx(0)
    assert found.coverage == pytest.approx(1)
    assert found.step_time_s.recorded == pytest.approx([0.0095] * 4)
    assert found.slowdown is None
    by_rank = found.profile.breakdown
    assert [rank.waiting_s for rank in by_rank] == pytest.approx([0.003, 0, 0.003, 0.003])
    assert [rank.communicating_exposed_s for rank in by_rank] == pytest.approx(
        [0.0035, 0.0005, 0.0035, 0.0035]
    )


def test_a_rank_that_launches_late_is_a_late_host(tmp_path):
    found = result(made(tmp_path, [6000] * 4, [0, 0, 3000, 0]))
    (finding,) = found.findings
    assert finding.cause == "late-host"
    assert finding.culprits[0].rank == 2
    assert finding.evidence["late_because"] == "unknown host work"
    assert finding.cost == pytest.approx(3000 / 9500)
    assert "its host launches late" in finding.sentence


def test_a_rank_that_waits_for_its_loader_is_data_loading(tmp_path):
    found = result(made(tmp_path, [6000] * 4, [0, 0, 3000, 0], loader_us=[50, 50, 2900, 50]))
    (finding,) = found.findings
    assert finding.cause == "data-loading"
    assert finding.evidence["data_wait_s"] == pytest.approx(0.0029)


def test_a_rank_with_larger_kernels_is_no_slow_worker(tmp_path):
    computing_us = [6000, 9000, 6000, 6000]
    found = result(made(tmp_path, computing_us, blocks=[100, 150, 100, 100]))
    (finding,) = found.findings
    assert finding.cause == "sequence-imbalance"
    assert finding.evidence["more_work"] == pytest.approx(0.5)
    assert "because its kernels have 50 % more to do" in finding.sentence
    found = result(made(tmp_path, computing_us, blocks=[100, 101, 100, 100]))
    assert [finding.cause for finding in found.findings] == ["slow-worker"]


def test_a_rank_held_up_by_a_slow_one_is_not_blamed_in_another_group(tmp_path):
    # tp groups [0, 1] and [2, 3], dp groups [0, 2] and [1, 3]; rank 3 is slow, rank 2 waits for it
    # in their tp group and comes late to the dp group with rank 0.
    paths = []
    for rank in range(4):
        profile = SmallProfile(rank, 4).backward()
        pair, other = ([0, 1], rank + 2) if rank < 2 else ([2, 3], rank - 2)
        for step in range(3):
            at = step * 10_000
            profile.steps(at, at + 10_000, first=step)
            own_us = 8000 if rank == 3 else 5000
            tp_end = at + (8100 if rank >= 2 else 5100)
            dp_end = at + 8300
            profile.kernel(at, own_us, launch=at + 1)
            named = {"Process Group Description": "mesh_tp"}
            profile.all_reduce(at + own_us, tp_end, launch=at + 2, ranks=pair, **named)
            named = {"Process Group Description": "mesh_dp"}
            ranks = sorted((rank, other))
            profile.all_reduce(tp_end, dp_end, launch=at + 3, ranks=ranks, **named)
            profile.kernel(dp_end, 1700, launch=at + 4)
        paths.append(profile.write(tmp_path, f"rank{rank}.json"))
    found = result(paths)
    assert [finding.cause for finding in found.findings] == ["slow-worker"]
    assert found.findings[0].culprits[0].rank == 3
    assert found.arrivals.waited_for_s[2] > 0.002
    assert found.unexplained_share == pytest.approx(0)


def test_a_cheap_late_host_is_ruled_out_as_profiler_overhead(tmp_path):
    found = result(made(tmp_path, [6000] * 4, [0, 0, 400, 0]))
    assert found.findings == ()
    late = next(ruled_out for ruled_out in found.ruled_out if ruled_out.cause == "late-host")
    assert "rank 2" in late.reason
    assert late.insufficient
    assert found.unexplained_share == pytest.approx(400 / 6900)
    assert "They wait 5.8 % of it for rank 2, which no cause explains" in headline(found)


def test_in_a_healthy_job_no_rank_is_blamed(tmp_path):
    found = result(made(tmp_path, [6000, 6010, 5990, 6005]))
    assert found.findings == ()
    assert found.unexplained_share < 0.01
    assert "for no rank for more than" in headline(found)


def test_low_coverage_gives_no_verdict(tmp_path):
    found = result(made(tmp_path, [2000, 3000, 2000, 2000], [6000] * 4))
    assert found.findings is None
    assert found.coverage < 0.6
    assert "No verdict" in headline(found)
    assert all(ruled_out.insufficient for ruled_out in found.ruled_out)


def test_with_some_ranks_only_none_is_blamed_but_the_last_one_is_mentioned(tmp_path):
    found = result(made(tmp_path, [6000, 9000, 6000, 6000], ranks=(0, 1)))
    assert found.profile.ranks_read == (0, 1)
    assert (found.window.missing, found.window.state) == ((2, 3), "incomplete")
    assert found.findings == ()
    assert "profiles of 2 of 4 ranks" in headline(found)
    assert "Of those read, rank 1 comes last" in headline(found)
    assert "waits in them are at least what is shown" in found.profile.notes[0]


def test_one_rank_alone_shows_no_waits(tmp_path):
    found = result(made(tmp_path, [6000, 9000, 6000, 6000], ranks=(0,)))
    assert found.findings is None
    assert found.arrivals is None
    assert found.profile.breakdown[0].waiting_s is None
    assert "give the other ranks' files" in headline(found)


def test_without_profiler_steps_the_first_step_is_left_out(tmp_path):
    found = result(made(tmp_path, [6000, 9000, 6000, 6000], optimizer=True))
    assert found.steps == (1, 2, 3)
    assert found.skipped_steps[0].step == 0
    assert found.findings[0].culprits[0].rank == 1
    assert found.profile.steps_from == "Optimizer.step"


def test_named_steps_are_analysed_alone(tmp_path):
    paths = made(tmp_path, [6000, 9000, 6000, 6000])
    assert result(paths, "1-2").steps == (1, 2)
    with pytest.raises(InvalidRequest, match="there is no step from 7 to 9"):
        read(paths, "7-9")
    with pytest.raises(InvalidRequest, match="no step can be analysed: no file has it"):
        read(paths, "7")


def test_a_damaged_file_is_reported_and_the_others_are_analysed(tmp_path):
    paths = made(tmp_path, [6000, 9000, 6000, 6000])
    paths[3].write_bytes(paths[3].read_bytes()[:-30])
    found = result(paths)
    assert found.profile.ranks_read == (0, 1, 2)
    assert found.profile.refusals == (
        "mine-rank3.json.gz: the gzip file is damaged or cut off: copy it again",
    )


def test_files_of_different_jobs_are_refused_by_name(tmp_path):
    paths = made(tmp_path, [6000] * 4)
    other = SmallProfile(1, 8).backward().steps(0, 10).kernel(1, 5, launch=1)
    twice = SmallProfile(0, 4).backward().steps(0, 10).kernel(1, 5, launch=1)
    beyond = SmallProfile(9, 4).backward().steps(0, 10).kernel(1, 5, launch=1)
    unknown = SmallProfile(None, None).backward().steps(0, 10).kernel(1, 5, launch=1)
    without = SmallProfile(5, None).backward().kernel(1, 5, launch=1)
    wrong = [
        other.write(tmp_path, "a.json"),
        twice.write(tmp_path, "b.json"),
        beyond.write(tmp_path, "c.json"),
        unknown.write(tmp_path, "d.json"),
        without.write(tmp_path, "e.json"),
    ]
    refusals = result([paths[0], *wrong]).profile.refusals
    assert [each.split(": ")[0] for each in refusals] == [path.name for path in wrong]
    for refusal, words in zip(
        refusals,
        ["of 8 ranks", "is of rank 0, as mine-rank0", "of rank 9", "which rank", "steps come from"],
        strict=True,
    ):
        assert words in refusal


def test_if_no_file_is_readable_the_error_gives_the_reasons(tmp_path):
    empty = tmp_path / "rank0.json"
    empty.write_text("{}")
    with pytest.raises(InvalidTrace, match=r"^rank0\.json: has 0 lists of traceEvents"):
        read([empty])
    with pytest.raises(InvalidTrace, match=r"^none of the 2 files can be analysed: rank0\.json"):
        read([empty, tmp_path / "gone.json"])


def test_ranks_without_a_common_step_are_refused(tmp_path):
    one = SmallProfile(0, 2).backward().steps(0, 10, first=1).kernel(1, 5, launch=1)
    two = SmallProfile(1, 2).backward().steps(0, 10, first=5).kernel(1, 5, launch=1)
    with pytest.raises(InvalidTrace, match="no step is in all files"):
        read([one.write(tmp_path, "a.json"), two.write(tmp_path, "b.json")])


@needs_profiles
@pytest.mark.parametrize("name", ["ddp-slow-on", "ddp-slow-off", "fsdp2-slow-on", "pipe-slow-on"])
def test_the_slow_rank_of_a_real_gpu_is_named_and_no_other_cause(name):
    found = result(sorted(SHARED_GPU.glob(f"nccl-{name}-rank*.json.gz")))
    assert [finding.cause for finding in found.findings] == ["slow-worker"]
    assert [culprit.rank for culprit in found.findings[0].culprits] == [1]
    assert found.arrivals.culprits[0].rank == 1


@needs_profiles
def test_a_stage_that_waits_for_the_slow_rank_leaves_nothing_unexplained():
    # Rank 3 comes last in its group because rank 1 sends late.
    found = result(sorted(SHARED_GPU.glob("nccl-pipe-slow-on-rank*.json.gz")))
    assert found.arrivals.waited_for_s[3] > 0.04
    assert found.unexplained_share < 0.01
    low, high = found.findings[0].cost_range
    assert low < 1 - 92.2 / 147.7 + 0.01 < high


@needs_profiles
def test_two_of_128_ranks_give_times_but_no_verdict():
    found = result(sorted(SHARED_REAL.glob("hta-sampled-rank*.json.gz")))
    assert found.findings is None
    assert found.coverage == pytest.approx(0.457, abs=0.002)
    assert found.job.world_size == 128
    assert found.profile.breakdown[0].waiting_s is None


@needs_profiles
@pytest.mark.parametrize(
    ("name", "words"),
    [("hta-no-gpu", "a CPU-only profile"), ("tracelens-vllm-inference", "an inference profile")],
)
def test_profiles_without_gpu_training_are_refused_by_name(name, words):
    with pytest.raises(InvalidTrace, match=f"^{name}.json.gz: {words}"):
        read([SHARED_REAL / f"{name}.json.gz"])
