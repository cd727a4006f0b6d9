"""Scores of ranks measured by another tool, without operations.

A score allows no simulation, so it has no what-if: scores are marked with `NO_WHAT_IF` and kept
apart from Paceline's own figures. `ScoreCollector` sums up readings; `ScoreFiles` opens files.
"""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from app.trace.collectives import Collectives
from app.trace.readers.importing import ImportOptions, MissingData
from app.trace.readers.input_file import FileText, TextLine, TextLines, line_error
from app.work_budget import checkpoint

NO_WHAT_IF = "scores, no what-if"
MAX_SERIES = 200_000  # of one report: 100 bytes each in memory, some 300 with the key
MAX_SCORE_NAME = 128  # characters of a node, a section or a metric
LATE = "late-by"  # how much later than the first one a rank comes to what all do together
MAX_RANK = 2**31 - 1
_MIN_SCORE = 1e-9  # of less the inverse says nothing
MAX_AT_S = 253_402_300_799.0  # the last second that a calendar with four digits has


@dataclass(frozen=True, slots=True)
class Score:
    """One rank's score in one section and metric, over all reports read.

    `value` (in `unit`) and `score` are the newest readings, `mean` is over all `num` of them, out
    of `of` reports that named a straggler. `score` is 1 for as fast as what the tool compares
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
    """The result of one import of scores.

    `collectives` are those behind the scores, where the tool logs them one by one.
    """

    source: str
    scores: tuple[Score, ...]
    num_reports: int
    missing: tuple[MissingData, ...] = ()
    collectives: Collectives | None = None


def worst_first(scores: Iterable[Score]) -> list[Score]:
    """Sorted by slowdown, then lateness, then section and metric; the slowest first."""
    return sorted(scores, key=_sort_key)


def slowdown_of(score: float | None) -> float | None:
    """The inverse of the score; None where that is unknown or infinite."""
    return None if score is None or score < _MIN_SCORE else 1 / score


def printable_name(text: str) -> str:
    """An untrusted name on one line, of bounded length."""
    short = text if len(text) <= MAX_SCORE_NAME else f"{text[: MAX_SCORE_NAME - 1]}…"
    return "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in short)


class _RankReadings:
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


class MetricReadings:
    """Readings of all ranks in one section and metric."""

    __slots__ = ("_last", "_of", "metric", "named_in", "section", "series", "unit")

    def __init__(self, of: "ScoreCollector", section: str, metric: str, unit: str | None) -> None:
        self._of = of
        self._last = 0
        self.section, self.metric, self.unit = section, metric, unit
        self.named_in = 0
        # By rank, or by node where the rank is unknown.
        self.series: dict[int | str | None, _RankReadings] = {}

    def add(
        self,
        rank: int | None,
        value: float | None,
        *,
        score: float | None = None,
        node: str | None = None,
    ) -> None:
        """Add a reading of one rank."""
        of = self._of
        if self._last != of.num_reports:
            self._last = of.num_reports
            self.named_in += 1
        key = node if rank is None else rank
        series = self.series.get(key)
        if series is None:
            if not of.has_room():
                return
            series = self.series[key] = _RankReadings(rank)
        series.node = node or series.node
        series.value, series.score = value, score
        series.step, series.at_s = of.step, of.at_s
        if value is not None:
            series.num += 1
            series.sum += value

    def scores(self) -> Iterator[Score]:
        """One score for each rank."""
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


class ScoreCollector:
    """Collects readings; keeps only sums and the newest ones."""

    def __init__(self, *, most: int = MAX_SERIES) -> None:
        self._most = most
        self._groups: dict[tuple[str, str], MetricReadings] = {}
        self._num_series = 0
        self.num_reports = 0
        self.num_left_out = 0
        self.step: int | None = None
        self.at_s: float | None = None

    def begin(self, *, step: int | None = None, at_s: float | None = None) -> None:
        """Begin another report."""
        self.num_reports += 1
        self.step, self.at_s = step, at_s

    def at(self, at_s: float | None) -> None:
        """Set the time of the readings that follow, in the same report."""
        self.at_s = at_s

    def group(self, section: str, metric: str, unit: str | None) -> MetricReadings:
        """The readings of a section and metric, to add to; a metric has one unit."""
        group = self._groups.get((section, metric))
        if group is None:
            group = MetricReadings(self, section, metric, unit)
            if len(self._groups) < self._most:  # else its readings are left out, one by one
                self._groups[section, metric] = group
        return group

    def has_room(self) -> bool:
        """Reserve room for another series; false (and counted) if there is none."""
        if self._num_series >= self._most:
            self.num_left_out += 1
            return False
        self._num_series += 1
        return True

    def report(self, source: str, missing: Iterable[MissingData] = ()) -> ScoreReport:
        """All scores, the slowest first."""
        found = [*missing]
        if self.num_left_out:
            what = f"readings of more than {self._most:,} ranks and sections"
            found.append(MissingData(what, f"{self.num_left_out:,} readings are left out"))
        scores = (score for group in self._groups.values() for score in group.scores())
        return ScoreReport(source, (*worst_first(scores),), self.num_reports, (*found,))


def _sort_key(score: Score) -> tuple[float, float, str, str, float, int, str]:
    slowdown = 0.0 if score.slowdown is None else score.slowdown
    mean = 0.0 if score.mean is None else score.mean
    late = mean if score.metric == LATE else -1.0
    rank = -1 if score.rank is None else score.rank
    return (-slowdown, -late, score.section, score.metric, -mean, rank, score.node or "")


MAX_MEASURE = 1e15  # larger than any real measure; sums stay finite


def json_object(text: TextLines, line: TextLine, max_bytes: int) -> dict[str, Any]:
    """The JSON object in a line; Python's NaN and Infinity are accepted.

    Raises:
        InvalidTrace: it is too long, not JSON, or not an object.
    """
    checkpoint()
    if not line.is_whole:
        raise line_error(text, line, f"longer than {max_bytes:,} bytes: write one report a line")
    try:
        found = json.loads(line.text)
    except RecursionError:
        raise line_error(text, line, "brackets are nested too deeply") from None
    except json.JSONDecodeError as error:
        where = f"character {error.pos}: {error.msg}"
        raise line_error(text, line, f"no JSON: {where}: write one object a line") from None
    except ValueError:
        raise line_error(text, line, "no JSON in UTF-8: write one object a line") from None
    if not isinstance(found, dict):
        raise line_error(text, line, f"want an object, not {json_kind(found)}")
    return found


def json_kind(value: object) -> str:
    """The JSON name of a value's type."""
    kinds = {bool: "true or false", int: "a number", float: "a number", str: "text"}
    more = {list: "a list", dict: "an object", type(None): "null"}
    return (kinds | more)[type(value)]


def object_field(text: TextLines, line: TextLine, field: str, value: object) -> Mapping[str, Any]:
    """The object in a field; empty for null.

    Raises:
        InvalidTrace: it is something else.
    """
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise line_error(text, line, f"{field}: want an object, not {json_kind(value)}")
    return value


def rank_field(text: TextLines, line: TextLine, field: str, value: object) -> int:
    """The rank in a number or an object's key.

    Raises:
        InvalidTrace: it is none.
    """
    found = value
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 10:
        found = int(value)
    if isinstance(found, bool) or not isinstance(found, int) or not 0 <= found <= MAX_RANK:
        raise line_error(text, line, f"{field}: {value!r:.40} is no rank: want a number from 0 on")
    return found


def number_field(text: TextLines, line: TextLine, field: str, value: object) -> float | None:
    """A number from 0 on; None for null and NaN (unknown).

    Raises:
        InvalidTrace: it is none.
    """
    if type(value) is float and 0 <= value <= MAX_MEASURE:  # nearly all of them
        return value
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise line_error(text, line, f"{field}: want a number, not {json_kind(value)}")
    try:
        found = float(value)
    except OverflowError:
        found = math.inf
    if math.isnan(found):
        return None
    if not 0 <= found <= MAX_MEASURE:
        raise line_error(text, line, f"{field}: {found:g} is no measure: want a number from 0 on")
    return found


@dataclass(frozen=True, slots=True)
class ScoreSummary:
    """Metadata of score files.

    `source` is the tool that measured them, `num_reports` the number of reports read.
    """

    name: str | None
    num_scores: int
    missing: tuple[MissingData, ...]
    run_key: str | None = None
    source: str = ""
    num_reports: int = 1


class ScoreImport(Protocol):
    """Files with scores of workers; there is no what-if on them.

    Raises (each method):
        InvalidTrace: one line that names the file, the place in it, and what to do.
    """

    def describe(self) -> ScoreSummary:
        """Read the files in bounded memory and summarise them; call it before `scores`."""

    def scores(self) -> Iterator[Score]:
        """The scores, in the files' order."""

    def collectives(self) -> Collectives | None:
        """The collectives behind the scores, where the files have them one by one."""

    def close(self) -> None:
        """Free the disk space."""


ReadScores = Callable[[Sequence[TextLines]], ScoreReport]


class ScoreFiles:
    """Files of scores, read on first use and kept in bounded memory."""

    def __init__(self, paths: Sequence[Path], options: ImportOptions, read: ReadScores) -> None:
        self._texts = [FileText(path) for path in paths]
        self._name = options.name
        self._read = read
        self._report: ScoreReport | None = None

    def report(self) -> ScoreReport:
        """The report of the files.

        Raises:
            InvalidTrace: a file cannot be read or breaks the format.
        """
        if self._report is None:
            self._report = self._read(self._texts)
        return self._report

    def describe(self) -> ScoreSummary:
        """Read the files in bounded memory and summarise them."""
        report = self.report()
        return ScoreSummary(
            self._name,
            len(report.scores),
            report.missing,
            source=report.source,
            num_reports=report.num_reports,
        )

    def scores(self) -> Iterator[Score]:
        """The scores, the slowest first."""
        return iter(self.report().scores)

    def collectives(self) -> Collectives | None:
        """The collectives behind the scores, where the files have them one by one."""
        return self.report().collectives

    def close(self) -> None:
        """Nothing is kept on disk."""
