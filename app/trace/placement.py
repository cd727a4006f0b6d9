"""Where a host stands, as far as its worker says."""

from typing import NamedTuple


class Placement(NamedTuple):
    """The rack that a host is in, and the switch that it is connected to; None where unknown."""

    rack: str | None = None
    switch: str | None = None


UNPLACED = Placement()
