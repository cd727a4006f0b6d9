"""How long does it take to move so many bytes? The alpha-beta model, collectives as rings."""

from dataclasses import dataclass

import numpy as np

from app.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class Network:
    """Every message takes `alpha_s` to begin with, and then its bytes at `bytes_per_s`."""

    alpha_s: float = 1e-5
    bytes_per_s: float = 5e10  # 400 Gbit/s

    def __post_init__(self) -> None:
        if not (np.isfinite(self.alpha_s) and self.alpha_s >= 0):
            raise InvalidRequest(f"alpha_s is {self.alpha_s}: give a number, 0 or more")
        if not self.bytes_per_s > 0:
            raise InvalidRequest(f"bytes_per_s is {self.bytes_per_s}: give a number above 0")

    def transfer_s(self, num_bytes: float) -> float:
        """From one worker to another.

        alpha + s * beta
        """
        return self.alpha_s + num_bytes / self.bytes_per_s

    def all_gather_s(self, num_ranks: int, num_bytes: float) -> float:
        """Until each of n ranks has all s bytes, of which it had one n-th.

        (n - 1) alpha + (n - 1) / n * s * beta
        """
        others = num_ranks - 1
        return others * self.alpha_s + others / num_ranks * num_bytes / self.bytes_per_s

    def reduce_scatter_s(self, num_ranks: int, num_bytes: float) -> float:
        """Until each of n ranks has one n-th of the sum; the same the other way round."""
        return self.all_gather_s(num_ranks, num_bytes)

    def all_reduce_s(self, num_ranks: int, num_bytes: float) -> float:
        """Until each of n ranks has the whole sum.

        2 (n - 1) alpha + 2 (n - 1) / n * s * beta
        """
        scattered_s = self.reduce_scatter_s(num_ranks, num_bytes)
        return scattered_s + self.all_gather_s(num_ranks, num_bytes)
