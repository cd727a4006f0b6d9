"""Straggler reports of the NVIDIA Resiliency Extension: JSON, one report a line, or its log."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from app.errors import InvalidTrace
from app.trace.readers.foreign import Lack, Options
from app.trace.readers.score_fields import json_object, mapping, number, rank
from app.trace.readers.score_files import ScoreFiles
from app.trace.readers.score_text import MAX_LINE_BYTES, BodyText, Line, Text, broken
from app.trace.scores import MAX_AT_S, Collected, ScoreReport, named

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
_LONGEST_LOG_LINE = 1 << 20

_HEADING = re.compile(rb"GPU (relative|individual) performance:")
_EXTREMES = re.compile(rb"Worst performing \d{1,10}/\d{1,10} ranks:")
_SCORE = re.compile(rb"\bRank=(\d{1,10}) Node=(\S{1,256}) Score=([\d.]{1,20}|nan)\b", re.I)
_WARNING = re.compile(
    rb"STRAGGLER DETECTION WARNING: Some GPUs (have worse relative|performance dropped).{0,20}?"
    rb" Affected ranks: ([\[{].*)"
)
# What a line of ours has: asked first, since nearly all lines of a log are others.
_MARKS = (b"Rank=", b"performance:", b"performing", b"STRAGGLER")
_WARNED_RANK = re.compile(rb"rank=(\d{1,10})(?:, node='([^']{1,256})')?")
_WARNED_NUMBER = re.compile(rb"\d{1,10}")


def open_files(paths: Sequence[Path], options: Options) -> ScoreFiles:
    """The files, to be read when they are asked for."""
    return ScoreFiles(paths, options, read)


def read(texts: Sequence[Text]) -> ScoreReport:
    """All reports in the texts, each of its own kind.

    Raises:
        InvalidTrace: a line breaks the format, or there is no score in any of them.
    """
    found = _Found()
    for text in texts:
        _read_text(text, found)
    if not found.collected.num_reports:
        names = ", ".join(text.name for text in texts[:3])
        raise InvalidTrace(f"{names}: no score in it: want reports as JSON, one a line, or its log")
    return found.collected.report(NAME, found.lacks())


class _Found:
    def __init__(self) -> None:
        self.collected = Collected()
        self.num_unknown = 0
        self.num_scores = 0
        self.num_homeless = 0
        self.num_printed = 0

    def add(
        self, section: str, metric: str, of_rank: int, score: float | None, node: str | None
    ) -> None:
        self.num_scores += 1
        self.num_unknown += score is None
        group = self.collected.group(section, metric, _UNIT)
        group.add(of_rank, score, score=score, node=node)

    def lacks(self) -> Iterator[Lack]:
        if self.num_unknown:
            what = f"{self.num_unknown:,} of {self.num_scores:,} scores (null or NaN)"
            yield Lack(what, "these ranks are shown without a score for that report")
        if self.num_homeless:
            what = (
                f"which kind of performance {self.num_homeless:,} lines 'Rank=.. Score=..' are of"
            )
            yield Lack(what, "they stand under no heading, and are left out")
        if self.num_printed:
            what = f"ranks between the best and the worst in {self.num_printed:,} printed tables"
            yield Lack(what, "the log has the extremes only: write the reports as JSON to see all")


def _read_text(text: Text, found: _Found) -> None:
    lines = (line for line in text.lines() if line.text.strip())
    first = next(lines, None)
    if first is None:
        return
    if not first.text.lstrip().startswith(b"{"):
        _read_log(text, chain([first], lines), found)
        return
    if first.text.strip() == b"{":
        _read_report(text, first, _whole(text, first, lines), found)
        return
    _read_report(text, first, json_object(text, first, MAX_LINE_BYTES), found)
    for line in lines:
        _read_report(text, line, json_object(text, line, MAX_LINE_BYTES), found)


def _whole(text: Text, first: Line, lines: Iterator[Line]) -> dict[str, Any]:
    """The report in a file over many lines, as `json.dump(..., indent=2)` writes it."""
    parts, size_bytes = [], 0
    for line in chain([first], lines):
        parts.append(line.text)
        size_bytes += len(line.text) + 1
        if size_bytes > MAX_LINE_BYTES:
            raise broken(text, line, "one object of many megabytes: write one report a line")
    whole = BodyText(text.name, b" ".join(parts))
    return json_object(whole, Line(first.number, whole.body, is_whole=True), MAX_LINE_BYTES)


def _read_report(text: Text, line: Line, report: Mapping[str, Any], found: _Found) -> None:
    if not _OF_REPORT & report.keys():
        known = ", ".join(sorted(_OF_REPORT))
        raise broken(text, line, f"no report: it has none of {known}")
    found.collected.begin(step=_step(text, line, report), at_s=_at_s(text, line, report))
    nodes = {
        rank(text, line, "rank_to_node", key): named(str(node))
        for key, node in mapping(text, line, "rank_to_node", report.get("rank_to_node")).items()
    }
    for field, metric in _GPU.items():
        _add_ranks(text, line, field, report.get(field), KERNELS, metric, nodes, found)
    for field, metric in _SECTIONS.items():
        for section, scores in mapping(text, line, field, report.get(field)).items():
            where = f"section {named(section)}"
            _add_ranks(text, line, f"{field}.{where}", scores, where, metric, nodes, found)
    of_example = mapping(text, line, "performance_data", report.get("performance_data"))
    for field, metric in _EXAMPLE.items():
        _add_ranks(text, line, field, of_example.get(field), KERNELS, metric, nodes, found)
    _add_own_sections(text, line, report, nodes, found)


def _add_ranks(
    text: Text,
    line: Line,
    field: str,
    scores: object,
    section: str,
    metric: str,
    nodes: Mapping[int, str],
    found: _Found,
) -> None:
    group = found.collected.group(section, metric, _UNIT)
    for key, value in mapping(text, line, field, scores).items():
        of_rank = rank(text, line, field, key)
        score = number(text, line, field, value)
        found.num_scores += 1
        found.num_unknown += score is None
        group.add(of_rank, score, score=score, node=nodes.get(of_rank))


def _add_own_sections(
    text: Text, line: Line, report: Mapping[str, Any], nodes: Mapping[int, str], found: _Found
) -> None:
    """Times of the reporting rank's own sections, in a report that says whose it is."""
    field = "local_section_summaries"
    summaries = mapping(text, line, field, report.get(field))
    if report.get("rank") is None or not summaries:
        return
    own = rank(text, line, "rank", report["rank"])
    for section, summary in summaries.items():
        values = mapping(text, line, f"{field}.{named(section)}", summary)
        for key, value in values.items():
            if key.rpartition(".")[2].upper() == "MED":
                time_ms = number(text, line, f"{field}.{named(section)}.{key:.20}", value)
                group = found.collected.group(f"section {named(section)}", MEDIAN, "ms")
                group.add(own, time_ms, node=nodes.get(own))


def _step(text: Text, line: Line, report: Mapping[str, Any]) -> int | None:
    for field in _STEPS:
        if report.get(field) is not None:
            value = report[field]
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 2**53:
                raise broken(text, line, f"{field}: {value!r:.40} is no step")
            return value
    return None


def _at_s(text: Text, line: Line, report: Mapping[str, Any]) -> float | None:
    at_s = number(text, line, "timestamp", report.get("timestamp"))
    if at_s is not None and at_s > MAX_AT_S:
        raise broken(text, line, f"timestamp: {at_s:g} is no time: want seconds since 1970")
    return at_s


def _read_log(text: Text, lines: Iterable[Line], found: _Found) -> None:
    """Tables and warnings that the callbacks for Lightning and NeMo print."""
    metric: str | None = None
    for whole in lines:
        line = whole._replace(text=whole.text[:_LONGEST_LOG_LINE])
        if not any(mark in line.text for mark in _MARKS):
            continue
        if heading := _HEADING.search(line.text):
            # A report is two tables; where the first is off, the second begins one.
            is_relative = heading[1] == b"relative"
            if is_relative or metric != RELATIVE:
                found.collected.begin()
            metric = RELATIVE if is_relative else INDIVIDUAL
        elif _EXTREMES.search(line.text):
            found.num_printed += 1
        elif printed := _SCORE.search(line.text):
            if metric is None:
                found.num_homeless += 1
                continue
            _add_printed(text, line, printed, metric, found)
        elif warning := _WARNING.search(line.text):
            _add_warning(text, line, warning, found)


def _add_printed(
    text: Text, line: Line, printed: re.Match[bytes], metric: str, found: _Found
) -> None:
    of_rank = rank(text, line, "Rank", printed[1].decode())
    score = number(text, line, "Score", _float(text, line, printed[3]))
    found.add(KERNELS, metric, of_rank, score, named(printed[2].decode(errors="replace")))


def _float(text: Text, line: Line, digits: bytes) -> float:
    try:
        return float(digits)
    except ValueError:
        raise broken(text, line, f"Score: {digits.decode():.40} is no number") from None


def _add_warning(text: Text, line: Line, warning: re.Match[bytes], found: _Found) -> None:
    metric = f"{RELATIVE if warning[1].startswith(b'have') else INDIVIDUAL}-warning"
    found.collected.begin()
    named_ranks = _WARNED_RANK.findall(warning[2])
    if not named_ranks:
        named_ranks = [(digits, b"") for digits in _WARNED_NUMBER.findall(warning[2])]
    for digits, node in named_ranks:
        of_rank = rank(text, line, "Affected ranks", digits.decode())
        where = named(node.decode(errors="replace")) or None
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
