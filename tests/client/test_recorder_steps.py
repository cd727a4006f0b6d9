"""Steps of recorded operations; operations outside a step are counted as dropped."""

import gc
import logging
from typing import Any

import paceline_client
import pytest
from paceline_client import NULL, Topology
from paceline_client.recorder import Recorder
from paceline_client.recording.buffer import INVALID, Buffer
from paceline_client.recording.timing import TimedOp

from app.trace.ops import OP_CODES
from tests.client.conftest import TOKEN
from tests.client.recorders import WITHIN_S, recorder

FORWARD, OPTIMIZER, GC = (OP_CODES[name] for name in ("forward-compute", "optimizer", "gc"))
EXTENSIONS = ["packed", "dropped", "step_kinds", "waits"]


@pytest.fixture(autouse=True)
def _quiet(caplog, monkeypatch):
    caplog.set_level(logging.WARNING)
    for name in ("URL", "TOKEN", "JOB", "RUN_KEY", "RACK", "SWITCH"):
        monkeypatch.delenv(f"PACELINE_{name}", raising=False)


@pytest.fixture
def offline():
    """A recorder without a sender, and its buffer."""
    buffer = Buffer(10_000, 60.0)
    return Recorder(buffer, None), buffer


def names(taken):
    return [op[1] for op in taken.ops]


def columns(paceline):
    [batch] = [batch for batch in paceline.batches if batch.columns.num_ops]
    return batch.columns


def test_operation_outside_a_step_is_dropped_with_a_warning(offline, caplog):
    run, buffer = offline
    for _ in range(2):
        with run.op("gc") as op:
            op.tell(bytes=1)
    run.end(run.begin("gc"))
    assert buffer.take() is None
    assert run.dropped_reasons == {"outside a step": 3}
    assert run.dropped == 3
    [warning] = caplog.messages
    assert "outside `with recorder.step(...)`" in warning


class NotANumber:
    """A tensor of several elements, or one on a GPU, instead of a number."""

    def __init__(self, *, is_cuda):
        self.is_cuda = is_cuda

    def __int__(self):
        assert not self.is_cuda, "training would wait for the GPU"
        raise RuntimeError("a Tensor with 2 elements cannot be converted to Scalar")

    __index__ = __int__


@pytest.mark.parametrize("is_cuda", [False, True])
def test_non_numeric_attributes_do_not_stop_recording(offline, is_cuda):
    run, buffer = offline
    odd = NotANumber(is_cuda=is_cuda)
    with run.step(0):
        run.tell_microbatch(0, tokens=odd)
        with run.op("forward-compute", microbatch=0, tokens=odd, seq_len_sq=4):
            pass
        with run.op("gc", microbatch=NotANumber(is_cuda=False)):
            pass
    taken = buffer.take()
    assert [(op[1], op[7]) for op in taken.ops] == [("forward-compute", {"seq_len_sq": 4})]
    assert run.dropped_reasons == {"not a valid operation": 1}


def test_operation_with_a_step_argument_needs_no_step_context(offline):
    run, buffer = offline
    with run.op("gc", step=4):
        pass
    run.step_done(4)
    taken = buffer.take()
    assert [(op[0], op[1]) for op in taken.ops] == [(4, "gc")]
    assert taken.steps_done == [(4, 1)]


def test_op_sets_every_slot_that_the_timed_op_constructor_sets(offline):
    run, _ = offline
    with run.step(1):
        quick = run.op("optimizer")
    slow = TimedOp(quick._buffer, "optimizer", quick._state, -1, -1, None)
    unset = {"_start_ns", "_seq_id", "_again"}  # set on begin
    for name in set(TimedOp.__slots__) - unset:
        assert getattr(quick, name) == getattr(slow, name), name


def test_an_operation_that_is_entered_again_is_recorded_again(offline):
    run, buffer = offline
    with run.step(1):
        again = run.op("forward-compute", microbatch=3, tokens=5)
        for tokens in (6, 7):
            with again as begun:
                begun.tell(tokens=tokens)
            begun.tell(tokens=8)  # too late
        run.end(again)
        run.end(run.op("gc"))  # which has not begun
    first, second = buffer.take().ops
    assert run.dropped_reasons == {INVALID: 1}
    assert (first[4], first[6], first[7]) == (0, 3, {"tokens": 6})
    assert (second[4], second[6], second[7]) == (1, 3, {"tokens": 7})
    assert second[2] >= first[2] + first[3]


def test_outer_step_resumes_after_a_nested_step(offline):
    run, buffer = offline
    with run.step(1):
        with run.step(2, kind="eval"), run.op("gc"):
            pass
        with run.op("optimizer"):
            pass
    taken = buffer.take()
    assert [(op[0], op[1]) for op in taken.ops] == [(2, "gc"), (1, "optimizer")]
    assert taken.steps_done == [(2, 1), (1, 1)]
    assert taken.step_kinds == [(2, "eval")]


def test_invalid_operations_are_dropped_and_the_valid_one_kept(offline):
    run, buffer = offline
    with run.step(1):
        for optype in (None, 7, "", "x" * 65, "\ud800", ["gc"]):
            with run.op(optype):
                pass
        for microbatch in (2**31, "first", 1.5):
            with run.op("gc", microbatch=microbatch):
                pass
        not_steps: list[Any] = [[], -1, "first", 2.5]
        for step in not_steps:
            with run.op("gc", step=step):
                pass
        with run.op("gc"):
            pass
    taken = buffer.take()
    assert names(taken) == ["gc"]
    assert taken.steps_done == []  # the step is incomplete
    assert run.dropped_reasons == {"not a valid operation": 13}


def test_op_types_beyond_the_job_limit_are_dropped(offline):
    run, buffer = offline
    with run.step(1):
        for number in range(400):
            with run.op(f"type-{number}"):
                pass
    assert len(buffer.take().ops) == 250
    assert run.dropped == 150


def test_microbatch_attributes_apply_to_its_computations_of_the_step(offline):
    run, buffer = offline
    with run.step(1):
        run.tell_microbatch(0, tokens=100, seq_len_sq=5)
        for optype in ("forward-compute", "forward-send", "backward-compute"):
            with run.op(optype, microbatch=0):
                pass
        with run.op("forward-compute", microbatch=1):
            pass
        with run.op("backward-compute", microbatch=0, tokens=7):
            pass
    with run.step(2), run.op("forward-compute", microbatch=0):
        pass
    attributes = [op[7] or {} for op in buffer.take().ops]
    both = {"tokens": 100, "seq_len_sq": 5}
    assert attributes == [both, {}, both, {}, {"tokens": 7, "seq_len_sq": 5}, {}]


def test_data_wait_belongs_to_the_step_after_it(offline):
    run, buffer = offline
    batches = run.data(["first", "second"])
    assert len(batches) == 2
    seen = []
    for step, batch in enumerate(batches):
        with run.step(step), run.op("gc"):
            seen.append(batch)
    assert seen == ["first", "second"]
    taken = buffer.take()
    assert [(op[0], op[1]) for op in taken.ops] == [
        (0, "data-wait"),
        (0, "gc"),
        (1, "data-wait"),
        (1, "gc"),
    ]
    assert taken.steps_done == [(0, 2), (1, 2)]


def test_data_wait_within_a_step_propagates_loader_errors(offline):
    run, buffer = offline

    def loader():
        yield 1
        raise OSError("of the loader")

    batches = run.data(loader())
    with run.step(0):
        assert next(batches) == 1
        with pytest.raises(OSError, match="of the loader"):
            next(batches)
    assert [(op[0], op[1]) for op in buffer.take().ops] == [(0, "data-wait")]


def test_wrapped_loader_keeps_its_attributes():
    class Loader(list):
        epoch = 3

    batches = NULL.data(Loader("ab"))
    assert batches.epoch == 3
    assert list(batches) == list(batches) == ["a", "b"]


def test_gc_pauses_are_recorded_in_their_step(offline):
    run, buffer = offline
    run.note_pauses()
    run._pauses._min_ns = 0
    with run.step(5):
        gc.collect(0)
    gc.collect(0)  # between steps: not recorded
    run._pauses.stop()
    with run.step(6):
        gc.collect(0)
    taken = buffer.take()
    assert {(op[0], op[1]) for op in taken.ops} == {(5, "gc-pause")}
    assert all(op[3] >= 0 for op in taken.ops)


def test_gc_callback_is_removed_with_its_recorder():
    before = len(gc.callbacks)
    run = Recorder(Buffer(10, 60.0), None)
    run.note_pauses()
    assert run._pauses is not None
    run._pauses._min_ns = 0
    assert len(gc.callbacks) == before + 1
    del run
    gc.collect(0)
    gc.collect(0)
    assert len(gc.callbacks) == before


def test_step_kinds_and_drops_are_sent_if_accepted(paceline):
    paceline.accepts = EXTENSIONS
    run = recorder(paceline.url)
    with run.op("gc"):
        pass
    for step, kind in enumerate(("first", "train", "eval", "checkpoint", "of my own")):
        with run.step(step, kind=kind), run.op("gc"):
            pass
    assert run.flush(WITHIN_S)
    run.close()
    kinds = [kind for batch in paceline.batches for kind in batch.step_kinds]
    assert [(step, str(getattr(kind, "value", kind))) for step, kind in kinds] == [
        (0, "first"),
        (2, "eval"),
        (3, "checkpoint"),
    ]
    assert {batch.dropped for batch in paceline.batches} == {1}
    assert sorted(paceline.steps_done) == [(step, 1) for step in range(5)]


def test_server_without_step_kinds_gets_only_training_steps(paceline):
    run = recorder(paceline.url)
    for step, kind in enumerate(("train", "eval", "train")):
        with run.step(step, kind=kind), run.op("gc"):
            pass
    with run.step(3, kind="eval"):
        for _ in range(2):
            with run.op("gc"):
                pass
            assert run.flush(WITHIN_S)  # a step longer than the flush interval
    with run.step(4), run.op("gc"):
        pass
    assert run.flush(WITHIN_S)
    assert not run._buffer.asides
    run.close()
    assert [op[0] for op in paceline.ops] == [0, 2, 4]
    assert paceline.steps_done == [(0, 1), (2, 1), (4, 1)]


def test_extensions_not_accepted_by_the_server_are_not_sent(paceline):
    paceline.accepts = ["of tomorrow", 7]
    run = recorder(paceline.url, rack="r1", switch="s1")
    with run.op("gc"):
        pass
    with run.step(1), run.op("optimizer", power_w=400, xid=79, tokens=3):
        pass
    assert run.flush(WITHIN_S)
    run.close()
    [body] = paceline.posted
    assert not any(key in body for key in (b"dropped", b"placement", b"power_w", b"xid"))
    assert columns(paceline).tokens.tolist() == [3]


def test_placement_and_gpu_health_are_sent_if_accepted(paceline):
    paceline.accepts = [*EXTENSIONS, "gpu_health", "placement"]
    run = recorder(paceline.url, host="n\n1", rack="r" * 100 + "\x00", switch="\udc80leaf 3")
    with run.step(1), run.op("optimizer", power_w=400, xid=79):
        pass
    assert run.flush(WITHIN_S)
    run.close()
    [batch] = paceline.batches
    assert batch.host == "n1"
    assert (batch.placement.rack, batch.placement.switch) == ("r" * 64, "leaf 3")
    assert columns(paceline).power_w.tolist() == [400]
    assert columns(paceline).xid.tolist() == [79]


def test_unknown_host_sends_neither_host_nor_placement(paceline, monkeypatch):
    monkeypatch.setenv("PACELINE_RACK", "ours")
    paceline.accepts = [*EXTENSIONS, "gpu_health", "placement"]
    run = recorder(paceline.url, host="")
    with run.step(1), run.op("optimizer"):
        pass
    assert run.flush(WITHIN_S)
    run.close()
    [batch] = paceline.batches
    assert (batch.host, batch.placement) == (None, None)


def test_null_recorder_accepts_every_call_and_records_nothing():
    run = NULL
    assert not run.is_recording
    assert not run.records(3)
    with run.step(1, kind="eval"), run.op("gc", microbatch=0) as op:
        op.tell(tokens=1)
    run.end(run.begin("gc", step=1), tokens=2)
    run.record("gc", 1, 1, 1)
    run.tell_microbatch(0, tokens=1)
    run.step_done(1)
    assert list(run.data([1, 2])) == [1, 2]
    assert run.now_ns() > 0
    assert run.flush(0)
    run.close()
    assert run.dropped == 0
    assert run.dropped_reasons == {}
    assert not run.is_recording


def test_url_token_job_and_run_key_are_read_from_the_environment(paceline, monkeypatch):
    monkeypatch.setenv("PACELINE_URL", paceline.url)
    monkeypatch.setenv("PACELINE_TOKEN", TOKEN)
    monkeypatch.setenv("PACELINE_JOB", "from outside")
    monkeypatch.setenv("PACELINE_RUN_KEY", "r7")
    topology = Topology(rank=1, dp_rank=1, stage=0, dp_size=2, pp_size=1, host="n9")
    run = paceline_client.start(topology=topology)
    with run.step(1), run.op("gc"):
        pass
    assert run.flush(WITHIN_S)
    run.close()
    [(path, body)] = paceline.puts
    assert path == "/api/v1/jobs/from%20outside"
    assert body["run_key"] == "r7"
    assert body["parallelism"]["dp_size"] == 2
    [batch] = paceline.batches
    assert (batch.rank, batch.dp_rank, batch.stage, batch.host) == (1, 1, 0, "n9")


POSITION: dict[str, Any] = {"rank": 0, "dp_rank": 0, "stage": 0, "dp_size": 1, "pp_size": 1}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"job": None}, "no job: give job=, or set PACELINE_JOB"),
        ({"url": None}, "no url: give url=, or set PACELINE_URL"),
        ({"token": None}, "no token: give token=, or set PACELINE_TOKEN"),
        ({"token": ""}, "no token: give token=, or set PACELINE_TOKEN"),
        ({"rank": None, "stage": None}, "rank, stage missing"),
        ({"topology": Topology(**POSITION)}, "give either topology= or rank="),
        ({"topology": "rank 3"}, "nothing is recorded"),
        ({"dp_size": "two"}, "dp_size is 'two', not a whole number"),
        ({"rank": 1.5}, "rank is 1.5, not a whole number"),
        ({"gpus": []}, "gpus is [], not a whole number"),
        ({"max_ops": None}, "max_ops is None, not a whole number"),
        ({"epoch": "last"}, "epoch is 'last', not a whole number"),
        ({"flush_interval_s": "soon"}, "nothing is recorded: could not convert"),
        ({"job": "j\udcff"}, "job 'j\\udcff' is not valid text"),
    ],
)
def test_invalid_start_options_are_logged_and_nothing_is_recorded(given, expected, caplog):
    valid = {"job": "j", "url": "http://127.0.0.1:1", "token": "t", "run_key": "", **POSITION}
    run = paceline_client.start(**{**valid, **given})
    assert run is NULL
    [warning] = caplog.messages
    assert expected in warning


def test_unrecorded_rank_sends_nothing(paceline):
    peer = Topology(rank=1, dp_rank=0, stage=0, dp_size=1, pp_size=1, tp_size=2, records=False)
    assert recorder(paceline.url, topology=peer) is NULL
    assert paceline.puts == []


def test_switch_is_read_from_slurm(monkeypatch):
    from paceline_client.startup import placement

    assert placement(None, None) == {}
    monkeypatch.setenv("SLURM_TOPOLOGY_ADDR", "spine.leaf3.n17")
    monkeypatch.setenv("SLURM_TOPOLOGY_ADDR_PATTERN", "switch.switch.node")
    assert placement("r1", None) == {"rack": "r1", "switch": "leaf3"}
    monkeypatch.setenv("PACELINE_SWITCH", "told")
    monkeypatch.setenv("PACELINE_RACK", "r2")
    assert placement(None, None) == {"rack": "r2", "switch": "told"}


@pytest.mark.parametrize(
    "nonsense", [None, "three", [], {}, object()], ids=lambda it: type(it).__name__
)
def test_invalid_arguments_and_broken_cuda_never_raise(offline, nonsense):
    run, _ = offline
    run._plans.update({"recording": {
        "version": 1, "from_step": 0, "enabled": True, "every": 2, "steps": 1,
    }})  # fmt: skip
    assert run.records(nonsense) is False
    run._cuda = BrokenCuda()
    with run.step(0):
        for name in ("gc", nonsense):
            with run.op(name) as op:
                op.tell(tokens=nonsense)
            run.end(run.begin(name))
    with run.step(nonsense), run.op("gc"):
        pass
    assert run.flush(nonsense) is False


class BrokenCuda:
    """CUDA after an error, which every further call raises again."""

    def is_usable(self):
        raise RuntimeError("an illegal memory access was encountered")


@pytest.mark.parametrize("values", [[3, 1, 1, 2, 2], ["3", "1", "1", "2", "2"]], ids=str)
def test_numpy_numbers_and_numeric_strings_are_accepted(paceline, values):
    import numpy as np

    names = ("rank", "dp_rank", "stage", "dp_size", "pp_size")
    numbers = {
        name: value if isinstance(value, str) else np.int64(value)
        for name, value in zip(names, values, strict=True)
    }
    run = recorder(paceline.url, **numbers, gpus=np.int32(8), max_ops="100")
    with run.step(np.int64(1)), run.op("gc", microbatch=np.int32(2)):
        pass
    assert run.flush(WITHIN_S)
    run.close()
    assert paceline.puts[0][1]["parallelism"]["dp_size"] == 2
    assert [(batch.rank, batch.dp_rank, batch.stage) for batch in paceline.batches] == [(3, 1, 1)]
    assert paceline.steps_done == [(1, 1)]
