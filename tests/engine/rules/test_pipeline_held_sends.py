"""DDP in a pipeline reduces the last bucket before the stage sends its gradient on."""

import pytest

from app.engine.report import analyse
from tests.engine.test_graph import Named
from tests.window_factory import Row, replicas, window

LAST = "backward-send 0@1"


def _rows(*, named: bool = True, reduced_from: float = 4.5, sent_at: float = 7.0) -> list[Row]:
    """One micro-batch there and back; stage 1 reduces its gradients until 7 s before it sends."""
    mb = {"mb_id": 0, "mc": 0} if named else {"mc": 0}
    return [
        Row("forward-compute", 0, 1, **mb),
        Row("forward-send", 1, 1, **mb),
        Row("forward-recv", 0, 2, stage=1, **mb),
        Row("forward-compute", 2, 1, stage=1, **mb),
        Row("backward-compute", 3, 2, stage=1, **mb),
        Row("grads-reduce-scatter", reduced_from, 2.5, stage=1, mc=0),
        Row("backward-send", sent_at, 1, stage=1, **mb),
        Row("backward-recv", 1, sent_at, **mb),
        Row("backward-compute", sent_at + 1, 2, **mb),
        Row("grads-reduce-scatter", sent_at + 3, 1, mc=0),
        Row("optimizer", sent_at + 4, 1),
        Row("optimizer", 8, 1, stage=1),
    ]


def test_a_send_posted_after_the_gradient_reduction_waits_for_it():
    named = Named(window(replicas(_rows(), 2), dp_size=2, pp_size=2))
    assert named.waits_for(LAST) == {"backward-compute 0@1", "grads-reduce-scatter 0@1"}


def test_a_step_with_a_held_send_is_simulated_exactly():
    # 1 s forward, 1 s sent, 1 + 2 s on stage 1, 2 s more reduced, 1 s sent, 2 s backward, 1 s
    # reduced, 1 s of optimizer.
    report = analyse(window(replicas(_rows(), 2), dp_size=2, pp_size=2))
    assert report.simulated_s.tolist() == [12.0]
    assert report.recorded_s.tolist() == [12.0]


@pytest.mark.parametrize(
    ("about", "why"),
    [
        ({"named": False}, "sends without a micro-batch follow the published rules"),
        ({"sent_at": 5.0}, "it was sent at once"),
        ({"sent_at": 6.5}, "the gradients were still being reduced"),
        ({"reduced_from": 2.0}, "they had been reduced before the gradient was there"),
        ({"reduced_from": 5.0, "sent_at": 8.0}, "they came after the computation, in the chain"),
    ],
)
def test_no_other_send_waits_for_gradients(about, why):
    named = Named(window(replicas(_rows(**about), 2), dp_size=2, pp_size=2))
    assert named.waits_for(LAST) == {"backward-compute 0@1"}, why


def test_a_send_queued_behind_another_waits_only_for_that_one():
    # The send of micro-batch 0 is under way until 9 s, gradients are reduced from 6 to 8 s.
    rows = [
        Row("forward-compute", 0, 1, mb_id=0, mc=0),
        Row("forward-compute", 1, 1, mb_id=1, mc=0),
        Row("forward-compute", 0, 1, stage=1, mb_id=0, mc=0),
        Row("forward-compute", 1, 1, stage=1, mb_id=1, mc=0),
        Row("backward-compute", 2, 2, stage=1, mb_id=0, mc=0),
        Row("backward-send", 4, 5, stage=1, mb_id=0, mc=0),
        Row("backward-compute", 4, 2, stage=1, mb_id=1, mc=0),
        Row("grads-reduce-scatter", 6, 2, stage=1, mc=0),
        Row("backward-send", 9, 1, stage=1, mb_id=1, mc=0),
        Row("backward-recv", 2, 7, mb_id=0, mc=0),
        Row("backward-recv", 9, 1, mb_id=1, mc=0),
        Row("backward-compute", 9, 1, mb_id=0, mc=0),
        Row("backward-compute", 10, 1, mb_id=1, mc=0),
    ]
    named = Named(window(replicas(rows, 2), dp_size=2, pp_size=2))
    assert "grads-reduce-scatter 0@1" not in named.waits_for("backward-send 1@1")
