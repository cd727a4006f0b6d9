from dataclasses import replace

import numpy as np
import pytest

from app.errors import InvalidRequest
from app.synth.costs import NetworkModel, OperationCosts, TransformerModel
from app.synth.job import SimulatedJob
from app.synth.schedules import Interleaved
from app.trace.job import Parallelism
from app.trace.ops import OP_CODES

# 24 h^2 T = 96,000 and 2 h T^2 = 40,000 operations a layer; 2 h V T = 68,000 for the loss.
SMALL = TransformerModel(
    num_layers=4, hidden_size=20, seq_len=10, vocab_size=170, flops_per_s=1000.0
)


def test_a_layer_is_linear_in_its_tokens_but_for_attention():
    assert SMALL.layer_flops() == 24 * 400 * 10 + 2 * 20 * 100
    twice = replace(SMALL, seq_len=20)
    assert twice.layer_flops() == 2 * 24 * 400 * 10 + 4 * 2 * 20 * 100


def test_layers_are_balanced_unless_told_otherwise():
    # 4 layers of 100 s, the loss 68 s, the embedding a tenth of a layer.
    chunks_s = SMALL.chunks_s(Parallelism(1, 4))
    np.testing.assert_allclose(chunks_s, (400 + 68 + 10) / 4)


def test_the_first_stage_embeds_and_the_last_one_computes_the_loss():
    even = replace(SMALL, layers=(1, 1, 1, 1))
    np.testing.assert_allclose(even.chunks_s(Parallelism(1, 4)), [110, 100, 100, 168])
    np.testing.assert_allclose(even.chunks_s(Parallelism(1, 4, tp_size=2)), [55, 50, 50, 84])


def test_chunks_go_round_the_stages():
    made = SimulatedJob(
        Parallelism(1, 2, vpp_size=2),
        2,
        costs=replace(SMALL, layers=(1, 1, 2, 0)).costs(
            Parallelism(1, 2, vpp_size=2), NetworkModel(), OperationCosts(noise=0.0)
        ),
        schedule=Interleaved(),
    )
    trace = made.make([0])
    forward = trace.select(trace.optype == OP_CODES["forward-compute"])
    for stage, chunk, expected_s in ((0, 0, 110), (1, 0, 100), (0, 1, 200), (1, 1, 68)):
        mine = (forward.stage == stage) & (forward.mc == chunk)
        np.testing.assert_allclose(forward.duration_s[mine], expected_s)


def test_backwards_take_twice_as_long_and_rings_what_their_bytes_take():
    sizes, network = Parallelism(4, 2, tp_size=2), NetworkModel(1e-3, 1e4)
    costs = SMALL.costs(sizes, network, OperationCosts())
    assert costs.backward_s == 2 * costs.forward_s
    assert costs.forward_s == pytest.approx(478 / 2 / 2)
    # 12 h^2 = 4,800 parameters a layer, two layers a stage, halved by tensor parallelism.
    bytes_of = dict(costs.sizes)
    assert bytes_of["params-all-gather"] == 4_800 * 2 // 2 * 2
    assert bytes_of["forward-send"] == bytes_of["backward-recv"] == 10 * 20 * 2
    assert costs.params_all_gather_s == network.all_gather_s(4, 9_600)
    assert costs.grads_reduce_scatter_s == network.all_gather_s(4, 19_200)
    assert costs.stage_transfer_s == network.transfer_s(400)
    assert costs.noise == OperationCosts().noise


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: replace(SMALL, num_layers=0), "num_layers"),
        (lambda: replace(SMALL, layers=(1, 1)), "2 of 4"),
        (lambda: replace(SMALL, layers=(5, -1)), "layers"),
        (lambda: replace(SMALL, layers=(2, 2)).chunks_s(Parallelism(1, 4)), "the job has 4"),
    ],
)
def test_models_that_cannot_be_are_refused(make, message):
    with pytest.raises(InvalidRequest, match=message):
        make()
