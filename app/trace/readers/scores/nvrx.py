"""Straggler reports of the NVIDIA Resiliency Extension: JSON, one report a line, or its log."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from app.errors import InvalidTrace
from app.trace.readers.importing import ImportOptions, MissingData
from app.trace.readers.input_file import MAX_LINE_BYTES, BodyText, TextLine, TextLines, line_error
from app.trace.readers.scores.score_report import (
    MAX_AT_S,
    ScoreCollector,
    ScoreFiles,
    ScoreReport,
    json_object,
    number_field,
    object_field,
    printable_name,
    rank_field,
)

NAME = "nvrx"
KERNELS = "GPU kernels"
RELATIVE = "relative-performance"
INDIVIDUAL = "individual-performance"
MEDIAN = "median-time"
_UNIT = "of best"
_GPU = {"gpu_relative_perf_scores": RELATIVE, "gpu_individual_perf_scores": INDIVIDUAL}
_SECTIONS = {"section_relative_perf_scores": RELATIVE, "section_individual_perf_scores": INDIVIDUAL}
# As the extension's own example writes them to a file.
_EXAMPLE = {"relative_scores": RELATIVE, "individual_scores": INDIVIDUAL}
_OF_REPORT = {*_GPU, *_SECTIONS, "performance_data"}
_STEPS = ("iteration", "step")
_MAX_LOG_LINE_BYTES = 1 << 20

_HEADING = re.compile(rb"GPU (relative|individual) performance:")
_EXTREMES = re.compile(rb"Worst performing \d{1,10}/\d{1,10} ranks:")
_SCORE = re.compile(rb"\bRank=(\d{1,10}) Node=(\S{1,256}) Score=([\d.]{1,20}|nan)\b", re.I)
_WARNING = re.compile(
    rb"STRAGGLER DETECTION WARNING: Some GPUs (have worse relative|performance dropped).{0,20}?"
    rb" Affected ranks: ([\[{].*)"
)
# Found in every line of a report: a quick test, as most lines of a log are others.
_MARKS = (b"Rank=", b"performance:", b"performing", b"STRAGGLER")
_WARNED_RANK = re.compile(rb"rank=(\d{1,10})(?:, node='([^']{1,256})')?")
_WARNED_NUMBER = re.compile(rb"\d{1,10}")


def open_files(paths: Sequence[Path], options: ImportOptions) -> ScoreFiles:
    """The import of these files; opened lazily."""
    return ScoreFiles(paths, options, read)


def read(texts: Sequence[TextLines]) -> ScoreReport:
    """All reports in the texts, of either kind.

    Raises:
        InvalidTrace: a line breaks the format, or no text has a score.
    """
    found = _NvrxScores()
    for text in texts:
        _read_text(text, found)
    if not found.collected.num_reports:
        names = ", ".join(text.name for text in texts[:3])
        raise InvalidTrace(f"{names}: no score in it: want reports as JSON, one a line, or its log")
    return found.collected.report(NAME, found.missing())


class _NvrxScores:
    def __init__(self) -> None:
        self.collected = ScoreCollector()
        self.num_unknown = 0
        self.num_scores = 0
        self.num_without_heading = 0
        self.num_printed = 0

    def add(
        self, section: str, metric: str, of_rank: int, score: float | None, node: str | None
    ) -> None:
        self.num_scores += 1
        self.num_unknown += score is None
        group = self.collected.group(section, metric, _UNIT)
        group.add(of_rank, score, score=score, node=node)

    def missing(self) -> Iterator[MissingData]:
        if self.num_unknown:
            what = f"{self.num_unknown:,} of {self.num_scores:,} scores (null or NaN)"
            yield MissingData(what, "these ranks are shown without a score for that report")
        if self.num_without_heading:
            what = (
                f"the kind of performance of {self.num_without_heading:,} lines 'Rank=.. Score=..'"
            )
            yield MissingData(what, "they stand under no heading, and are left out")
        if self.num_printed:
            what = f"ranks between the best and the worst in {self.num_printed:,} printed tables"
            yield MissingData(
                what, "the log has the extremes only: write the reports as JSON to see all"
            )


def _read_text(text: TextLines, found: _NvrxScores) -> None:
    lines = (line for line in text.lines() if line.text.strip())
    first = next(lines, None)
    if first is None:
        return
    if not first.text.lstrip().startswith(b"{"):
        _read_log(text, chain([first], lines), found)
        return
    if first.text.strip() == b"{":
        _read_report(text, first, _multi_line_report(text, first, lines), found)
        return
    _read_report(text, first, json_object(text, first, MAX_LINE_BYTES), found)
    for line in lines:
        _read_report(text, line, json_object(text, line, MAX_LINE_BYTES), found)


def _multi_line_report(
    text: TextLines, first: TextLine, lines: Iterator[TextLine]
) -> dict[str, Any]:
    """The report in a file over many lines, as `json.dump(..., indent=2)` writes it."""
    parts, size_bytes = [], 0
    for line in chain([first], lines):
        parts.append(line.text)
        size_bytes += len(line.text) + 1
        if size_bytes > MAX_LINE_BYTES:
            raise line_error(text, line, "one object of many megabytes: write one report a line")
    whole = BodyText(text.name, b" ".join(parts))
    return json_object(whole, TextLine(first.number, whole.body, is_whole=True), MAX_LINE_BYTES)


def _read_report(
    text: TextLines, line: TextLine, report: Mapping[str, Any], found: _NvrxScores
) -> None:
    if not _OF_REPORT & report.keys():
        known = ", ".join(sorted(_OF_REPORT))
        raise line_error(text, line, f"no report: it has none of {known}")
    found.collected.begin(step=_step(text, line, report), at_s=_at_s(text, line, report))
    nodes = {
        rank_field(text, line, "rank_to_node", key): printable_name(str(node))
        for key, node in object_field(
            text, line, "rank_to_node", report.get("rank_to_node")
        ).items()
    }
    for field, metric in _GPU.items():
        _add_ranks(text, line, field, report.get(field), KERNELS, metric, nodes, found)
    for field, metric in _SECTIONS.items():
        for section, scores in object_field(text, line, field, report.get(field)).items():
            where = f"section {printable_name(section)}"
            _add_ranks(text, line, f"{field}.{where}", scores, where, metric, nodes, found)
    of_example = object_field(text, line, "performance_data", report.get("performance_data"))
    for field, metric in _EXAMPLE.items():
        _add_ranks(text, line, field, of_example.get(field), KERNELS, metric, nodes, found)
    _add_own_sections(text, line, report, nodes, found)


def _add_ranks(
    text: TextLines,
    line: TextLine,
    field: str,
    scores: object,
    section: str,
    metric: str,
    nodes: Mapping[int, str],
    found: _NvrxScores,
) -> None:
    group = found.collected.group(section, metric, _UNIT)
    for key, value in object_field(text, line, field, scores).items():
        of_rank = rank_field(text, line, field, key)
        score = number_field(text, line, field, value)
        found.num_scores += 1
        found.num_unknown += score is None
        group.add(of_rank, score, score=score, node=nodes.get(of_rank))


def _add_own_sections(
    text: TextLines,
    line: TextLine,
    report: Mapping[str, Any],
    nodes: Mapping[int, str],
    found: _NvrxScores,
) -> None:
    """Add the reporting rank's own sections, if the report names the rank."""
    field = "local_section_summaries"
    summaries = object_field(text, line, field, report.get(field))
    if report.get("rank") is None or not summaries:
        return
    own = rank_field(text, line, "rank", report["rank"])
    for section, summary in summaries.items():
        values = object_field(text, line, f"{field}.{printable_name(section)}", summary)
        for key, value in values.items():
            if key.rpartition(".")[2].upper() == "MED":
                time_ms = number_field(
                    text, line, f"{field}.{printable_name(section)}.{key:.20}", value
                )
                group = found.collected.group(f"section {printable_name(section)}", MEDIAN, "ms")
                group.add(own, time_ms, node=nodes.get(own))


def _step(text: TextLines, line: TextLine, report: Mapping[str, Any]) -> int | None:
    for field in _STEPS:
        if report.get(field) is not None:
            value = report[field]
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 2**53:
                raise line_error(text, line, f"{field}: {value!r:.40} is no step")
            return value
    return None


def _at_s(text: TextLines, line: TextLine, report: Mapping[str, Any]) -> float | None:
    at_s = number_field(text, line, "timestamp", report.get("timestamp"))
    if at_s is not None and at_s > MAX_AT_S:
        raise line_error(text, line, f"timestamp: {at_s:g} is no time: want seconds since 1970")
    return at_s


def _read_log(text: TextLines, lines: Iterable[TextLine], found: _NvrxScores) -> None:
    """Tables and warnings that the callbacks for Lightning and NeMo print."""
    metric: str | None = None
    for whole in lines:
        line = whole._replace(text=whole.text[:_MAX_LOG_LINE_BYTES])
        if not any(mark in line.text for mark in _MARKS):
            continue
        if heading := _HEADING.search(line.text):
            # A report has two tables; without the first, the second begins it.
            is_relative = heading[1] == b"relative"
            if is_relative or metric != RELATIVE:
                found.collected.begin()
            metric = RELATIVE if is_relative else INDIVIDUAL
        elif _EXTREMES.search(line.text):
            found.num_printed += 1
        elif printed := _SCORE.search(line.text):
            if metric is None:
                found.num_without_heading += 1
                continue
            _add_printed(text, line, printed, metric, found)
        elif warning := _WARNING.search(line.text):
            _add_warning(text, line, warning, found)


def _add_printed(
    text: TextLines, line: TextLine, printed: re.Match[bytes], metric: str, found: _NvrxScores
) -> None:
    of_rank = rank_field(text, line, "Rank", printed[1].decode())
    score = number_field(text, line, "Score", _float(text, line, printed[3]))
    found.add(KERNELS, metric, of_rank, score, printable_name(printed[2].decode(errors="replace")))


def _float(text: TextLines, line: TextLine, digits: bytes) -> float:
    try:
        return float(digits)
    except ValueError:
        raise line_error(text, line, f"Score: {digits.decode():.40} is no number") from None


def _add_warning(
    text: TextLines, line: TextLine, warning: re.Match[bytes], found: _NvrxScores
) -> None:
    metric = f"{RELATIVE if warning[1].startswith(b'have') else INDIVIDUAL}-warning"
    found.collected.begin()
    named_ranks = _WARNED_RANK.findall(warning[2])
    if not named_ranks:
        named_ranks = [(digits, b"") for digits in _WARNED_NUMBER.findall(warning[2])]
    for digits, node in named_ranks:
        of_rank = rank_field(text, line, "Affected ranks", digits.decode())
        where = printable_name(node.decode(errors="replace")) or None
        found.collected.group(KERNELS, metric, None).add(of_rank, 1.0, node=where)


def sample() -> Mapping[str, bytes]:
    """Three small files, one of each kind."""
    reports = (
        b'{"iteration": 100, "timestamp": 1758464000.5,'
        b' "gpu_relative_perf_scores": {"0": 0.98, "1": 0.61, "2": 1.0, "3": NaN},'
        b' "gpu_individual_perf_scores": {"0": 1.0, "1": 0.7},'
        b' "section_relative_perf_scores": {"fwd": {"0": 1.0, "1": 0.5}},'
        b' "rank_to_node": {"0": "host-a", "1": "host-b"}}\n'
        b'{"iteration": 200, "gpu_relative_perf_scores": {"0": 0.99, "1": 0.6}}\n'
    )
    example = (
        b'{"timestamp": 1.5, "iteration": 0, "performance_data": {"relative_scores": {"0": 1}}}\n'
    )
    log = (
        b"GPU relative performance:\n Worst performing 1/4 ranks:\n"
        b"  Rank=1 Node=host-b Score=0.61\n"
        b"GPU individual performance:\n  Rank=0 Node=host-a Score=nan\n"
        b"STRAGGLER DETECTION WARNING: Some GPUs have worse relative performance."
        b" Affected ranks: {StragglerId(rank=1, node='host-b')}\n"
    )
    return {"reports.jsonl": reports, "example.jsonl": example, "training.log": log}
