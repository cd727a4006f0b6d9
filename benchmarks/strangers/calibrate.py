"""Fits how often findings with a detector's own confidence are right, by isotonic regression.

Pool adjacent violators: findings are sorted by their figure, and neighbours are pooled while a
higher figure is right less often. One right and one wrong finding are added to each block, so that
no block claims certainty after a few findings.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from app.diagnosis.calibration import ANY_FEED, Feed

# A cause with fewer findings keeps its own confidence, a feed with fewer that of all feeds.
MIN_FINDINGS = 60
# A block with fewer findings is pooled with its neighbour.
MIN_BLOCK = 10

Points = tuple[tuple[float, float], ...]
Table = dict[str, dict[str, Points]]


@dataclass(frozen=True, slots=True)
class SaidFinding:
    """A finding's cause, the detector's own confidence 0..1, whether it was right, and its feed."""

    cause: str
    figure: float
    is_right: bool
    feed: Feed


@dataclass(slots=True)
class _Block:
    """Findings with figures from `least` to `most`."""

    least: float
    most: float
    right: int
    number: int

    @property
    def share(self) -> float:
        return (self.right + 1) / (self.number + 2)


def fitted(findings: Sequence[SaidFinding]) -> Table:
    """(figure, share right) by cause and feed, ascending, where there are enough findings."""
    grouped: dict[str, dict[str, list[SaidFinding]]] = {}
    for finding in findings:
        for feed in (ANY_FEED, finding.feed):
            grouped.setdefault(finding.cause, {}).setdefault(feed, []).append(finding)
    table = {
        cause: {
            feed: isotonic_points(of_feed)
            for feed, of_feed in sorted(by_feed.items())
            if len(of_feed) >= MIN_FINDINGS
        }
        for cause, by_feed in sorted(grouped.items())
    }
    return {cause: by_feed for cause, by_feed in table.items() if by_feed}


def isotonic_points(findings: Iterable[SaidFinding]) -> Points:
    """The ends of each block: (figure, share right), both ascending."""
    blocks: list[_Block] = []
    for each in sorted(findings, key=lambda each: each.figure):
        figure = round(each.figure, 3)
        blocks.append(_Block(figure, figure, int(each.is_right), 1))
        # Equal figures are one block; a block must not be right less often than the one before.
        while len(blocks) > 1 and (
            blocks[-2].most == blocks[-1].least or blocks[-2].share >= blocks[-1].share
        ):
            last = blocks.pop()
            blocks[-1] = _pooled(blocks[-1], last)
    found = []
    for block in _without_small_ones(blocks):
        share = round(block.share, 3)
        found += [(block.least, share)] + (
            [(block.most, share)] if block.most > block.least else []
        )
    return tuple(found)


def _pooled(one: _Block, other: _Block) -> _Block:
    return _Block(one.least, other.most, one.right + other.right, one.number + other.number)


def _without_small_ones(blocks: list[_Block]) -> list[_Block]:
    """Small blocks pooled with the one after them, or the last one with that before."""
    found: list[_Block] = []
    for block in blocks:
        if found and found[-1].number < MIN_BLOCK:
            found[-1] = _pooled(found[-1], block)
        else:
            found.append(block)
    if len(found) > 1 and found[-1].number < MIN_BLOCK:
        last = found.pop()
        found[-1] = _pooled(found[-1], last)
    return found


def write_table(path: Path, table: Table, provenance: str) -> None:
    """Write the table as a module of app/diagnosis."""
    lines = [
        f'"""How often findings were right, by the detector\'s own confidence. {provenance}"""',
        "",
        "# (own confidence, share right), ascending in both, by cause and feed.",
        "CALIBRATION: dict[str, dict[str, tuple[tuple[float, float], ...]]] = {",
    ]
    for cause, by_feed in table.items():
        lines += [f'    "{cause}": {{']
        lines += [f'        "{feed}": {points},' for feed, points in by_feed.items()]
        lines += ["    },"]
    path.write_text("\n".join([*lines, "}", ""]))
