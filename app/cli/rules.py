"""Alert rules in a file: can they be, and what would they have done?"""

import json
import re
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli.files import printable
from app.cli.options import DataDir

if TYPE_CHECKING:
    from app.alerts.alert import AlertEvent
    from app.alerts.rule import Rule
    from app.cli.rule_trial import Trial

app = typer.Typer(no_args_is_help=True, help="Check alert rules, and try them on what is stored.")

File = Annotated[Path, typer.Argument(help="Rules as YAML.", metavar="FILE")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
_UNITS_S = {"m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 7 * 86_400.0}
_AGO = re.compile(r"(\d{1,6})([mhdw])")


@app.command()
def check(file: File, as_json: Json = False) -> None:
    """Print rules with all that they leave open, or every line that is wrong, at once.

    Example: paceline rules check alerts.yaml
    """
    from app.alerts.readings.registry import whole
    from app.alerts.rule_text import dump

    rules = _rules(file, as_json=as_json)
    if as_json:
        typer.echo(json.dumps({"rules": [rule.name for rule in rules], "problems": []}))
        return
    typer.echo(dump([whole(rule) for rule in rules]), nl=False)


@app.command("test")
def try_out(
    file: File,
    job: Annotated[str, typer.Option(help="Of these jobs only, a pattern with * and ?.")] = "*",
    since: Annotated[
        str | None, typer.Option(help="Windows since a day (2026-03-01) or for 12h, 7d, 2w.")
    ] = None,
    project: Annotated[str, typer.Option(help="Whose jobs.")] = "default",
    as_json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Print what rules would have rung, and when it would have ceased, over stored windows.

    By time, without alerts that others keep back: those are counted.
    Rules that go by the clock, on stalled jobs and silent workers, have no history to try them on.

    Example: paceline rules test alerts.yaml --job 'llm-*' --since 7d
    """
    from rich.progress import track

    from app.cli.console import notes
    from app.cli.opened_store import opened_store
    from app.cli.rule_trial import trial, wanted_jobs

    rules = _rules(file, as_json=as_json)
    since_s = _since_s(since, time.time())
    with opened_store(data_dir) as (store, _):
        of_jobs = wanted_jobs(store, project, job)
        found = trial(
            store,
            of_jobs,
            rules,
            since_s=since_s,
            watched=lambda each: track(
                each, "trying", total=len(of_jobs), console=notes(), transient=True
            ),
        )
    typer.echo(json.dumps(_as_json(rules, found)) if as_json else _as_text(rules, found))


def _rules(file: Path, *, as_json: bool) -> "list[Rule]":
    from app.alerts.rule_text import MAX_BYTES, parse
    from app.errors import InvalidRequest, InvalidRules

    try:
        with file.open("rb") as opened:
            text = opened.read(MAX_BYTES + 1).decode()
        return parse(text, source=str(file))
    except UnicodeDecodeError:
        raise InvalidRequest(f"{file}: this is no text: rules are UTF-8") from None
    except InvalidRules as error:
        if as_json:
            problems = [{"line": line, "message": words} for line, words in error.problems]
            typer.echo(json.dumps({"rules": None, "problems": problems}))
        for line, words in error.problems:
            where = file if line is None else f"{file}:{line}"
            typer.echo(printable(f"{where}: {words}"), err=True)
        raise typer.Exit(2) from None


def _since_s(text: str | None, now_s: float) -> float:
    from app.errors import InvalidRequest

    if text is None:
        return 0.0
    if ago := _AGO.fullmatch(text):
        return now_s - int(ago[1]) * _UNITS_S[ago[2]]
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidRequest(f"--since {text}: want 12h, 7d or a day, 2026-03-01") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _as_text(rules: "list[Rule]", found: "Trial") -> str:
    lines = [f"{found.num_windows:,} windows of {found.num_jobs:,} jobs"]
    for rule in rules:
        events = found.of_rule(rule.name)
        num_fired = sum(event.kind == "firing" for event in events)
        num_kept_back = found.num_kept_back.get(rule.name, 0)
        lines.append(f"{rule.name}: {_verdict(rule, num_fired, num_kept_back)}")
        lines += [f"  {_line(event)}" for event in events]
    return "\n".join(lines)


def _verdict(rule: "Rule", num_fired: int, num_kept_back: int) -> str:
    if _is_by_clock(rule):
        return "goes by the clock: not tried"
    times = f"fired {num_fired:,} time{'' if num_fired == 1 else 's'}"
    return f"{times}, and {num_kept_back:,} kept back by others" if num_kept_back else times


def _line(event: "AlertEvent") -> str:
    from app.trace.names import plain

    at = f"{datetime.fromtimestamp(event.at_s, UTC):%Y-%m-%d %H:%M:%S}"
    subject = f" {event.subject}" if event.subject else ""
    where = f"{plain(event.job_id)}{subject}, window {event.detail.window_id}"
    return printable(f"{at} {event.kind}: {where}: {event.sentence}")


def _as_json(rules: "list[Rule]", found: "Trial") -> dict[str, Any]:
    return {
        "jobs": found.num_jobs,
        "windows": found.num_windows,
        "kept_back": dict(found.num_kept_back),
        "not_tried": [rule.name for rule in rules if _is_by_clock(rule)],
        "rules": {
            rule.name: [_event(event) for event in found.of_rule(rule.name)] for rule in rules
        },
    }


def _event(event: "AlertEvent") -> dict[str, Any]:
    from app.trace.names import plain

    return {
        "job": plain(event.job_id),
        "subject": event.subject,
        "kind": event.kind,
        "at": datetime.fromtimestamp(event.at_s, UTC).isoformat(),
        "window": event.detail.window_id,
        "since_step": event.detail.since_step,
        "value": event.detail.value,
        "sentence": event.sentence,
    }


def _is_by_clock(rule: "Rule") -> bool:
    from app.alerts.readings.registry import QUIETS

    return rule.on in QUIETS
