"""`paceline rules`: check alert rules in a file, and test them on stored windows."""

import json
import re
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from app.cli.options import DataDir
from app.cli.output import printable
from app.cli.store_access import open_store
from app.cli.terminal import stderr_console
from app.errors import InvalidRequest, InvalidRules
from app.formatting import plural, utc_timestamp
from app.trace.job import job_of

if TYPE_CHECKING:
    from app.alerts.alert import AlertEvent
    from app.alerts.rule import Rule
    from app.cli.rule_trial import RuleTrial

app = typer.Typer(no_args_is_help=True, help="Check alert rules, and test them on stored windows.")

File = Annotated[Path, typer.Argument(help="Rules as YAML.", metavar="FILE")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
_UNITS_S = {"m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 7 * 86_400.0}
_AGO = re.compile(r"(\d{1,6})([mhdw])")


@app.command()
def check(file: File, as_json: Json = False) -> None:
    """Check rules: print them with all defaults filled in, or list every wrong line.

    Example: paceline rules check alerts.yaml
    """
    from app.alerts.readings import with_default_thresholds
    from app.alerts.rules.rule_text import dump_rules

    rules = _rules(file, as_json=as_json)
    if as_json:
        typer.echo(json.dumps({"rules": [rule.name for rule in rules], "problems": []}))
        return
    typer.echo(dump_rules([with_default_thresholds(rule) for rule in rules]), nl=False)


@app.command("test")
def try_out(
    file: File,
    job: Annotated[str, typer.Option(help="Only these jobs, a pattern with * and ?.")] = "*",
    since: Annotated[
        str | None, typer.Option(help="Only since a date (2026-03-01), or the last 12h, 7d, 2w.")
    ] = None,
    project: Annotated[str, typer.Option(help="Project of the jobs.")] = "default",
    as_json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """List the alerts that rules would have fired and resolved on stored windows.

    Sorted by time; muted alerts are only counted. Rules on missing data (stalled jobs, silent
    workers) depend on the time of arrival, which is not stored, and are skipped.

    Example: paceline rules test alerts.yaml --job 'llm-*' --since 7d
    """
    from rich.progress import track

    from app.cli.rule_trial import matching_jobs, try_rules

    rules = _rules(file, as_json=as_json)
    since_s = _since_s(since, time.time())
    with open_store(data_dir) as (store, _):
        jobs = matching_jobs(store, project, job)
        trial = try_rules(
            store,
            jobs,
            rules,
            since_s=since_s,
            progress=lambda rows: track(rows, "trying", console=stderr_console(), transient=True),
        )
    typer.echo(_as_json(rules, trial) if as_json else _as_text(rules, trial))


def _rules(file: Path, *, as_json: bool) -> "list[Rule]":
    from app.alerts.rules.rule_text import read_rules

    try:
        return read_rules(file)
    except UnicodeDecodeError:
        raise InvalidRequest(f"{file}: not a text file: rules are UTF-8") from None
    except InvalidRules as error:
        if as_json:
            problems = [{"line": line, "message": words} for line, words in error.problems]
            typer.echo(json.dumps({"rules": None, "problems": problems}))
        for line, words in error.problems:
            where = file if line is None else f"{file}:{line}"
            typer.echo(printable(f"{where}: {words}"), err=True)
        raise typer.Exit(2) from None


def _since_s(text: str | None, now_s: float) -> float:
    if text is None:
        return 0.0
    if ago := _AGO.fullmatch(text):
        return now_s - int(ago[1]) * _UNITS_S[ago[2]]
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidRequest(f"--since {text}: give 12h, 7d or a date, 2026-03-01") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _as_text(rules: "list[Rule]", trial: "RuleTrial") -> str:
    lines = [f"{trial.num_windows:,} windows of {trial.num_jobs:,} jobs"]
    for rule in rules:
        events = trial.of_rule(rule.name)
        num_fired = sum(event.kind == "firing" for event in events)
        num_muted = trial.num_muted.get(rule.name, 0)
        lines.append(f"{rule.name}: {_count_line(rule, num_fired, num_muted)}")
        lines += [f"  {_line(event)}" for event in events]
    return "\n".join(lines)


def _count_line(rule: "Rule", num_fired: int, num_muted: int) -> str:
    if rule.on == "fix-outcome":
        return "on outcomes of fixes: not tested"
    if not _is_on_windows(rule):
        return "on missing data: not tested"
    times = f"fired {plural(num_fired, 'time')}"
    return f"{times}, and {num_muted:,} muted by other alerts" if num_muted else times


def _line(event: "AlertEvent") -> str:
    at = f"{datetime.fromtimestamp(event.at_s, UTC):%Y-%m-%d %H:%M:%S}"
    subject = f" {event.subject}" if event.subject else ""
    where = f"{job_of(event.job_id)}{subject}, window {event.detail.window_id}"
    return printable(f"{at} {event.kind}: {where}: {event.sentence}")


def _as_json(rules: "list[Rule]", trial: "RuleTrial") -> str:
    content = {
        "jobs": trial.num_jobs,
        "windows": trial.num_windows,
        "kept_back": dict(trial.num_muted),
        "not_tried": [rule.name for rule in rules if not _is_on_windows(rule)],
        "rules": {
            rule.name: [_event(event) for event in trial.of_rule(rule.name)] for rule in rules
        },
    }
    return json.dumps(content)


def _event(event: "AlertEvent") -> dict[str, str | float | None]:
    return {
        "job": job_of(event.job_id),
        "subject": event.subject,
        "kind": event.kind,
        "at": datetime.fromtimestamp(event.at_s, UTC).isoformat(),
        "window": event.detail.window_id,
        "since_step": event.detail.since_step,
        "since_at": utc_timestamp(event.detail.since_at_s),
        "value": event.detail.value,
        "sentence": event.sentence,
    }


def _is_on_windows(rule: "Rule") -> bool:
    from app.alerts.readings import WINDOW_READINGS

    return rule.on in WINDOW_READINGS
