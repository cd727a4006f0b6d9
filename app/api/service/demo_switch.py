"""The switch of the demo's jobs: a file that the API makes and the supervisor of `serve` watches.

A file, since API and supervisor are two processes of one machine that share a directory.
"""

from dataclasses import dataclass
from pathlib import Path

# Simulated jobs would otherwise fill the database long after people stop looking at them.
MAX_DEMO_S = 3600.0


@dataclass(frozen=True, slots=True)
class DemoSwitch:
    """On while the file at `path` exists and is younger than `MAX_DEMO_S`; None: always off."""

    path: Path | None

    def ends_at_s(self) -> float | None:
        """Unix time at which the demo ends by itself; None if it is off."""
        try:
            return None if self.path is None else self.path.stat().st_mtime + MAX_DEMO_S
        except FileNotFoundError:
            return None

    def is_on(self, now_s: float) -> bool:
        """Whether the demo's jobs should run at this Unix time."""
        ends_at_s = self.ends_at_s()
        return ends_at_s is not None and now_s < ends_at_s

    def turn_on(self) -> None:
        """Turn on; one that is on already goes on for as long as if it began now."""
        if self.path is not None:
            self.path.touch(mode=0o600)

    def turn_off(self) -> None:
        """Turn off; nothing happens if it is off."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)
