"""Scores of ranks that another tool has measured: there are no operations behind them.

Nothing can be simulated from a score, so it has no what-if: wherever scores are shown, they are
marked with `NO_WHAT_IF` and kept apart from what Paceline has computed itself.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from app.trace.collectives import Collectives
from app.trace.readers.foreign import Lack

NO_WHAT_IF = "scores, no what-if"
MAX_SERIES = 200_000  # of one report: 100 bytes each in memory, some 300 with the key
MAX_NAME = 128  # characters of a node, a section or a metric
LATE = "late-by"  # how much later than the first one a rank comes to what all do together
MAX_RANK = 2**31 - 1
_LEAST_SCORE = 1e-9  # of less the inverse says nothing
MAX_AT_S = 253_402_300_799.0  # the last second that a calendar with four digits has


@dataclass(frozen=True, slots=True)
class Score:
    """What a tool says of one rank in one thing, over all the reports that were read.

    `value` (in `unit`) and `score` are the newest readings, `mean` is over all `num` of them, out
    of `of` reports in which somebody was named. `score` is 1 for as fast as what the tool compares
    with, 0.5 for half as fast; `slowdown` is its inverse. What is not known is None, the rank too:
    then `node` says which process it was.
    """

    rank: int | None
    node: str | None
    section: str
    metric: str
    unit: str | None
    value: float | None
    mean: float | None
    score: float | None
    slowdown: float | None
    num: int
    of: int
    step: int | None
    at_s: float | None


@dataclass(frozen=True, slots=True)
class ScoreReport:
    """What one import has found; `lacks` says what could not be told, with its cost.

    `collectives` are those behind the scores, where the tool logs them one by one.
    """

    source: str
    scores: tuple[Score, ...]
    num_reports: int
    lacks: tuple[Lack, ...] = ()
    collectives: Collectives | None = None


def worst_first(scores: Iterable[Score]) -> list[Score]:
    """By slowdown, the slowest first; then by how late they are; then by what they are."""
    return sorted(scores, key=_badness)


def slowdown_of(score: float | None) -> float | None:
    """How many times as long as the reference; None where that is unknown or has no end."""
    return None if score is None or score < _LEAST_SCORE else 1 / score


def named(text: str) -> str:
    """A name from outside on one line and of a bounded length."""
    short = text if len(text) <= MAX_NAME else f"{text[: MAX_NAME - 1]}…"
    return "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in short)


class _Series:
    __slots__ = ("at_s", "node", "num", "rank", "score", "step", "sum", "value")

    def __init__(self, rank: int | None) -> None:
        self.rank = rank
        self.node: str | None = None
        self.num = 0
        self.sum = 0.0
        self.value: float | None = None
        self.score: float | None = None
        self.step: int | None = None
        self.at_s: float | None = None


class Group:
    """Readings of all ranks in one thing."""

    __slots__ = ("_last", "_of", "metric", "named_in", "section", "series", "unit")

    def __init__(self, of: "Collected", section: str, metric: str, unit: str | None) -> None:
        self._of = of
        self._last = 0
        self.section, self.metric, self.unit = section, metric, unit
        self.named_in = 0
        # By rank; who has none is told apart by the node.
        self.series: dict[int | str | None, _Series] = {}

    def add(
        self,
        rank: int | None,
        value: float | None,
        *,
        score: float | None = None,
        node: str | None = None,
    ) -> None:
        """One reading of one rank."""
        of = self._of
        if self._last != of.num_reports:
            self._last = of.num_reports
            self.named_in += 1
        key = node if rank is None else rank
        series = self.series.get(key)
        if series is None:
            if not of.has_room():
                return
            series = self.series[key] = _Series(rank)
        series.node = node or series.node
        series.value, series.score = value, score
        series.step, series.at_s = of.step, of.at_s
        if value is not None:
            series.num += 1
            series.sum += value

    def scores(self) -> Iterator[Score]:
        """What was added, one for each rank."""
        times = max([self.named_in, *(series.num for series in self.series.values())])
        for series in self.series.values():
            yield Score(
                rank=series.rank,
                node=series.node,
                section=self.section,
                metric=self.metric,
                unit=self.unit,
                value=series.value,
                mean=series.sum / series.num if series.num else None,
                score=series.score,
                slowdown=slowdown_of(series.score),
                num=series.num,
                of=times,
                step=series.step,
                at_s=series.at_s,
            )


class Collected:
    """Readings as they come, of which only sums and the newest ones are kept."""

    def __init__(self, *, most: int = MAX_SERIES) -> None:
        self._most = most
        self._groups: dict[tuple[str, str], Group] = {}
        self._num_series = 0
        self.num_reports = 0
        self.num_left_out = 0
        self.step: int | None = None
        self.at_s: float | None = None

    def begin(self, *, step: int | None = None, at_s: float | None = None) -> None:
        """What is added from now on is of another report."""
        self.num_reports += 1
        self.step, self.at_s = step, at_s

    def at(self, at_s: float | None) -> None:
        """What is added from now on is of this moment, in the same report."""
        self.at_s = at_s

    def group(self, section: str, metric: str, unit: str | None) -> Group:
        """Where readings of this thing are added; of a metric the unit is always the same."""
        group = self._groups.get((section, metric))
        if group is None:
            group = Group(self, section, metric, unit)
            if len(self._groups) < self._most:  # else its readings are left out, one by one
                self._groups[section, metric] = group
        return group

    def has_room(self) -> bool:
        """Whether another rank of a group can be kept; if not, its reading is counted."""
        if self._num_series >= self._most:
            self.num_left_out += 1
            return False
        self._num_series += 1
        return True

    def report(self, source: str, lacks: Iterable[Lack] = ()) -> ScoreReport:
        """All that was added, the worst first."""
        found = [*lacks]
        if self.num_left_out:
            what = f"readings of more than {self._most:,} ranks and sections"
            found.append(Lack(what, f"{self.num_left_out:,} readings are left out"))
        scores = (score for group in self._groups.values() for score in group.scores())
        return ScoreReport(source, (*worst_first(scores),), self.num_reports, (*found,))


def _badness(score: Score) -> tuple[float, float, str, str, float, int, str]:
    slowdown = 0.0 if score.slowdown is None else score.slowdown
    mean = 0.0 if score.mean is None else score.mean
    late = mean if score.metric == LATE else -1.0
    rank = -1 if score.rank is None else score.rank
    return (-slowdown, -late, score.section, score.metric, -mean, rank, score.node or "")
