"""Kineto's files, worked out by hand."""

import json
import re

import pytest

from app.errors import InvalidTrace
from app.trace.readers.kineto.trace_file import AnnotatedFile
from app.trace.readers.registry import FORMATS
from tests.harness.samples.job import BEGAN_NS
from tests.trace.readers.samples import imported, ops_of, put

KINETO = FORMATS["kineto"]


def event(name, ts, dur, cat="gpu_user_annotation", tid=7, **args):
    return {"ph": "X", "cat": cat, "name": name, "pid": 0, "tid": tid, "ts": ts, "dur": dur} | {
        "args": args
    }


def steps(*numbers, cat="gpu_user_annotation"):
    return [event(f"ProfilerStep#{number}", number * 1000, 900, cat) for number in numbers]


def group(description, ranks, size=None):
    size = len(ranks) if size is None else size
    return {"pg_name": "0", "pg_desc": description, "pg_size": size, "ranks": ranks}


def write(folder, events, rank=0, world=1, groups=(), name=None, **more):
    content = {
        "schemaVersion": 1,
        "distributedInfo": {"rank": rank, "world_size": world, "pg_config": list(groups)},
        "baseTimeNanoseconds": BEGAN_NS,
        "traceEvents": events,
        "traceName": "x",
        **more,
    }
    path = folder / (name or f"rank{rank}.json")
    content = {key: value for key, value in content.items() if value is not None}
    path.write_text(json.dumps(content))
    return path


def of(folder, events, **options):
    return imported(KINETO, [write(folder, events)], **options)


def ops(described, chunks):
    """Step, op type, start and duration in microseconds, since the step's first."""
    return [each[3:7] for each in ops_of(described, chunks)]


def lack(described, what):
    return next((each for each in described.missing if each.what.startswith(what)), None)


def test_where_the_backward_pass_has_no_gpu_span_all_computations_are_by_the_host(tmp_path):
    # Autograd launches it from a thread of its own. By the GPU's clock both forward passes would
    # come after the backward pass of the first, which the host has timed.
    host = [
        event(name, 3000 + at, 5, "user_annotation")
        for name, at in (("forward-compute", 10), ("backward-compute", 20), ("forward-compute", 30))
    ]
    gpu = [event("forward-compute", 3040, 50), event("forward-compute", 3100, 50)]
    adam = [
        event("optimizer", 3200, 9, "user_annotation"),
        event("optimizer", 3300, 40),
        *steps(3),
        *steps(3, cat="user_annotation"),
    ]
    described, chunks = of(tmp_path, [*host, *gpu, *adam])
    assert chunks[0].start_ns.tolist() == [BEGAN_NS + 1000 * at for at in (3010, 3020, 3030, 3300)]
    assert [described.op_types.name(code) for code in chunks[0].optype.tolist()] == [
        *("forward-compute", "backward-compute", "forward-compute", "optimizer")
    ]
    assert lack(described, "GPU spans: 2 computations have one and others of their rank have none")
    assert lack(described, "GPU times: 3 of 4")
    assert lack(described, "streams") is None


def patterns(*pairs):
    return tuple((re.compile(regex), optype) for regex, optype in pairs)


def test_annotation_named_like_an_op_type_is_one(tmp_path):
    events = [*steps(3), event("forward-compute", 3100, 50.5), event("my loop", 3100, 60)]
    described, chunks = of(tmp_path, events)
    assert ops(described, chunks) == [(3, "forward-compute", 0, 50)]
    assert chunks[0].start_ns.tolist() == [BEGAN_NS + 3_100_000]
    assert chunks[0].duration_ns.tolist() == [50_500]
    assert (chunks[0].mc.tolist(), chunks[0].mb_id.tolist()) == ([0], [0])


def test_the_gpu_s_annotation_goes_before_the_host_s(tmp_path):
    host = [event("forward-compute", 3100, 5, "user_annotation"), *steps(3, cat="user_annotation")]
    gpu = [event("forward-compute", 3200, 50), *steps(3)]
    described, chunks = of(tmp_path, host + gpu)
    assert chunks[0].duration_ns.tolist() == [50_000]
    assert (lack(described, "GPU times"), described.labels) == (None, {})
    described, chunks = of(tmp_path, host)
    assert chunks[0].duration_ns.tolist() == [5_000]
    assert lack(described, "GPU times: 1 of 1 operations are timed by the host alone")
    assert described.labels == {"times": "host"}
    other = event("optimizer", 3200, 50)
    assert of(tmp_path, [*host, *steps(3), other])[0].labels == {}


def test_of_several_streams_the_one_with_most_time_is_taken(tmp_path):
    spans = [event("forward-compute", 3100, 50), event("forward-compute", 3110, 10, tid=20)]
    described, chunks = of(tmp_path, [*steps(3), *spans])
    assert ops(described, chunks) == [(3, "forward-compute", 0, 50)]
    assert lack(described, "streams: 1 annotation")


def test_patterns_read_micro_batch_chunk_and_step(tmp_path):
    events = [event("fwd s4 m2 c1", 10, 5), event("fwd s4 m0 c0", 20, 5)]
    regex = r"^fwd s(?P<step>\d+) m(?P<mb>\d+) c(?P<chunk>\d+)$"
    described, chunks = of(tmp_path, events, patterns=patterns((regex, "forward-compute")))
    assert described.steps.tolist() == [4]
    assert described.parallelism.vpp_size == 2
    assert list(zip(chunks[0].mb_id.tolist(), chunks[0].mc.tolist(), strict=True)) == [
        (2, 1),
        (0, 0),
    ]


def test_operations_belong_to_the_step_that_began_before_them(tmp_path):
    spans = [
        event("forward-compute", 2999, 1),  # before the first step
        event("forward-compute", 3000, 1),
        event("forward-compute", 3950, 1),  # after the host was done with it
        event("forward-compute", 4000, 1),
        event("forward-compute", 4901, 1),  # after the last step
    ]
    described, chunks = of(tmp_path, [*spans, *steps(4, 3)])
    assert [each[0] for each in ops(described, chunks)] == [3, 3, 4]
    assert "2 operations are in no ProfilerStep" in lack(described, "steps").what


def test_stream_ahead_keeps_operations_in_their_step(tmp_path):
    # The next batch is copied on stream 20 while stream 7 is in the middle of its step.
    marks = [*steps(3, 4), event("ProfilerStep#4", 3500, 700, tid=20)]
    spans = [event("forward-compute", at, 1) for at in (3100, 3600, 4100)]
    kernels = [collective("allreduce", 3700, "mesh_dp"), collective("allreduce", 4200, "mesh_dp")]
    elsewhere = [{**each, "tid": 9} for each in kernels]
    described, chunks = of(tmp_path, [*marks, *spans])
    assert [each[0] for each in ops(described, chunks)] == [3, 3, 4]
    nccl = [event("ProfilerStep#3", 3700, 5, tid=9), event("ProfilerStep#4", 4200, 5, tid=9)]
    described, chunks = of(tmp_path, [*marks, *nccl, *elsewhere])
    assert [each[0] for each in ops(described, chunks)] == [3, 4]


def test_the_pipelining_package_s_names_are_known(tmp_path):
    names = ["PP:0F3", "PP:4F3", "PP:4I3", "PP:0W3", "PP:0B1", "PP:0SEND_F3"]
    events = [*steps(3), *(event(name, 3100 + at, 1) for at, name in enumerate(names))]
    events.append(event("Optimizer.step#AdamW.step", 3500, 9))
    path = write(tmp_path, events, 0, 4, [group("mesh_pp", [0, 1, 2, 3])])
    described, chunks = imported(KINETO, [path])
    rows = zip(
        chunks[0].optype.tolist(), chunks[0].mc.tolist(), chunks[0].mb_id.tolist(), strict=True
    )
    named = [(described.op_types.name(code), mc, mb_id) for code, mc, mb_id in rows]
    assert named == [
        ("forward-compute", 0, 3),
        ("forward-compute", 1, 3),
        ("backward-input-compute", 1, 3),
        ("backward-weight-compute", 0, 3),
        ("backward-compute", 0, 1),
        ("optimizer", -1, -1),
    ]
    assert described.parallelism.vpp_size == 2


@pytest.mark.parametrize("stages", [(1,), (0, 3), (4,)], ids=["other", "folded", "no first"])
def test_stage_names_that_contradict_the_rank_are_refused(stages, tmp_path):
    passes = [event(f"PP:{stage}F0", 3100 + stage, 1) for stage in stages]
    path = write(tmp_path, [*steps(3), *passes], 0, 2, [group("mesh_pp", [0, 1])])
    with pytest.raises(InvalidTrace, match=r"rank0.json: rank 0 runs stages .* stage 0 of 2: give"):
        imported(KINETO, [path])


def test_a_pipeline_in_the_default_group_is_not_taken_for_data_parallelism(tmp_path):
    default = [group("default_pg", [0, 1])]
    forward = event("PP:1F0", 3100, 5)
    path = write(tmp_path, [*steps(3), forward], 1, 2, default)
    with pytest.raises(InvalidTrace, match="is taken for stage 0 of 1: give --dp and --pp"):
        imported(KINETO, [path])
    sent = collective("send", 3002, "default_pg", **{"Dst Rank": 0})
    named = event("forward-compute", 3100, 5)
    path = write(tmp_path, [*steps(3), named, sent], 1, 2, default)
    with pytest.raises(InvalidTrace, match="as stages of a pipeline do: give --dp and --pp"):
        imported(KINETO, [path])
    described, chunks = imported(KINETO, [path], sizes={"dp_size": 1, "pp_size": 2})
    assert (chunks[0].stage, described.parallelism.pp_size) == (1, 2)


def collective(name, ts, description, **args):
    about = {"Collective name": name, "Process Group Name": "0"}
    about["Process Group Description"] = description
    return event("ncclDevKernel_X", ts, 5, "kernel", 20, **about, **args)


def test_collectives_are_identified_by_their_group(tmp_path):
    kernels = [
        collective("_allgather_base", 3001, "mesh_dp"),
        collective("_reduce_scatter_base", 3002, "DATA_PARALLEL_GROUP_WITH_CP"),
        collective("allreduce", 3003, "mesh_dp"),
        collective("allreduce", 3004, "EMBEDDING_GROUP"),
        collective("allreduce", 3005, "MODEL_PARALLEL_GROUP"),
        collective("allreduce", 3006, "TENSOR_MODEL_PARALLEL_GROUP"),
        collective("all_to_allv", 3007, "EXPERT_MODEL_PARALLEL_GROUP"),
        collective("allreduce", 3008, "default_pg"),
        event("ncclDevKernel_AllReduce", 3009, 5, "kernel", 20),
    ]
    described, chunks = of(tmp_path, [*steps(3), *kernels])
    assert [each[1] for each in ops(described, chunks)] == [
        "embedding-grads-all-reduce",
        "grads-reduce-scatter",
        "grads-reduce-scatter",
        "optimizer-clip-main-grad",
        "params-all-gather",
    ]
    assert "2 collectives are tensor-" in lack(described, "parts").what
    assert "1 of 'allreduce default_pg'" in lack(described, "collectives: 1").what
    assert lack(described, "groups: 1 NCCL kernels")
    mapped = patterns(("^allreduce default_pg$", "separate-grads-all-reduce"))
    described, chunks = of(tmp_path, [*steps(3), *kernels], patterns=mapped)
    assert "separate-grads-all-reduce" in {each[1] for each in ops(described, chunks)}


@pytest.mark.parametrize("sizes", [{}, {"dp_size": 2, "pp_size": 1}], ids=["told", "given"])
def test_collectives_of_the_only_group_of_all_are_data_parallel(sizes, tmp_path):
    # Plain DDP and FSDP: nobody names a group, so all of them are of the default one.
    kernels = [
        collective("_allgather_base", 3001, "default_pg"),
        collective("_reduce_scatter_base", 3002, "default_pg"),
        collective("allreduce", 3003, ""),
        collective("allreduce", 3004, "default_pg"),
        collective("barrier", 3005, "default_pg"),
    ]
    path = write(tmp_path, [*steps(3), *kernels], 1, 2, [group("default_pg", [0, 1])])
    described, chunks = imported(KINETO, [path], sizes=sizes)
    assert [each[1] for each in ops(described, chunks)] == [
        *["grads-reduce-scatter"] * 3,
        "params-all-gather",
    ]
    assert chunks[0].mc.tolist() == [0] * 4
    assert "sums: 2 all-reduces over the data-parallel ranks" in lack(described, "sums").what
    assert "1 of 'barrier default_pg'" in lack(described, "collectives: 1").what


def test_the_only_group_of_ranks_of_several_axes_is_not_taken_for_data_parallel(tmp_path):
    kernels = [event("forward-compute", 3100, 5), collective("allreduce", 3003, "default_pg")]
    path = write(tmp_path, [*steps(3), *kernels], 1, 2, [group("default_pg", [0, 1])])
    described, _ = imported(KINETO, [path], sizes={"dp_size": 1, "pp_size": 2})
    assert "1 of 'allreduce default_pg'" in lack(described, "collectives: 1").what
    mapped = patterns(("^allreduce", "separate-grads-all-reduce"))
    described, _ = imported(KINETO, [path], sizes={"dp_size": 2}, patterns=mapped)
    assert lack(described, "sums") is None


def test_long_names_are_cut_and_too_many_are_refused(tmp_path, monkeypatch):
    long = "forward-compute " + "x" * 3000
    kernel = collective("allreduce" + "y" * 3000, 3003, "z" * 3000)
    mapped = patterns(("^forward-compute x+$", "forward-compute"))
    path = write(tmp_path, [*steps(3), event(long, 3100, 5), kernel])
    file = AnnotatedFile(path, None)
    assert [len(each) for each in (file.names[0], *file.names[1][:3])] == [1024, 1024, 1, 1024]
    file.ranges.close()
    described, _ = imported(KINETO, [path], patterns=mapped)
    assert described.num_ops == 1
    many = [event(f"{number:04}" + "x" * 2000, 3100, 5) for number in range(40)]
    path = write(tmp_path, [*steps(3), *many])
    monkeypatch.setattr(AnnotatedFile, "MAX_CHARACTERS", 32 * 1024)
    with pytest.raises(InvalidTrace, match=r"rank0.json: event 34: has name 33: they are too"):
        AnnotatedFile(path, None)


# Where a peer is rank 1, it is this rank's own number in the group: so it is one of the job.
@pytest.mark.parametrize(("before", "after"), [(0, 2), (1, 5)], ids=["in the group", "of the job"])
def test_transfers_are_identified_by_their_peer(before, after, tmp_path):
    kernels = [
        collective("recv", 3001, "mesh_pp", **{"Src Rank": before}),
        collective("send", 3002, "mesh_pp", **{"Dst Rank": after}),
        collective("recv", 3003, "mesh_pp", **{"Src Rank": after}),
        collective("send", 3004, "mesh_pp", **{"Dst Rank": before}),
    ]
    groups = [group("mesh_pp", [1, 3, 5]), group("mesh_dp", [2, 3])]
    path = write(tmp_path, [*steps(3), *kernels], 3, 6, groups)
    described, chunks = imported(KINETO, [path])
    assert [(each[0], each[1], each[2], each[4]) for each in ops_of(described, chunks)] == [
        (3, 1, 1, "backward-recv"),
        (3, 1, 1, "backward-send"),
        (3, 1, 1, "forward-recv"),
        (3, 1, 1, "forward-send"),
    ]
    assert "5 of 6 (dp rank, stage) pairs are in no file" in lack(described, "workers").what


def test_a_peer_whose_global_rank_is_the_number_of_a_stage_is_told_by_its_rank(tmp_path):
    # Stage 1 of the pipeline of dp rank 2: its first stage is on rank 2, which is no stage 2.
    pipeline = group("mesh_pp", [2, 6, 10, 14])
    kernels = [
        collective("recv", 3001, "mesh_pp", **{"Src Rank": 2}),
        collective("send", 3002, "mesh_pp", **{"Dst Rank": 2}),
    ]
    path = write(tmp_path, [*steps(3), *kernels], 6, 16, [pipeline])
    described, chunks = imported(KINETO, [path])
    assert [each[1] for each in ops(described, chunks)] == ["backward-send", "forward-recv"]


def test_an_interleaved_schedule_s_transfers_are_not_guessed(tmp_path):
    kernels = [collective("send", 3002, "mesh_pp", **{"Dst Rank": 1})]
    computing = [event("forward-compute", 3100, 5)]
    path = write(tmp_path, [*steps(3), *kernels, *computing], 0, 2, [group("mesh_pp", [0, 1])])
    described, chunks = imported(KINETO, [path], sizes={"vpp_size": 2})
    assert [each[1] for each in ops(described, chunks)] == ["forward-compute"]
    assert lack(described, "collectives: 1")
    assert "not guessed" in lack(described, "micro-batch ids").cost


def place(folder, rank, world, groups, **sizes):
    path = write(folder, [*steps(3), event("forward-compute", 3100, 5)], rank, world, groups)
    described, chunks = imported(KINETO, [path], sizes=sizes)
    return (chunks[0].dp_rank, chunks[0].stage), described.parallelism


def test_context_and_partial_dp_groups_do_not_change_the_sizes(tmp_path):
    # Of tp 2, cp 2, dp 4, pp 2; rank 23 is tp 1, cp 1, dp 1, pp 1.
    groups = [
        group("default_pg", list(range(32))),
        group("TENSOR_MODEL_PARALLEL_GROUP", [22, 23]),
        group("CONTEXT_PARALLEL_GROUP", [21, 23]),
        group("PIPELINE_MODEL_PARALLEL_GROUP", [7, 23]),
        group("DATA_PARALLEL_GROUP_WITH_CP", [17, 19, 21, 23, 25, 27, 29, 31]),
        group("INTRA_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP", [17, 19, 21, 23]),
        group("EXPERT_DATA_PARALLEL_GROUP", [20, 23]),
    ]
    where, sizes = place(tmp_path, 23, 32, groups)
    assert where == (1, 1)
    assert (sizes.dp_size, sizes.pp_size, sizes.tp_size, sizes.dsp_size) == (4, 2, 2, 2)
    assert sizes.world_size == 32


def test_a_group_whose_ranks_are_cut_short_still_has_its_size(tmp_path):
    groups = [group("mesh_pp", [0, 4]), group("mesh_dp", [0, 1], size=4)]
    where, sizes = place(tmp_path, 0, 8, groups)
    assert (where, sizes.dp_size, sizes.pp_size) == ((0, 0), 4, 2)


def test_one_group_of_all_is_plain_data_parallelism(tmp_path):
    where, sizes = place(tmp_path, 3, 4, [group("default_pg", [0, 1, 2, 3])])
    assert (where, sizes.dp_size, sizes.pp_size) == ((3, 0), 4, 1)


def test_given_sizes_take_precedence(tmp_path):
    where, sizes = place(tmp_path, 5, 8, [], dp_size=2, pp_size=2, tp_size=2)
    assert (where, sizes.tp_size) == ((0, 1), 2)


def test_a_rank_s_steps_may_be_in_several_files(tmp_path):
    one = write(tmp_path, [*steps(3), event("forward-compute", 3100, 5)], name="rank0-a.json")
    other = write(tmp_path, [*steps(4), event("forward-compute", 4100, 5)], name="rank0-b.json")
    described, _ = imported(KINETO, [one, other])
    assert described.steps.tolist() == [3, 4]
    again = tmp_path / "again-b.json"
    again.write_text(other.read_text())
    with pytest.raises(
        InvalidTrace, match=r"^again-b.json: rank 0 has step 4, and in rank0-b.json"
    ):
        imported(KINETO, [one, other, again])


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"traceEvents": None}, "has 0 lists of traceEvents"),
        ({"baseTimeNanoseconds": "x"}, "rank0.json: Expected `int`"),
        ({"distributedInfo": {"rank": -1}}, "rank"),
        (
            {"distributedInfo": {"rank": 0, "world_size": 0, "pg_config": []}},
            "ranks are no multiple",
        ),
        ({"distributedInfo": {"rank": 9, "world_size": 2}}, "does not say how the job is spread"),
        ({"traceEvents": [event("forward-compute", 1, 5)]}, "has no ProfilerStep: call profiler"),
        ({"traceEvents": [event("forward-compute", "x", 5)]}, "event 1: ts is 'x'"),
        ({"traceEvents": [*steps(3), event("gc", 3001, -5)]}, "event 2: dur is -5"),
        ({"traceEvents": [*steps(3, 3, cat="user_annotation")]}, "ProfilerStep#3 is there twice"),
        ({"traceEvents": [*steps(3), event("gc", 9.5e15, 5)]}, "event 2: ts is '95000"),
        ({"traceEvents": [*steps(3), event("gc", 3001, 9.5e15)]}, "event 2: dur is '95000"),
        ({"traceEvents": [event("ProfilerStep#3", 9.5e15, 5)]}, "event 1: ts is '95000"),
        ({"baseTimeNanoseconds": 2**63}, "baseTimeNanoseconds is 9223372036854775808: want"),
        ({"baseTimeNanoseconds": -1}, "baseTimeNanoseconds is -1: want"),
        ({"traceEvents": [*steps(3), event(7, 3001, 5)]}, "event 2: name is no text"),
        ({"traceEvents": [*steps(3), event("x", 3001, 5)]}, "no operation of a training step"),
    ],
)
def test_errors_name_file_and_event(more, words, tmp_path):
    events = more.pop("traceEvents", [*steps(3), event("forward-compute", 3100, 5)])
    path = write(tmp_path, events, **more)
    with pytest.raises(InvalidTrace, match=words) as caught:
        imported(KINETO, [path])
    assert "rank0.json" in str(caught.value)


def test_largest_times_fit_64_bits(tmp_path):
    events = [event("ProfilerStep#3", 3.9e15, 5), event("gc", 3.9e15, 3.9e15)]
    path = write(tmp_path, events, baseTimeNanoseconds=2**62)
    with pytest.raises(InvalidTrace, match="duration_ns is 3900"):
        imported(KINETO, [path])


def test_ranks_without_a_common_clock_are_not_compared(tmp_path):
    events = [*steps(3), event("forward-compute", 3100, 5)]
    paths = [
        write(tmp_path, events, rank, 2, [group("mesh_dp", [0, 1])], baseTimeNanoseconds=None)
        for rank in range(2)
    ]
    with pytest.raises(InvalidTrace, match="has no baseTimeNanoseconds: its times cannot"):
        imported(KINETO, paths)
    described, _ = imported(KINETO, paths[:1])
    assert not described.has_absolute_times


@pytest.mark.parametrize("vpp_size", [1, 2])
def test_where_a_stage_has_one_chunk_mapped_collectives_are_of_it(vpp_size, tmp_path):
    # Forward passes wait for their chunk's gather alone: of chunk -1 it would hold up nobody.
    kernels = [
        collective("_allgather_base", 3001, "default_pg"),
        collective("_reduce_scatter_base", 3002, "mesh_dp"),
    ]
    mapped = patterns(("^_allgather_base default_pg$", "params-all-gather"))
    sizes = {"dp_size": 1, "pp_size": 1, "vpp_size": vpp_size}
    _, chunks = of(tmp_path, [*steps(3), *kernels], patterns=mapped, sizes=sizes)
    assert chunks[0].mc.tolist() == [0 if vpp_size == 1 else -1] * 2


def test_files_of_two_runs_are_refused_by_their_sizes(tmp_path):
    paths = put(KINETO, tmp_path)
    content = json.loads(paths[1].read_bytes())
    content["distributedInfo"]["world_size"] = 8
    paths[1].write_text(json.dumps(content))
    with pytest.raises(InvalidTrace, match=r"rank1.json: dp_size is 4 here and 2 in rank0.json"):
        imported(KINETO, paths)
