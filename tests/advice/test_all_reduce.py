import numpy as np
import pytest

from app.advice.all_reduce import (
    Measured,
    Network,
    Terms,
    fit_network,
    straggl_ar_terms,
)
from app.errors import InvalidRequest

GIB = float(1 << 30)
# The paper's network: 3 us, 450 GiB/s.
NVLINK = Network(3e-6, 1 / (450 * GIB))
NO_DELAY = np.zeros(1)


def test_a_ring_passes_a_piece_on_in_each_of_its_rounds():
    # 5 ranks: 4 rounds of 3 s + 100 bytes x 0.25 s scatter, as many gather.
    slow = Network(3.0, 0.25)
    assert slow.reduce_scatter_s(5, 500.0) == pytest.approx(4 * 28.0)
    assert slow.ring_s(5, 500.0) == pytest.approx(8 * 28.0)


def test_one_rank_sends_nothing():
    for cost_s in (NVLINK.ring_s, NVLINK.reduce_scatter_s):
        assert cost_s(1, GIB) == 0
    assert NVLINK.straggl_ar_s(1, GIB, NO_DELAY) == 0
    with pytest.raises(InvalidRequest, match="at least 2"):
        NVLINK.break_even_delay_s(1, GIB)


def test_published_figures_of_straggl_ar():
    """Ratio of the ring's time to StragglAR's after the last arrival: 1.363, or 26.6 % less."""
    assert straggl_ar_terms(8) == Terms(9, 9 / 7)
    ratio = NVLINK.ring_s(8, GIB) / NVLINK.cost_s(straggl_ar_terms(8), GIB)
    assert ratio == pytest.approx(1.363, abs=0.0005)
    assert 1 - 1 / ratio == pytest.approx(0.266, abs=0.0005)
    assert NVLINK.break_even_delay_s(8, GIB) == pytest.approx(0.876e-3, abs=0.5e-6)


@pytest.mark.parametrize("num_ranks", [4, 8, 64, 1024])
def test_straggl_ar_is_as_fast_as_a_ring_at_the_break_even_delay(num_ranks):
    delay_s = NVLINK.break_even_delay_s(num_ranks, GIB)
    assert delay_s is not None
    usual_s = NVLINK.ring_s(num_ranks, GIB)
    delays_s = np.array([delay_s, 1.01 * delay_s, 0.99 * delay_s, -1.0, 0.0])
    even_s, late_s, soon_s, early_s, in_time_s = NVLINK.straggl_ar_s(num_ranks, GIB, delays_s)
    assert even_s == pytest.approx(usual_s)
    assert late_s < usual_s < soon_s
    # Early is no better than in time: the others have to finish first.
    assert early_s == in_time_s


def test_two_ranks_have_nothing_to_gain():
    assert Network(0.0, 1e-9).break_even_delay_s(2, GIB) is None


@pytest.mark.parametrize("num_ranks", [3, 6, 12, 100])
def test_other_numbers_of_ranks_say_what_they_need(num_ranks):
    with pytest.raises(InvalidRequest, match="rounds that its schedule synthesizer finds"):
        NVLINK.straggl_ar_s(num_ranks, GIB, NO_DELAY)


def measured(network: Network, sizes: list[float], noise: float = 0.0) -> list[Measured]:
    rng = np.random.default_rng(3)
    return [
        Measured(n, size, network.ring_s(n, size) * float(np.exp(noise * rng.normal())))
        for n in (4, 8)
        for size in sizes
    ]


def fitted(rows: list[Measured]) -> Network:
    found = fit_network(rows)
    assert found is not None
    return found


def test_fit_finds_the_network_that_made_the_times():
    found = fitted(measured(NVLINK, [1e5, 1e7, 1e9]))
    assert found.alpha_s == pytest.approx(NVLINK.alpha_s)
    assert found.beta_s_per_byte == pytest.approx(NVLINK.beta_s_per_byte)
    found = fitted(measured(NVLINK, [1e5, 1e7, 1e9] * 40, noise=0.05))
    assert found.alpha_s == pytest.approx(NVLINK.alpha_s, rel=0.03)
    assert found.beta_s_per_byte == pytest.approx(NVLINK.beta_s_per_byte, rel=0.03)


def test_fit_of_one_size_takes_no_latency():
    found = fitted([Measured(8, GIB, 2e-3)] * 3)
    assert found.alpha_s == 0
    assert found.ring_s(8, GIB) == pytest.approx(2e-3)


def test_fit_is_never_negative():
    longer_for_less = [Measured(8, 1e6, 5e-3), Measured(8, 1e9, 2e-3)]
    found = fitted(longer_for_less)
    assert found.beta_s_per_byte == 0
    # 14 messages: the mean of 1 / 5 ms and 1 / 2 ms over the mean of their squares, by 14.
    assert found.alpha_s == pytest.approx(350 / 145_000 / 14)
    superlinear = [Measured(8, 1e6, 1e-6), Measured(8, 1e9, 9e-3)]
    assert fitted(superlinear).alpha_s == 0


def test_nothing_measured_fits_nothing():
    assert fit_network([]) is None
    assert fit_network([Measured(1, GIB, 1.0), Measured(8, 0, 1.0)]) is None


def test_network_refuses_what_is_no_time():
    with pytest.raises(InvalidRequest, match="alpha_s is -1"):
        Network(-1.0, 0.0)
