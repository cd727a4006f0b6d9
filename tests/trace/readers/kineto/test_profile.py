"""Plain profiles as they are read: steps, kernels and collectives, worked out by hand."""

import gzip
import json

import numpy as np
import pytest

from app.errors import InvalidTrace
from app.trace.collectives import RECEIVE, SEND
from app.trace.readers.kineto import event_names, gpu_events
from app.trace.readers.kineto.collective_table import collective_table
from app.trace.readers.kineto.profile import read
from tests.small_profiles import (
    ALL_REDUCE,
    SEND_RECV,
    SHARED_GPU,
    SHARED_REAL,
    SmallProfile,
    needs_profiles,
)


def refusal(path):
    with pytest.raises(InvalidTrace) as caught:
        read(path)
    message = str(caught.value)
    assert message.startswith(path.name)
    assert "\n" not in message
    return message


def made(rank=0, world=1, **more):
    return SmallProfile(rank, world, **more).backward()


def test_a_kernel_belongs_to_the_step_that_launched_it_and_steps_end_with_their_kernels(tmp_path):
    # The host is done with both steps before the GPU has done the first.
    profile = made().steps(0, 10, 20)
    profile.kernel(5, 30, launch=2).kernel(35, 40, launch=12)
    found = read(profile.write(tmp_path))
    assert found.steps_from == "ProfilerStep"
    assert found.steps == (0, 1)
    assert found.work.step.tolist() == [0, 1]
    assert found.bounds_ns.tolist() == [5_000, 35_000, 75_000]
    assert found.step_s.tolist() == pytest.approx([30e-6, 40e-6])


def test_the_first_step_is_as_long_as_on_the_host_where_that_is_longer(tmp_path):
    profile = made().steps(0, 100, 200).kernel(60, 30, launch=2).kernel(160, 30, launch=150)
    # Its last kernel ends at 90; the host took 100 for it.
    assert read(profile.write(tmp_path)).step_s.tolist() == pytest.approx([100e-6, 100e-6])


def test_a_first_step_begins_where_the_gpu_was_done_with_those_before(tmp_path):
    profile = made().steps(0, 10).kernel(-20, 45).kernel(30, 10, launch=5)
    found = read(profile.write(tmp_path))
    assert found.work.step.tolist() == [-1, 0]
    assert found.bounds_ns.tolist() == [30_000, 40_000]
    assert found.num_unlaunched == 1


def test_without_profiler_steps_a_step_ends_with_the_last_optimizer(tmp_path):
    profile = made()
    for end in (50, 100):
        profile.event("user_annotation", "Optimizer.step#Inner.step", end - 20, 5)
        profile.event("user_annotation", "Optimizer.step#Outer.step", end - 1, 1)
    profile.kernel(10, 5, launch=5).kernel(60, 5, launch=49).kernel(70, 5, launch=51)
    profile.kernel(170, 5, launch=120)  # of a step that is not whole
    found = read(profile.write(tmp_path))
    assert found.steps_from == "Optimizer.step"
    assert found.steps == (0, 1)
    assert found.work.step.tolist() == [0, 0, 1, -1]


def test_a_file_without_any_marks_is_one_step(tmp_path):
    found = read(made().kernel(10, 5, launch=5).kernel(60, 5).write(tmp_path))
    assert found.steps_from == "file"
    assert found.steps == (0,)
    assert found.step_s.tolist() == pytest.approx([55e-6])


def test_marks_on_the_gpu_alone_are_steps_by_the_start_of_kernels(tmp_path):
    profile = SmallProfile()
    for number, start in ((4, 0), (5, 100)):
        profile.event("gpu_user_annotation", f"ProfilerStep#{number}", start, 100, 7)
    found = read(profile.kernel(10, 50).kernel(110, 60).write(tmp_path))
    assert found.steps == (4, 5)
    assert found.work.step.tolist() == [0, 1]


def test_numbers_that_repeat_are_counted_anew(tmp_path):
    profile = made().steps(0, 10, first=3).steps(20, 30, first=3)
    found = read(profile.kernel(1, 5, launch=1).kernel(21, 5, launch=21).write(tmp_path))
    assert found.steps == (0, 1)


def test_files_of_2021_and_of_rocm_are_read(tmp_path):
    old = SmallProfile().event("Operator", "MulBackward0", 0, 1)
    old.event("Operator", "ProfilerStep#1", 0, 100)
    old.kernel(5, 10, launch=1, category="Kernel", runtime="Runtime")
    old.kernel(15, 10, launch=2, category="Memcpy", runtime="Runtime", function="cudaMemcpyAsync")
    found = read(old.write(tmp_path, "old_rank0.json.gz"))
    assert found.work.kind.tolist() == [0, 2]
    assert found.work.step.tolist() == [0, 0]
    rocm = made().kernel(5, 10, launch=1, function="hipExtModuleLaunchKernel")
    rocm.kernel(15, 10, launch=2, function="hipLaunchKernel", name="rcclDevKernel_Generic(x)")
    found = read(rocm.write(tmp_path, "rocm_rank0.json"))
    assert found.is_amd
    assert found.work.kind.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("events", "words"),
    [
        ([("cpu_op", "aten::mm")], "CPU-only profile"),
        ([], "no events of torch.profiler"),
        ([("cpu_op", "aten::mm"), ("mtia_ccp_events", "matmul")], "MTIA devices"),
        ([("cpu_op", "aten::mm"), ("hpu_op", "matmul")], "Gaudi"),
    ],
)
def test_other_profiles_are_refused_naming_their_kind(tmp_path, events, words):
    profile = SmallProfile()
    for category, name in events:
        profile.event(category, name, 0, 5)
    assert words in refusal(profile.write(tmp_path))


def test_inference_is_refused_and_a_profile_of_kernels_alone_is_not(tmp_path):
    served = SmallProfile().event("cpu_op", "vllm::unified_attention", 0, 1).kernel(5, 5, launch=1)
    assert "inference profile of a language model server" in refusal(served.write(tmp_path))
    forward = SmallProfile().event("cpu_op", "aten::mm", 0, 1).kernel(5, 5, launch=1)
    assert "inference profile: it has no backward pass" in refusal(forward.write(tmp_path))
    assert read(SmallProfile().kernel(5, 5, launch=1).write(tmp_path)).steps_from == "file"


def test_kernels_outside_all_steps_are_reported(tmp_path):
    profile = made().steps(0, 10).kernel(50, 5, launch=30)
    assert "none of its 1 kernels was launched in one of its 1 steps" in refusal(
        profile.write(tmp_path)
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"ts": "soon"}, "ts is 'soon'"),
        ({"ts": 1e300}, "ts is '1e+300'"),
        ({"dur": None}, "dur is 'None'"),
        ({"dur": -1}, "dur is -1"),
        ({"name": 5}, "name is no text"),
        ({"args": 5}, "args: "),
    ],
)
def test_an_odd_kernel_is_refused_by_its_event(tmp_path, change, words):
    profile = made().kernel(5, 5, launch=1)
    profile.events[-1] |= change
    message = refusal(profile.write(tmp_path))
    assert "event 3" in message
    assert words in message


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"", "want a trace that torch.profiler has exported"),
        (b"5", "want a trace that torch.profiler has exported"),
        (b'{"rank": 1}', "0 lists of traceEvents"),
        (b'{"traceEvents": [', "is no JSON"),
        (b'{"traceEvents": [{"ph": "X"', "ends in the middle"),
        (b'{"traceEvents": {}}', "want '['"),
        (b'{"distributedInfo": {"rank": "x"}, "traceEvents": []}', "of this format"),
        (b'{"distributedInfo": {"rank": -4}, "traceEvents": []}', "distributedInfo: rank is -4"),
        (b"\x80\x81", "want a trace that torch.profiler has exported"),
        (b'{"a":' + b"[" * 100_000, "middle of a value"),
    ],
)
def test_a_damaged_file_is_refused_in_one_line(tmp_path, text, words):
    path = tmp_path / "rank0.json"
    path.write_bytes(text)
    assert words in refusal(path)


def test_limits_hold(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_events, "MAX_KERNELS", 2)
    monkeypatch.setattr(gpu_events, "MAX_MARKS", 2)
    many = made().kernel(1, 1).kernel(2, 1).kernel(3, 1)
    assert "more than 2 kernels" in refusal(many.write(tmp_path))
    marks = made().steps(0, 1, 2, 3)
    assert "more than 2 steps and collectives" in refusal(marks.write(tmp_path))


def test_ranks_of_a_group_are_read_as_text_as_list_and_by_start_and_stride():
    def ranks(**args):
        found = gpu_events._collective(
            gpu_events._ARGS.decode(json.dumps({"Collective name": "allreduce"} | args))
        )
        assert found is not None
        return found.ranks

    assert ranks(**{"Process Group Ranks": "[0, 2]", "Group size": 2}) == (0, 2)
    assert ranks(**{"Process Group Ranks": [2, 0]}) == (0, 2)
    cut = {"Process Group Ranks": "[0, 1, ..., 127]", "Group size": 4}
    assert ranks(**cut) == ()
    assert ranks(**cut, **{"Global rank start": 1, "Global rank stride": 8}) == (1, 9, 17, 25)
    assert ranks(**{"Process Group Ranks": "[0, 1]", "Group size": 4}) == ()
    assert ranks(**{"Process Group Ranks": [-1, 0]}) == ()


@pytest.mark.parametrize(
    ("written", "kind"),
    [
        ("allreduce", "all-reduce"),
        ("all_reduce", "all-reduce"),
        ("_allgather_base", "all-gather"),
        ("_reduce_scatter_base", "reduce-scatter"),
        ("all_to_allv", "all-to-all"),
        ("reduce", "reduce"),
        ("recv", "recv"),
        ("mine", "mine"),
    ],
)
def test_a_collective_has_one_name(written, kind):
    assert event_names.kind_of(written) == kind


def test_the_name_of_a_kernel_tells_its_collective_where_it_has_one():
    assert event_names.kind_of_kernel(ALL_REDUCE) == "all-reduce"
    assert event_names.kind_of_kernel("ncclKernel_Broadcast_RING_LL_Sum_int8_t(x)") == "broadcast"
    assert event_names.kind_of_kernel(SEND_RECV) == ""
    assert event_names.kind_of_kernel("ncclDevKernel_Generic(x)") == ""


def two_ranks(tmp_path, change=None):
    """Rank 1 comes 30 us later to the first of two all-reduces; clocks are 1 s apart."""
    found = []
    for rank, start in ((0, 10), (1, 40)):
        at = 1_000_000 * rank
        profile = made(rank, 2).steps(at, at + 100)
        profile.all_reduce(at + start, at + 50, launch=at + 5, ranks=[0, 1])
        profile.all_reduce(at + 60, at + 70, launch=at + 6, ranks=[0, 1])
        if change:
            change(profile, rank)
        found.append(read(profile.write(tmp_path, f"rank{rank}.json")))
    return found


def test_collectives_of_all_ranks_are_in_one_table(tmp_path):
    found = collective_table(two_ranks(tmp_path), [0], 2)
    rows = found.collectives
    assert [(group.name, group.axis, group.ranks) for group in rows.groups] == [
        ("default_pg [0, 1]", "dp", (0, 1))
    ]
    assert rows.kinds == ("all-reduce",)
    assert rows.rank.tolist() == [0, 0, 1, 1]
    assert rows.sequence.tolist() == [0, 1, 0, 1]
    assert rows.stay_s.tolist() == pytest.approx([40e-6, 10e-6, 10e-6, 10e-6])
    assert rows.num_bytes.tolist() == [4000] * 4
    assert rows.is_continuous
    assert rows.place(1).dp_rank == 1
    assert rows.place(1).local_rank is None  # both show device 0
    assert found.num_members == {"default_pg [0, 1]": 2}
    assert found.notes == ()


def test_members_without_a_file_are_counted_and_not_in_the_group(tmp_path):
    def of_four(profile, rank):
        for each in profile.events:
            if "Group size" in each["args"]:
                each["args"] |= {"Group size": 4, "Process Group Ranks": "[0, 1, 2, 3]"}

    found = collective_table(two_ranks(tmp_path, of_four), [0], 4)
    assert found.collectives.groups[0].ranks == (0, 1)
    assert found.num_members == {"default_pg [0-3]": 4}


def test_a_step_in_which_members_do_not_have_the_same_number_is_left_out(tmp_path):
    def one_more(profile, rank):
        if rank:
            profile.all_reduce(1_000_080, 1_000_090, launch=1_000_007, ranks=[0, 1])

    found = collective_table(two_ranks(tmp_path, one_more), [0], 2)
    assert found.collectives.num_rows == 0
    assert "do not have the same number of collectives" in found.notes[0]


def without_groups(profile, rank):
    for each in profile.events:
        if each["cat"] == "kernel":
            each["args"] = {"correlation": each["args"]["correlation"], "stream": 20, "device": 0}


def test_old_kernels_without_a_group_are_matched_by_stream_and_order(tmp_path):
    found = collective_table(two_ranks(tmp_path, without_groups), [0], 2)
    assert [group.name for group in found.collectives.groups] == ["stream 20"]
    assert found.collectives.kinds == ("all-reduce",)
    assert found.collectives.sequence.tolist() == [0, 1, 0, 1]
    assert "matched between ranks by their order" in found.notes[0]


def test_old_kernels_that_do_not_end_together_are_not_matched(tmp_path):
    def late(profile, rank):
        without_groups(profile, rank)
        if rank:
            profile.events[-1]["dur"] += 5_000

    found = collective_table(two_ranks(tmp_path, late), [0], 2)
    assert [group.ranks for group in found.collectives.groups] == [(0,), (1,)]
    assert "do not end together" in found.notes[0]


def test_old_kernels_in_another_order_are_not_matched(tmp_path):
    def other(profile, rank):
        without_groups(profile, rank)
        if rank:
            profile.events[-1]["name"] = "ncclKernel_Broadcast_RING_LL_Sum_int8_t(x)"

    found = collective_table(two_ranks(tmp_path, other), [0], 2)
    assert "in the same order" in found.notes[0]


def call(profile, at, name, external_id, **args):
    says = {"Process Group Name": "pp", "Process Group Ranks": "[0, 1]", "Group size": 2}
    profile.event(
        "cpu_op",
        "record_param_comms",
        at,
        2,
        **{"Collective name": name, "External id": external_id, **says, **args},
    )


def test_coalesced_sends_and_receives_are_one_occurrence(tmp_path):
    # As 1F1B does: the calls come first, and one kernel carries out both.
    size = {"In msg nelems": 10, "dtype": "Half"}
    profile = made(0, 2).steps(0, 200)
    call(profile, 10, "send", 1, **{"Dst Rank": 1, **size})
    profile.event("user_annotation", "nccl:coalesced", 15, 10)
    profile.kernel(30, 5, launch=18, name=SEND_RECV, stream=20)
    call(profile, 40, "send", 2, **{"Dst Rank": 1, **size})
    call(profile, 43, "recv", 3, **{"Src Rank": 1, **size})
    call(profile, 46, "wait", 4)
    profile.event("user_annotation", "nccl:coalesced", 48, 10)
    profile.kernel(60, 50, launch=50, name=SEND_RECV, stream=20)
    found = collective_table([read(profile.write(tmp_path))], [0], 2).collectives
    kinds = [found.kinds[kind] for kind in found.kind.tolist()]
    pairs = [found.groups[group].ranks for group in found.group.tolist()]
    assert list(zip(kinds, pairs, strict=True)) == [(SEND, (0, 1)), (RECEIVE, (1, 0))]
    assert found.stay_s.tolist() == pytest.approx([5e-6, 50e-6])
    assert found.num_bytes.tolist() == [20, 20]


def test_receives_from_several_ranks_at_once_blame_none(tmp_path):
    profile = made(0, 3).steps(0, 200)
    call(profile, 10, "recv", 1, **{"Src Rank": 1})
    call(profile, 13, "recv", 2, **{"Src Rank": 2})
    profile.event("user_annotation", "nccl:coalesced", 16, 10)
    profile.kernel(30, 5, launch=18, name=SEND_RECV, stream=20)
    found = collective_table([read(profile.write(tmp_path))], [0], 3)
    assert found.collectives.num_rows == 0
    assert "from several ranks at once" in found.notes[0]


def test_a_kernel_without_args_takes_the_collective_that_encloses_its_launch(tmp_path):
    profile = made(0, 2).steps(0, 200)
    call(profile, 10, "all_to_all", 9)
    profile.kernel(30, 5, launch=11, name=SEND_RECV, stream=20)
    profile.event("user_annotation", "nccl:all_gather", 40, 10)
    profile.kernel(60, 5, launch=45, name=SEND_RECV, stream=20)
    call(profile, 80, "broadcast", 77)
    profile.kernel(90, 5, launch=85, name=SEND_RECV, stream=20, **{"External id": 77})
    found = read(profile.write(tmp_path)).collectives
    assert [each.calls[0].kind for each in found] == ["all-to-all", "all-gather", "broadcast"]


@needs_profiles
def test_pipeline_profiles_have_all_their_groups_and_places():
    files = sorted(SHARED_GPU.glob("nccl-pipe-slow-on-rank*"))
    found = collective_table([read(path) for path in files], [0, 1, 2], 4)
    assert {group.ranks for group in found.collectives.groups} == {
        (0, 1), (2, 3), (0, 2), (2, 0), (1, 3), (3, 1),
    }  # fmt: skip
    assert [found.collectives.place(rank).stage for rank in range(4)] == [0, 0, 1, 1]
    receives = found.collectives.kind == found.collectives.kinds.index(RECEIVE)
    assert np.bincount(found.collectives.rank[receives]).tolist() == [24, 24, 24, 24]
    assert found.notes == ()


@needs_profiles
@pytest.mark.parametrize(
    ("name", "step_ms"),
    [
        ("hta-ns-resolution-rank0.pt", [97.66, 95.74, 95.57, 95.66, 95.39]),
        pytest.param("hta-nccl-1-of-2", [222.44, 219.82, 224.96], marks=pytest.mark.nightly),
        pytest.param("hta-sampled-rank0-of-128", [607.31, 622.79], marks=pytest.mark.nightly),
        ("tracelens-mi300-resnet-1-of-8", [18.98, 18.98, 18.55]),
    ],
)
def test_others_profiles_have_their_true_step_times(name, step_ms):
    (path,) = SHARED_REAL.glob(f"{name}*")
    assert (read(path).step_s * 1e3).tolist() == pytest.approx(step_ms, abs=0.006)


@needs_profiles
def test_cut_anywhere_a_profile_is_read_or_refused_in_one_line(tmp_path):
    text = gzip.decompress((SHARED_GPU / "nccl-ddp-slow-off-rank0.pt.trace.json.gz").read_bytes())
    path = tmp_path / "rank0.json"
    for cut in np.linspace(1, len(text) - 2, 12).astype(int).tolist():
        path.write_bytes(text[:cut])
        refusal(path)
