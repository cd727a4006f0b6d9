"""Alpha-beta cost models of all-reduce and its parts; a fit of alpha and beta.

A message of m bytes takes alpha + m * beta seconds; a rank sends one message and receives one at a
time, both at once. Adding up costs nothing. `num_ranks` is n, `num_bytes` the whole buffer s of a
rank, before the reduction and after it.

Sources: Thakur, Rabenseifner and Gropp 2005 (ring); Devraj et al., arXiv 2505.23523 (StragglAR).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from app.errors import InvalidRequest
from app.trace.window import Floats


@dataclass(frozen=True, slots=True)
class Network:
    """Latency of a message in seconds, and seconds per byte of one rank's link.

    Raises:
        InvalidRequest: one of them is negative or not finite.
    """

    alpha_s: float
    beta_s_per_byte: float

    def __post_init__(self) -> None:
        for name in ("alpha_s", "beta_s_per_byte"):
            value = getattr(self, name)
            if not (np.isfinite(value) and value >= 0):
                raise InvalidRequest(f"{name} is {value}: give a number, 0 or more")

    def cost_s(self, terms: "Terms", num_bytes: float) -> float:
        """Seconds of an algorithm with these terms."""
        return terms.messages * self.alpha_s + terms.buffers * num_bytes * self.beta_s_per_byte

    def ring_s(self, num_ranks: int, num_bytes: float) -> float:
        """Seconds of a ring all-reduce: 2 (n - 1) alpha + 2 (n - 1) / n s beta."""
        return self.cost_s(ring_terms(num_ranks), num_bytes)

    def reduce_scatter_s(self, num_ranks: int, num_bytes: float) -> float:
        """Seconds of a ring reduce-scatter or all-gather: (n - 1) alpha + (n - 1) / n s beta."""
        return self.cost_s(reduce_scatter_terms(num_ranks), num_bytes)

    def straggl_ar_s(self, num_ranks: int, num_bytes: float, delay_s: Floats) -> Floats:
        """[delays], seconds of StragglAR from the last arrival on, its last rank so far behind.

        max(0, reduce-scatter of n - 1 - delay) + (n - 2 + log2 n) (alpha + s / (n - 1) beta)

        A negative delay is that of a rank that is not the last.

        Raises:
            InvalidRequest: n is no power of two.
        """
        exchange_s = self.cost_s(straggl_ar_terms(num_ranks), num_bytes)
        if num_ranks < 2:
            return np.full(delay_s.shape, exchange_s)
        before_s = self.reduce_scatter_s(num_ranks - 1, num_bytes)
        return np.asarray(np.maximum(0.0, before_s - np.maximum(0.0, delay_s)) + exchange_s)

    def break_even_delay_s(self, num_ranks: int, num_bytes: float) -> float | None:
        """Seconds that the last rank is behind from which StragglAR is faster than a ring.

        Reduce-scatter of n - 1, plus StragglAR, minus ring; None where no delay makes it faster.

        Raises:
            InvalidRequest: n is no power of two.
        """
        _check_ranks(num_ranks, least=2)
        exchange_s = self.cost_s(straggl_ar_terms(num_ranks), num_bytes)
        usual_s = self.ring_s(num_ranks, num_bytes)
        if exchange_s >= usual_s:
            return None
        return self.reduce_scatter_s(num_ranks - 1, num_bytes) + exchange_s - usual_s


class Terms(NamedTuple):
    """T = messages * alpha + buffers * s * beta."""

    messages: float
    buffers: float


def reduce_scatter_terms(num_ranks: int) -> Terms:
    """Ring reduce-scatter: n - 1 messages of s / n. All-gather has the same."""
    _check_ranks(num_ranks)
    return Terms(num_ranks - 1, (num_ranks - 1) / num_ranks)


def ring_terms(num_ranks: int) -> Terms:
    """Ring all-reduce: a reduce-scatter, then an all-gather."""
    messages, buffers = reduce_scatter_terms(num_ranks)
    return Terms(2 * messages, 2 * buffers)


def straggl_ar_terms(num_ranks: int) -> Terms:
    """StragglAR once the last rank has arrived: n - 2 + log2 n messages of s / (n - 1).

    The other ranks have finished their reduce-scatter by then (`straggl_ar_s` where they have not).

    Raises:
        InvalidRequest: n is no power of two.
    """
    _check_ranks(num_ranks)
    if num_ranks & (num_ranks - 1):
        raise InvalidRequest(
            f"{num_ranks} ranks: the model of StragglAR is for powers of two; for others, the "
            "number of rounds that its schedule synthesizer finds is needed"
        )
    if num_ranks == 1:
        return Terms(0, 0.0)
    rounds = num_ranks - 2 + num_ranks.bit_length() - 1
    return Terms(rounds, rounds / (num_ranks - 1))


class Measured(NamedTuple):
    """One ring all-reduce as measured; `seconds` from the last rank's arrival to the end."""

    num_ranks: int
    num_bytes: float
    seconds: float


def fit_network(measured: Sequence[Measured]) -> Network | None:
    """Alpha and beta, neither below 0, of least squared relative error; None without a collective.

    Equal sizes determine only the sum of both terms: alpha is then 0. Collectives of one rank, of
    no bytes or of no time are left out.
    """
    rows = [
        (*ring_terms(num_ranks), num_bytes, seconds)
        for num_ranks, num_bytes, seconds in measured
        if num_ranks > 1 and num_bytes > 0 and seconds > 0
    ]
    if not rows:
        return None
    # Of relative errors: each row divided by what was measured.
    messages, buffers, num_bytes, seconds = np.array(rows, np.float64).T
    latency, per_byte = messages / seconds, buffers * num_bytes / seconds
    ones = np.ones(len(rows))
    if np.ptp(per_byte / latency) > 1e-9 * np.max(per_byte / latency):
        scale = np.array([np.linalg.norm(latency), np.linalg.norm(per_byte)])
        columns = np.stack([latency, per_byte], axis=1) / scale
        alpha_s, beta = np.linalg.lstsq(columns, ones, rcond=None)[0] / scale
        if alpha_s >= 0 and beta >= 0:
            return Network(float(alpha_s), float(beta))
        if beta < 0:
            return Network(float(latency.sum() / (latency @ latency)), 0.0)
    return Network(0.0, float(per_byte.sum() / (per_byte @ per_byte)))


def _check_ranks(num_ranks: int, least: int = 1) -> None:
    if num_ranks < least:
        raise InvalidRequest(f"{num_ranks} ranks: a collective has at least {least}")
