"""Reads Megatron-LM logs: lines of its straggler detector, and timers of all ranks.

Any prefix of launchers and loggers is allowed; other lines are skipped.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median

from app.errors import InvalidTrace
from app.trace.readers.importing import ImportOptions, MissingData
from app.trace.readers.input_file import TextLine, TextLines, line_error
from app.trace.readers.scores.score_report import (
    MAX_MEASURE,
    MAX_RANK,
    ScoreCollector,
    ScoreFiles,
    ScoreReport,
    printable_name,
)

NAME = "megatron-log"
DETECTOR = "straggler detector"
TIMER = "timer"
_MAX_LINE_BYTES = 1 << 20
_MAX_TIMER_RANKS = 1 << 20  # the largest world that a block of timers may be of

# Which extreme, what of, and its unit; of the slowest and the fastest, as the log calls them.
_NAMES = {
    "Rtt": ("round-trip", "ms", ("shortest", "longest")),
    "Pwr": ("power", "W", ("lowest", "highest")),
    "Tmp": ("temperature", "C", ("lowest", "highest")),
    "Utl": ("utilization", "%", ("lowest", "highest")),
    "Clk": ("clock", "MHz", ("lowest", "highest")),
    "DRtt": ("get-batch", "ms", ("shortest", "longest")),
    "Etpt": ("throughput", "TFLOP/s", ("lowest", "highest")),
}
_FACTORS = {"us": 1e-3, "s": 1e3}
# Some releases print milliwatts and call them watts; no GPU takes as many watts.
_MAX_WATTS = 10_000.0
_MIN_MS = 1e-6  # less is no time that a pass takes; of it the inverse says nothing
# A stage's own work. Other timers contain waits for peers, so a slow rank need not be the cause.
_OWN_WORK = {
    *("forward-compute", "backward-compute", "batch-generator"),
    *("optimizer-inner-step", "optimizer-copy-to-main-grad"),
    "optimizer-copy-main-to-model-params",
}

_NUMBER = rb"([-+]?[\d.]{1,24}(?:[eE][-+]?\d{1,3})?|nan|inf)"
_EXTREME = re.compile(
    rb"(Mn|Mx)(Rtt|Pwr|Tmp|Utl|Clk|DRtt|Etpt)/Rnk:\s*"
    + _NUMBER
    + rb"(ms|us|s|W|C|%|MHz|TF)/(\d{1,10})"
)
_LISTED = re.compile(
    rb"\^\^\^\^ (Bottom|Top)\s+\d+ Ranks with (?:lowest|highest)\s+Etpt\(TF\):(.*)"
)
_LISTED_RANK = re.compile(_NUMBER + rb"/(\d{1,10})")
_ITERATION = re.compile(rb"\biteration\s+(\d{1,15})/\s*\d+ \|")
_ALL_RANKS = re.compile(rb"(?<!\) )(?<!max )\btimes across ranks \(ms\):\s*$")
_NO_RANKS = re.compile(rb"(?:\(min, max\)|max) time across ranks \(ms\):\s*$")
_TIMER_NAME = re.compile(rb"(?:^|\s)([A-Za-z][\w.-]{0,127}):\s*$")
_TIMER_RANK = re.compile(rb"\brank\s+(\d{1,10}):\s+" + _NUMBER + rb"\s*$")


def open_files(paths: Sequence[Path], options: ImportOptions) -> ScoreFiles:
    """The import of these files; opened lazily."""
    return ScoreFiles(paths, options, read)


def read(texts: Sequence[TextLines]) -> ScoreReport:
    """Report of all texts.

    Raises:
        InvalidTrace: a line is malformed, or no text has one.
    """
    log = _MegatronLog()
    for text in texts:
        log.read(text)
    if not log.collected.num_reports:
        raise InvalidTrace(_no_score_message(texts, log.num_without_ranks))
    return log.collected.report(NAME, log.missing())


def _no_score_message(texts: Sequence[TextLines], num_without_ranks: int) -> str:
    names = ", ".join(text.name for text in texts[:3])
    if num_without_ranks:
        return (
            f"{names}: its {num_without_ranks:,} blocks of timers name no rank: train with "
            "--timing-log-option all, or --log-straggler"
        )
    return f"{names}: no score in it: train with --log-straggler, or --timing-log-option all"


class _MegatronLog:
    """Parser state between two lines."""

    def __init__(self) -> None:
        self.collected = ScoreCollector()
        self.num_without_ranks = 0
        self.num_detector_lines = 0
        self.num_timer_blocks = 0
        self._step: int | None = None
        self._is_in_block = False
        self._timer: str | None = None
        self._times: list[tuple[int, float]] = []

    def read(self, text: TextLines) -> None:
        self._step = None
        for line in text.lines(_MAX_LINE_BYTES):
            self._take(text, line)
        self._end_block()

    def missing(self) -> Iterator[MissingData]:
        if self.num_detector_lines:
            what = f"ranks between the extremes in {self.num_detector_lines:,} detector lines"
            yield MissingData(
                what,
                "only the slowest and the fastest are named: --straggler-minmax-count adds more",
            )
        if self.num_without_ranks:
            what = f"ranks in {self.num_without_ranks:,} blocks of timers (min, max)"
            yield MissingData(what, "left out: --timing-log-option all names them")
        if self.num_timer_blocks:
            what = f"the ranks' stages in {self.num_timer_blocks:,} blocks of timers"
            yield MissingData(
                what, "timers are compared over all stages: a long last stage looks like slow ranks"
            )

    def _take(self, text: TextLines, line: TextLine) -> None:
        if self._is_in_block and self._in_block(text, line):
            return
        if b"/Rnk:" in line.text:
            self._take_extremes(text, line)
        elif b"^^^^" in line.text and (listed := _LISTED.search(line.text)):
            self._take_listed(text, line, listed)
        elif b"across ranks (ms):" in line.text:
            self._begin_block(line)
        elif b"iteration" in line.text and (iteration := _ITERATION.search(line.text)):
            self._step = int(iteration[1])

    def _take_extremes(self, text: TextLines, line: TextLine) -> None:
        found = {
            (which, what): (
                _measure(text, line, digits, unit, what),
                _rank(text, line, digits_rank),
            )
            for which, what, digits, unit, digits_rank in _EXTREME.findall(line.text)
        }
        if not found:
            return
        self.num_detector_lines += 1
        self.collected.begin(step=self._step)
        for (which, what), (value, rank) in found.items():
            name, unit_name, extremes = _NAMES[what.decode()]
            other = found.get((b"Mn" if which == b"Mx" else b"Mx", what))
            metric = f"{extremes[which == b'Mx']}-{name}"
            score = _relative_score(which, what, value, None if other is None else other[0])
            self.collected.group(DETECTOR, metric, unit_name).add(rank, value, score=score)

    def _take_listed(self, text: TextLines, line: TextLine, listed: re.Match[bytes]) -> None:
        extreme = "lowest" if listed[1] == b"Bottom" else "highest"
        group = self.collected.group(DETECTOR, f"{extreme}-throughput-listed", "TFLOP/s")
        for digits, digits_rank in _LISTED_RANK.findall(listed[2]):
            value = _measure(text, line, digits, b"TF", b"Etpt")
            group.add(_rank(text, line, digits_rank), value)

    def _begin_block(self, line: TextLine) -> None:
        if _NO_RANKS.search(line.text):
            self.num_without_ranks += 1
        elif _ALL_RANKS.search(line.text):
            self._is_in_block = True
            self.num_timer_blocks += 1
            self.collected.begin(step=self._step)

    def _in_block(self, text: TextLines, line: TextLine) -> bool:
        """Whether the line continues the current block."""
        if timed := _TIMER_RANK.search(line.text):
            value = _measure(text, line, timed[2], b"ms", b"Rtt")
            if self._timer is not None and value is not None:
                self._times.append((_rank(text, line, timed[1]), value))
            if len(self._times) > _MAX_TIMER_RANKS:
                raise line_error(text, line, f"a timer of more than {_MAX_TIMER_RANKS:,} ranks")
            return True
        self._end_timer()
        if name := _TIMER_NAME.search(line.text):
            self._timer = printable_name(name[1].decode(errors="replace"))
            return True
        self._end_block()
        return False

    def _end_block(self) -> None:
        self._end_timer()
        self._is_in_block = False

    def _end_timer(self) -> None:
        if not self._times:
            self._timer = None
            return
        usual_ms = median(value for _, value in self._times)
        is_own = self._timer in _OWN_WORK and len(self._times) > 1
        group = self.collected.group(str(self._timer), TIMER, "ms")
        for rank, value in self._times:
            score = usual_ms / value if is_own and value >= _MIN_MS else None
            group.add(rank, value, score=score)
        self._timer, self._times = None, []


def _relative_score(
    which: bytes, what: bytes, value: float | None, other: float | None
) -> float | None:
    """The slowest rank's speed as a share of the fastest one's; None for other measures."""
    if value is None or other is None:
        return None
    if (which, what) == (b"Mx", b"Rtt") and value > 0:
        return min(1.0, other / value)
    if (which, what) == (b"Mn", b"Etpt") and other > 0:
        return min(1.0, value / other)
    return None


def _measure(
    text: TextLines, line: TextLine, digits: bytes, unit: bytes, what: bytes
) -> float | None:
    try:
        value = float(digits)
    except ValueError:
        raise line_error(text, line, f"{digits.decode():.30} is no number") from None
    value *= _FACTORS.get(unit.decode(), 1.0)
    if value != value or value == float("inf"):
        return None
    if not 0 <= value <= MAX_MEASURE:
        raise line_error(
            text, line, f"{digits.decode():.30} is no measure: want a number from 0 on"
        )
    return value / 1000 if what == b"Pwr" and value > _MAX_WATTS else value


def _rank(text: TextLines, line: TextLine, digits: bytes) -> int:
    rank = int(digits)
    if rank > MAX_RANK:
        raise line_error(text, line, f"{digits.decode():.30} is no rank")
    return rank


def sample() -> Mapping[str, bytes]:
    """A small log with both kinds of lines."""
    log = (
        b" [2026-01-01 00:00:00.000000] iteration       10/     100 | consumed samples: 80 |"
        b" elapsed time per iteration (ms): 812.5 |\n"
        b"times across ranks (ms):\n"
        b"  forward-compute:\n     rank  0: 100.00\n     rank  1: 100.00\n     rank  2: 160.00\n"
        b"  forward-recv:\n     rank  0: 61.00\n     rank  1: 60.00\n     rank  2: 1.00\n"
        b" 0: INFO:megatron.core.utils:[2026-01-01 00:00:01] | MnRtt/Rnk: 100.00ms/0 | MxRtt/Rnk:"
        b" 160.00ms/2 | MnPwr/Rnk: 601796W/2 | MxPwr/Rnk: 683801W/1 | MnTmp/Rnk: 52C/0 | MxTmp/Rnk:"
        b" 65C/1 | MnUtl/Rnk: 97%/0 | MxUtl/Rnk: 99%/1 | MnClk/Rnk: 1410MHz/2 | MxClk/Rnk:"
        b" 1980MHz/0 | MnDRtt/Rnk: 14.27ms/1 | MxDRtt/Rnk: 34.65ms/2 | MnEtpt/Rnk: 185.00TF/2"
        b" | MxEtpt/Rnk: 296.00TF/0\n"
        b"^^^^ Bottom 2 Ranks with lowest  Etpt(TF): 185.00/2, 295.00/1\n"
    )
    older = b"(min, max) time across ranks (ms):\n    forward-compute ....: (100.00, 160.00)\n"
    return {"training.log": log + older}
