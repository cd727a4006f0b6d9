"""Scores of an import: a table of the worst, a file of all, or a report on a server.

They have no what-if, and each of the three says so.
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

from app.cli.files import printable, written_whole
from app.cli.importing import screen, waited_for
from app.cli.spreadsheet import cell
from app.errors import InvalidRequest, Unavailable
from app.trace.scores import NO_WHAT_IF, Score
from app.words import counted

if TYPE_CHECKING:
    from app.cli.importing.target import Target
    from app.trace.readers.foreign import DescribedScores, ScoreImport

SHOWN = 20
_ROOM_BYTES = 64 << 10  # of a request, for what is not scores
_HEADINGS = ("RANK", "NODE", "WHAT", "NEWEST", "MEAN", "SLOWDOWN", "READINGS")
_RIGHT = {0, 3, 4, 5, 6}


def show_or_push(opened: "ScoreImport", target: "Target") -> None:
    """Print the worst of them, and write or send them where that is wanted.

    Raises:
        InvalidRequest: the file cannot be written, or the server refuses them.
        Unavailable: the server does not answer.
    """
    described, scores = opened.describe(), [*opened.scores()]
    if target.url is not None:
        typer.echo(_pushed(described, scores, target))
    elif target.out is not None:
        _write(scores, target.out)
        typer.echo(printable(str(target.out)))
    else:
        typer.echo(table(described, scores))
        collectives = opened.collectives()
        if collectives is not None and (lines := waited_for.text(collectives)):
            typer.echo(f"\n{lines}")
    for line in screen.lacking(described.lacks):
        typer.echo(printable(line), err=True)


def table(described: "DescribedScores", scores: Sequence[Score]) -> str:
    """The worst scores, one a line, under a line that says what they are."""
    shown = scores[:SHOWN]
    more = f"; the first {SHOWN} are below, --out FILE.csv has all" if len(scores) > SHOWN else ""
    first = (
        f"{NO_WHAT_IF}: {described.source}, {len(scores):,} series of "
        f"{counted(described.num_reports, 'report')}{more}"
    )
    rows = [_HEADINGS, *map(_cells, shown)]
    widths = [max(len(row[at]) for row in rows) for at in range(len(_HEADINGS))]
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
        "" if score.slowdown is None else f"{score.slowdown:.2f}x",
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
            f"--out {path}: scores have no operations, so no trace can be made of them: "
            f"name a file that ends in {', '.join(writers)}"
        )
    content = writer([*_fields(scores)])
    with written_whole(path) as file:
        file.write(content)


def _fields(scores: Sequence[Score]) -> Iterator[dict[str, Any]]:
    for score in scores:
        known = asdict(score)
        at_s = known.pop("at_s")
        yield {**known, "at": _moment(at_s), "what_if": None}


def _columns() -> list[str]:
    return [*(each.name for each in fields(Score) if each.name != "at_s"), "at", "what_if"]


def _as_csv(rows: Sequence[dict[str, Any]]) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, _columns())
    writer.writeheader()
    writer.writerows({name: cell(value) for name, value in row.items()} for row in rows)
    return text.getvalue().encode()


def _as_lines(rows: Sequence[dict[str, Any]]) -> bytes:
    return "".join(f"{json.dumps(row, allow_nan=False)}\n" for row in rows).encode()


def _as_parquet(rows: Sequence[dict[str, Any]]) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    # By what a score is and not by what is known of these: a rank stays a number where none is.
    texts, numbers = {"node", "section", "metric", "unit", "at"}, {"rank", "num", "of", "step"}
    kinds = dict.fromkeys(texts, pa.string()) | dict.fromkeys(numbers, pa.int64())
    kinds["what_if"] = pa.null()
    schema = pa.schema([(name, kinds.get(name, pa.float64())) for name in _columns()])
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist([*rows], schema=schema), sink)
    return sink.getvalue()


def _pushed(described: "DescribedScores", scores: Sequence[Score], target: "Target") -> str:
    """What was sent where, and how many were too many."""
    from paceline_client.query import NoAnswer, Paceline, Refused

    from app.cli.replay import own_token

    job = target.job or described.name
    if job is None:
        raise InvalidRequest("--job is missing: name the job that these are scores of")
    sent = fitting(scores)
    body = _about(described) | {"scores": sent}
    try:
        with Paceline(target.url, target.token or own_token()) as server:
            report_id = server.add_scores(job, body)
    except Refused as error:
        raise InvalidRequest(f"{target.url} refuses the scores: {error}") from error
    except NoAnswer as error:
        raise Unavailable(str(error)) from error
    except ValueError as error:
        raise InvalidRequest(f"--url, --token: {error}") from error
    left_out = len(scores) - len(sent)
    more = f"; {left_out:,} that are less bad were left out" if left_out else ""
    report = f"report {printable(report_id)} of {len(sent):,} scores"
    return f"{report} for job {printable(job)} ({NO_WHAT_IF}){more}"


def _about(described: "DescribedScores") -> dict[str, Any]:
    return {
        "source": described.source,
        "num_reports": described.num_reports,
        "lacks": [
            {"what": each.what[:256], "cost": each.cost[:256]} for each in described.lacks[:20]
        ],
    }


def fitting(scores: Sequence[Score]) -> list[dict[str, Any]]:
    """The worst ones, as many as the server takes in one report."""
    from app.api.score_body import MAX_BYTES
    from app.store.scores import MAX_SCORES

    found: list[dict[str, Any]] = []
    left_bytes = MAX_BYTES - _ROOM_BYTES
    for score in scores[:MAX_SCORES]:
        sent = _sent(score)
        left_bytes -= len(json.dumps(sent)) + len(", ")
        if left_bytes < 0:
            break
        found.append(sent)
    return found


def _sent(score: Score) -> dict[str, Any]:
    """The fields that are known; the slowdown is the server's to say."""
    known = asdict(score) | {"at": _moment(score.at_s)}
    left_out = ("slowdown", "at_s")
    return {
        name: value for name, value in known.items() if value is not None and name not in left_out
    }


def _moment(unix_s: float | None) -> str | None:
    if unix_s is None:
        return None
    return datetime.fromtimestamp(unix_s, UTC).isoformat().replace("+00:00", "Z")
