"""Scores of an import: a table of the worst, a file of all, or a report on a server.

Each of them states that scores have no what-if.
"""

import csv
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from app.cli.importing import screen
from app.cli.output import printable, safe_cell, written_whole
from app.errors import InvalidRequest, Unavailable
from app.formatting import plural, ratio
from app.trace.readers.scores.score_report import NO_WHAT_IF, Score

if TYPE_CHECKING:
    from app.cli.importing.options import ImportTarget
    from app.trace.readers.scores.score_report import ScoreImport, ScoreSummary

MAX_SHOWN_SCORES = 20
_RESERVED_BYTES = 64 << 10  # of a request, for what is not scores
_SCORE_HEADINGS = ("RANK", "NODE", "WHAT", "NEWEST", "MEAN", "SLOWDOWN", "READINGS")
_RIGHT = {0, 3, 4, 5, 6}


def show_or_push(opened: "ScoreImport", target: "ImportTarget") -> None:
    """Print the worst scores, and write or send all if asked.

    Raises:
        InvalidRequest: the file cannot be written, or the server refuses them.
        Unavailable: the server does not answer.
    """
    described, scores = opened.describe(), [*opened.scores()]
    if target.url is not None:
        typer.echo(_push(described, scores, target))
    elif target.out is not None:
        _write(scores, target.out)
        typer.echo(printable(str(target.out)))
    else:
        typer.echo(score_table(described, scores))
        collectives = opened.collectives()
        if collectives is not None and (lines := screen.waits_table(collectives)):
            typer.echo(f"\n{lines}")
    for line in screen.describe_missing(described.missing):
        typer.echo(printable(line), err=True)


def score_table(described: "ScoreSummary", scores: Sequence[Score]) -> str:
    """A heading, and the worst scores, one per line."""
    shown = scores[:MAX_SHOWN_SCORES]
    more = (
        f"; the first {MAX_SHOWN_SCORES} are below, --out FILE.csv has all"
        if len(scores) > MAX_SHOWN_SCORES
        else ""
    )
    first = (
        f"{NO_WHAT_IF}: {described.source}, {len(scores):,} series of "
        f"{plural(described.num_reports, 'report')}{more}"
    )
    rows = [_SCORE_HEADINGS, *map(_cells, shown)]
    widths = [max(len(row[at]) for row in rows) for at in range(len(_SCORE_HEADINGS))]
    return "\n".join([first, "", *(_line(row, widths) for row in rows)])


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    cells = (
        cell.rjust(width) if at in _RIGHT else cell.ljust(width)
        for at, (cell, width) in enumerate(zip(row, widths, strict=True))
    )
    return "  ".join(cells).rstrip()


def _cells(score: Score) -> tuple[str, ...]:
    return (
        "?" if score.rank is None else str(score.rank),
        printable(score.node or ""),
        printable(f"{score.section}, {score.metric}"),
        _measure(score.value, score.unit),
        _measure(score.mean, score.unit),
        "" if score.slowdown is None else ratio(score.slowdown),
        f"{score.num:,} of {score.of:,}",
    )


def _measure(value: float | None, unit: str | None) -> str:
    if value is None:
        return "not known"
    return f"{value:.4g} {printable(unit)}" if unit else f"{value:.4g}"


def _write(scores: Sequence[Score], path: Path) -> None:
    writers = {".csv": _as_csv, ".jsonl": _as_lines, ".parquet": _as_parquet}
    writer = writers.get(path.suffix)
    if writer is None:
        raise InvalidRequest(
            f"--out {path}: scores have no operations, so they cannot become a trace: "
            f"name a file that ends in {', '.join(writers)}"
        )
    content = writer([*_fields(scores)])
    with written_whole(path) as file:
        file.write(content)


def _fields(scores: Sequence[Score]) -> Iterator[dict[str, Any]]:
    for score in scores:
        known = asdict(score)
        at_s = known.pop("at_s")
        yield {**known, "at": _utc(at_s), "what_if": None}


def _columns() -> list[str]:
    return [*(each.name for each in fields(Score) if each.name != "at_s"), "at", "what_if"]


def _as_csv(rows: Sequence[dict[str, Any]]) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, _columns())
    writer.writeheader()
    writer.writerows({name: safe_cell(value) for name, value in row.items()} for row in rows)
    return text.getvalue().encode()


def _as_lines(rows: Sequence[dict[str, Any]]) -> bytes:
    return "".join(f"{json.dumps(row, allow_nan=False)}\n" for row in rows).encode()


def _as_parquet(rows: Sequence[dict[str, Any]]) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    # Fixed types: a column of ranks stays numeric even if all are unknown.
    texts, numbers = {"node", "section", "metric", "unit", "at"}, {"rank", "num", "of", "step"}
    kinds = dict.fromkeys(texts, pa.string()) | dict.fromkeys(numbers, pa.int64())
    kinds["what_if"] = pa.null()
    schema = pa.schema([(name, kinds.get(name, pa.float64())) for name in _columns()])
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist([*rows], schema=schema), sink)
    return sink.getvalue()


def _push(described: "ScoreSummary", scores: Sequence[Score], target: "ImportTarget") -> str:
    """Send the scores; returns a message with the report and the number left out."""
    from paceline_client.query import NoAnswer, Paceline, Refused

    from app.cli.replay import local_token

    job = target.job or described.name
    if job is None:
        raise InvalidRequest("--job is missing: name the job of these scores")
    sent = fit_report(scores)
    body = _report_fields(described) | {"scores": sent}
    try:
        with Paceline(target.url, target.token or local_token()) as server:
            report_id = server.add_scores(job, body)
    except Refused as error:
        raise InvalidRequest(f"{target.url} refuses the scores: {error}") from error
    except NoAnswer as error:
        raise Unavailable(str(error)) from error
    except ValueError as error:
        raise InvalidRequest(f"--url, --token: {error}") from error
    left_out = len(scores) - len(sent)
    more = f"; {left_out:,} less severe ones were left out" if left_out else ""
    report = f"report {printable(report_id)} of {len(sent):,} scores"
    return f"{report} for job {printable(job)} ({NO_WHAT_IF}){more}"


def _report_fields(described: "ScoreSummary") -> dict[str, Any]:
    return {
        "source": described.source,
        "num_reports": described.num_reports,
        "lacks": [
            {"what": each.what[:256], "cost": each.cost[:256]} for each in described.missing[:20]
        ],
    }


def fit_report(scores: Sequence[Score]) -> list[dict[str, Any]]:
    """The worst scores, as many as fit into one report."""
    from app.api.routes.jobs.scores import MAX_SCORE_BYTES
    from app.store.scores import MAX_SCORES

    found: list[dict[str, Any]] = []
    left_bytes = MAX_SCORE_BYTES - _RESERVED_BYTES
    for score in scores[:MAX_SCORES]:
        sent = _score_fields(score)
        left_bytes -= len(json.dumps(sent)) + len(", ")
        if left_bytes < 0:
            break
        found.append(sent)
    return found


def _score_fields(score: Score) -> dict[str, Any]:
    """The known fields; the server computes the slowdown."""
    known = asdict(score) | {"at": _utc(score.at_s)}
    left_out = ("slowdown", "at_s")
    return {
        name: value for name, value in known.items() if value is not None and name not in left_out
    }


def _utc(unix_s: float | None) -> str | None:
    if unix_s is None:
        return None
    return datetime.fromtimestamp(unix_s, UTC).isoformat().replace("+00:00", "Z")
