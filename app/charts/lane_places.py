"""Where the lanes of a timeline are: the recorded run above, the ideal run beneath."""

from dataclasses import dataclass

# (up to so many stages, height of a lane, of its bar, of its transfers): pixels.
_SIZES = ((8, 45, 21, 6), (16, 32, 15, 5), (1 << 30, 22, 10, 4))
_HEADER_PX = 30
_BETWEEN_PX = 28
RUNS = ("recorded", "ideal")


@dataclass(frozen=True, slots=True)
class LanePlaces:
    """Heights in pixels from the top of the plot; `run` is 0 for recorded and 1 for ideal."""

    pp_size: int

    @property
    def lane_px(self) -> int:
        """From one stage to the next."""
        return self._size[1]

    @property
    def bar_px(self) -> int:
        """A bar of computing or waiting."""
        return self._size[2]

    @property
    def transfer_px(self) -> int:
        """A bar of moving data."""
        return self._size[3]

    @property
    def height_px(self) -> int:
        """The whole plot."""
        return self.bottom(1) + 8

    @property
    def clear_px(self) -> int:
        """How far an outline stands off its bar."""
        return 4 if self.lane_px > 40 else 2

    def top(self, run: int) -> int:
        """Where the run's lanes begin, under its header."""
        of_run = _HEADER_PX + self.pp_size * self.lane_px + _BETWEEN_PX
        return _HEADER_PX + run * of_run

    def bottom(self, run: int) -> int:
        """Where they end."""
        return self.top(run) + self.pp_size * self.lane_px

    def bar_y(self, run: int, stage: int) -> float:
        """The middle of a stage's bars."""
        return self.top(run) + stage * self.lane_px + self.clear_px + self.bar_px / 2

    def transfer_y(self, run: int, stage: int) -> float:
        """The middle of its transfers, beneath."""
        below = self.bar_px / 2 + self.clear_px + self.transfer_px / 2 + 2
        return self.bar_y(run, stage) + below

    @property
    def _size(self) -> tuple[int, int, int, int]:
        return next(size for size in _SIZES if self.pp_size <= size[0])
