from itertools import pairwise

import pytest

from app.engine.graph import StepGraph, build_graph
from app.engine.grid import lay_out
from app.engine.template import Template
from app.errors import InvalidTrace
from app.trace.window import Window
from tests.window_factory import Row, in_row, replicas, there_and_back, window


class Named:
    """A graph with operations named "optype number@stage"."""

    def __init__(self, a_window: Window) -> None:
        grid = lay_out(a_window)
        self.template: Template = grid.template
        self.graph: StepGraph = build_graph(grid)

    def name(self, op: int) -> str:
        return self.template.describe(op).replace(" on stage ", "@")

    def waits_for(self, wanted: str) -> set[str]:
        graph = self.graph
        (op,) = (op for op in range(graph.num_ops) if self.name(op) == wanted)
        return {self.name(p) for p in graph.preds[graph.pred_ptr[op] : graph.pred_ptr[op + 1]]}

    @property
    def groups(self) -> set[frozenset[str]]:
        """Units of more than one operation."""
        graph = self.graph
        units = (
            graph.unit_ops[graph.unit_ptr[unit] : graph.unit_ptr[unit + 1]]
            for unit in range(graph.meets.size)
        )
        return {frozenset(map(self.name, unit)) for unit in units if len(unit) > 1}


def end_of_step(*extra: str, stage: int = 0) -> list[Row]:
    """A forward, a backward, some more operations, an optimizer: one after the other."""
    names = ["forward-compute", "backward-compute", *extra, "optimizer"]
    return in_row(*((name, 1.0) for name in names), stage=stage)


def test_computes_of_a_stage_run_one_after_the_other_in_recorded_order():
    rows = in_row(("forward-compute", 1), ("backward-compute", 1), ("forward-compute", 1))
    named = Named(window(rows))
    assert named.waits_for("forward-compute 0@0") == set()
    assert named.waits_for("backward-compute 0@0") == {"forward-compute 0@0"}
    assert named.waits_for("forward-compute 1@0") == {"backward-compute 0@0"}


def test_computes_that_start_together_run_in_the_order_of_their_numbers_then_names():
    rows = [
        Row("forward-compute", 0, 0, seq_id=1),
        Row("forward-compute", 0, 0, seq_id=0),
        Row("backward-compute", 0, 0, seq_id=0),
    ]
    named = Named(window(rows))
    assert named.waits_for("forward-compute 0@0") == {"backward-compute 0@0"}
    assert named.waits_for("forward-compute 1@0") == {"forward-compute 0@0"}


@pytest.mark.parametrize(
    "optype", ["forward-send", "forward-recv", "backward-send", "backward-recv"]
)
def test_sends_and_recvs_of_a_direction_are_a_stream_even_without_computes(optype):
    named = Named(window([Row(optype, 0, 3), Row(optype, 1, 3)]))
    assert named.waits_for(f"{optype} 0@0") == set()
    assert named.waits_for(f"{optype} 1@0") == {f"{optype} 0@0"}


def test_a_micro_batch_is_received_computed_and_sent_on():
    named = Named(window(there_and_back(), pp_size=2))
    assert named.waits_for("forward-send 0@0") == {"forward-compute 0@0"}
    assert named.waits_for("forward-recv 0@1") == set()
    assert named.waits_for("forward-compute 0@1") == {"forward-recv 0@1"}
    assert named.waits_for("backward-compute 0@0") == {"forward-compute 0@0", "backward-recv 0@0"}
    assert named.groups == {
        frozenset({"forward-send 0@0", "forward-recv 0@1"}),
        frozenset({"backward-send 0@1", "backward-recv 0@0"}),
    }


def test_a_recv_is_posted_when_the_compute_before_it_has_ended():
    rows = [
        *in_row(("forward-compute", 1), ("forward-compute", 1)),
        Row("forward-send", 1, 0.5),
        Row("forward-send", 2, 0.5),
        *in_row(*[("forward-recv", 1.0), ("forward-compute", 1.0)] * 2, start_s=0.5, stage=1),
    ]
    named = Named(window(rows, pp_size=2))
    assert named.waits_for("forward-recv 1@1") == {"forward-recv 0@1", "forward-compute 0@1"}
    assert named.waits_for("forward-send 1@0") == {"forward-send 0@0", "forward-compute 1@0"}


@pytest.mark.parametrize(
    ("start_s", "is_paired"), [(2.000_049, True), (2.000_051, False)], ids=["within", "beyond"]
)
def test_a_recv_that_starts_after_the_last_compute_feeds_none(start_s, is_paired):
    # It has a partner for its send only where it counts as live.
    rows = [
        *in_row(("forward-compute", 1)),
        Row("forward-send", 1, 2),
        Row("forward-compute", 2, 1, stage=1),
        Row("forward-recv", start_s, 1, stage=1),
    ]
    if is_paired:
        named = Named(window(rows, pp_size=2))
        assert named.waits_for("forward-compute 0@1") == {"forward-recv 0@1"}
    else:
        with pytest.raises(InvalidTrace, match="stage 0 has 1 forward-send for stage 1"):
            Named(window(rows, pp_size=2))


@pytest.mark.parametrize(
    ("end_s", "is_live"), [(0.999_951, True), (0.999_949, False)], ids=["within", "beyond"]
)
def test_a_send_that_ends_before_the_first_compute_carries_nothing(end_s, is_live):
    rows = [
        Row("forward-compute", 0, 1),
        Row("forward-send", 0.5, end_s - 0.5),
        Row("forward-compute", 2, 1, stage=1),
    ]
    if is_live:
        with pytest.raises(InvalidTrace, match="1 forward-send for stage 1, which has 0"):
            Named(window(rows, pp_size=2))
    else:
        named = Named(window(rows, pp_size=2))
        assert named.waits_for("forward-send 0@0") == set()
        assert named.groups == set()


def interleaved(*, with_first_recv: bool) -> list[Row]:
    """One micro-batch forward through two chunks on each of two stages."""
    steps = [("forward-recv", 1.0), ("forward-compute", 1.0), ("forward-send", 1.0)]
    rows = []
    for model_chunk in range(4):
        chunk, stage = divmod(model_chunk, 2)
        here = in_row(*steps, start_s=3.0 * model_chunk, stage=stage)
        rows += [row.on(mc=chunk) for row in here]
    return rows if with_first_recv else rows[1:]


@pytest.mark.parametrize("with_first_recv", [True, False])
def test_interleaved_chunks_wrap_around_the_stages_but_not_beyond_the_model(with_first_recv):
    rows = interleaved(with_first_recv=with_first_recv)
    named = Named(window(rows, pp_size=2, vpp_size=2))
    later = 1 if with_first_recv else 0
    assert named.groups == {
        frozenset({"forward-send 0@0", "forward-recv 0@1"}),
        frozenset({"forward-send 0@1", f"forward-recv {later}@0"}),
        frozenset({"forward-send 1@0", "forward-recv 1@1"}),
    }
    assert f"forward-recv {later}@0" in named.waits_for("forward-compute 1@0")
    assert named.waits_for("forward-send 1@1") == {"forward-send 0@1", "forward-compute 1@1"}


def test_a_stage_with_one_chunk_may_omit_the_chunk():
    unnamed = [row.on(mc=-1) for row in there_and_back()]
    named = Named(window(unnamed, pp_size=2))
    assert named.groups == Named(window(there_and_back(), pp_size=2)).groups


def test_with_several_chunks_a_compute_without_chunk_is_refused():
    unnamed = [row.on(mc=-1) for row in there_and_back()]
    with pytest.raises(InvalidTrace, match="forward-compute 0 on stage 0 names no model chunk"):
        Named(window(unnamed, pp_size=2, vpp_size=2))


def test_the_first_backward_send_and_recv_wait_for_the_second_last_compute_before_backward():
    rows = [
        *in_row(*[("forward-compute", 1.0)] * 3, ("backward-compute", 1.0)),
        *in_row(*[("forward-send", 1.0)] * 3, start_s=3.0),
        Row("backward-recv", 2, 1),
        *in_row(*[("forward-recv", 2.0), ("forward-compute", 1.0)] * 3, stage=1),
        Row("backward-compute", 9, 1, stage=1),
        Row("backward-send", 10, 1, stage=1),
    ]
    named = Named(window(rows, pp_size=2))
    assert named.waits_for("backward-recv 0@0") == {"forward-compute 1@0"}
    assert named.waits_for("backward-send 0@1") == {"forward-compute 1@1", "backward-compute 0@1"}


def test_a_first_backward_after_one_compute_waits_for_no_compute():
    assert Named(window(there_and_back(), pp_size=2)).waits_for("backward-recv 0@0") == set()


def test_a_chunk_runs_after_its_last_gather():
    rows = [
        Row("params-all-gather", 0, 1, mc=0),
        Row("params-all-gather", 1, 1, mc=1),
        Row("params-all-gather", 2, 1, mc=0),
        Row("forward-compute", 3, 1, mc=0),
        Row("forward-compute", 4, 1, mc=1),
    ]
    named = Named(window(replicas(rows, 2), dp_size=2, vpp_size=2))
    assert named.waits_for("forward-compute 0@0") == {"params-all-gather 2@0"}
    assert named.waits_for("forward-compute 1@0") == {
        "forward-compute 0@0",
        "params-all-gather 1@0",
    }


def test_without_data_parallelism_nothing_waits_for_parameters_or_gradients():
    rows = in_row(
        ("params-all-gather", 1),
        ("forward-compute", 1),
        ("backward-compute", 1),
        ("grads-reduce-scatter", 1),
        ("optimizer", 1),
    )
    named = Named(window(rows))
    assert named.waits_for("forward-compute 0@0") == set()
    assert named.waits_for("grads-reduce-scatter 0@0") == set()
    assert named.waits_for("optimizer 0@0") == {"backward-compute 0@0"}


def test_sequence_sharding_alone_counts_as_data_parallelism():
    rows = end_of_step("grads-reduce-scatter")
    named = Named(window(rows, dsp_size=2))
    assert named.waits_for("optimizer 0@0") == {"grads-reduce-scatter 0@0"}


def test_the_end_of_a_step_is_one_chain():
    names = [
        "gc",
        "layernorm-grads-all-reduce",
        "embedding-grads-all-reduce",
        "grads-reduce-scatter",
        "optimizer-clip-main-grad",
    ]
    named = Named(window(replicas(end_of_step(*names), 2), dp_size=2))
    chained = ["backward-compute", *names, "optimizer"]
    for before, after in pairwise(chained):
        assert named.waits_for(f"{after} 0@0") == {f"{before} 0@0"}


@pytest.mark.parametrize(
    "left_out", ["gc", "layernorm-grads-all-reduce", "optimizer-clip-main-grad"]
)
def test_the_chain_skips_operations_that_a_stage_does_not_have(left_out):
    names = ["gc", "layernorm-grads-all-reduce", "optimizer-clip-main-grad"]
    rest = [name for name in names if name != left_out]
    named = Named(window(end_of_step(*rest)))
    chained = ["backward-compute", *rest, "optimizer"]
    for before, after in pairwise(chained):
        assert named.waits_for(f"{after} 0@0") == {f"{before} 0@0"}


def test_a_second_gc_delays_nothing():
    named = Named(window(end_of_step("gc", "gc")))
    assert named.waits_for("optimizer 0@0") == {"gc 0@0"}
    assert named.waits_for("gc 1@0") == set()


def test_of_computes_with_equal_ends_the_last_ends_the_stage():
    rows = in_row(("forward-compute", 1), ("backward-compute", 0), ("optimizer", 1))
    assert Named(window(rows)).waits_for("optimizer 0@0") == {"backward-compute 0@0"}


def test_overlapped_scatters_wait_for_their_chunks_backward_only():
    rows = [
        *in_row(("forward-compute", 1), ("forward-compute", 1)),
        Row("backward-compute", 2, 1, mc=1),
        Row("grads-reduce-scatter", 3, 1, mc=1),
        Row("backward-compute", 3, 1, mc=0),
        Row("grads-reduce-scatter", 4, 1, mc=0),
        Row("grads-reduce-scatter", 5, 1, mc=0),
        *in_row(
            ("gc", 1),
            ("layernorm-grads-all-reduce", 1),
            ("separate-grads-all-reduce", 1),
            ("optimizer", 1),
            start_s=6,
        ),
    ]
    named = Named(window(replicas(rows, 2), dp_size=2, vpp_size=2))
    assert named.waits_for("grads-reduce-scatter 0@0") == {"backward-compute 0@0"}
    assert named.waits_for("grads-reduce-scatter 1@0") == {
        "grads-reduce-scatter 0@0",
        "backward-compute 1@0",
    }
    assert named.waits_for("grads-reduce-scatter 2@0") == {"grads-reduce-scatter 1@0"}
    assert named.waits_for("layernorm-grads-all-reduce 0@0") == {
        "gc 0@0",
        "grads-reduce-scatter 2@0",
    }
    assert named.waits_for("separate-grads-all-reduce 0@0") == {"layernorm-grads-all-reduce 0@0"}
    assert named.waits_for("optimizer 0@0") == {"separate-grads-all-reduce 0@0"}


def test_first_and_last_stage_share_the_embedding_and_all_stages_the_clip():
    names = ["embedding-grads-all-reduce", "optimizer-clip-main-grad"]
    rows = [row for stage in range(3) for row in end_of_step(*names, stage=stage)]
    named = Named(window(rows, pp_size=3))
    assert named.groups == {
        frozenset({"embedding-grads-all-reduce 0@0", "embedding-grads-all-reduce 0@2"}),
        frozenset({f"optimizer-clip-main-grad 0@{stage}" for stage in range(3)}),
    }
    # A middle stage holds no embedding: its record of one is in nobody's way.
    assert named.waits_for("optimizer-clip-main-grad 0@1") == {"backward-compute 0@1"}


def test_every_operation_comes_after_its_predecessors():
    graph = Named(window(there_and_back(), pp_size=2)).graph
    unit_of = {}
    for unit in range(graph.meets.size):
        for op in graph.unit_ops[graph.unit_ptr[unit] : graph.unit_ptr[unit + 1]]:
            unit_of[int(op)] = unit
    assert sorted(unit_of) == list(range(10))
    for op, unit in unit_of.items():
        before = graph.preds[graph.pred_ptr[op] : graph.pred_ptr[op + 1]]
        assert all(unit_of[int(other)] < unit for other in before)


def test_a_cycle_of_operations_is_named():
    # By its record, stage 0 went backward before it went forward, whose result comes back to it.
    swapped = {"forward-compute": 6.0, "forward-send": 7.0, "backward-recv": 0.0}
    rows = [
        row.on(start_s=swapped.get(row.optype, 1.0)) if row.stage == 0 else row
        for row in there_and_back()
    ]
    with pytest.raises(InvalidTrace, match="in a circle") as refused:
        Named(window(rows, pp_size=2))
    assert all(name in str(refused.value) for name in ("backward-recv 0 on stage 0", "on stage 1"))
    assert "optimizer" not in str(refused.value)


def test_a_send_without_its_recv_is_refused():
    rows = [row for row in there_and_back() if row.optype != "forward-recv"]
    with pytest.raises(InvalidTrace, match="1 forward-send for stage 1, which has 0 forward-recv"):
        Named(window(rows, pp_size=2))
