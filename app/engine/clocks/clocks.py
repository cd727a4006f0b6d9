"""What is known of the clocks of a window's hosts."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class HostClock:
    """One host's clock against the reference's: how far ahead, how much faster, and how surely.

    `offset_s` is that of the middle of the window; `drift_ppm` is None where the window is too
    short to tell. `residual_s`: nine in ten of its ends that it shares are, once corrected, no
    further than this from the moment that they should be at.
    """

    offset_s: float
    drift_ppm: float | None
    residual_s: float


@dataclass(frozen=True, slots=True)
class Clocks:
    """The clocks of all hosts, by name, and what nine in ten of all shared ends keep to.

    Where they could not be measured, `residual_s` is None and `reason` says why; times are then
    as they were recorded. With a residual, `reason` says what remains unknown, if anything.
    """

    residual_s: float | None = None
    hosts: Mapping[str, HostClock] = field(default_factory=dict)
    reason: str | None = None

    @property
    def offset_s(self) -> dict[str, float]:
        """How far each host's clock was ahead in the middle of the window."""
        return {name: clock.offset_s for name, clock in self.hosts.items()}

    @property
    def drift_ppm(self) -> dict[str, float | None]:
        """How many microseconds each host's clock gained in a second."""
        return {name: clock.drift_ppm for name, clock in self.hosts.items()}
