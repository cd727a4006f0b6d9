"""Which commands does `paceline` have?

Read `__init__.py` first: its end lists them. Commands import heavy modules (numba, pyarrow,
fastapi) when they run, so that `--help` is quick. A command that cannot do its work raises a
`PacelineError`, which is reported in one line.
Imported by: nothing.
"""

import errno
import os
import re
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typing_extensions import override

from app.cli import (
    advise,
    analyze,
    critical_path,
    data,
    dead_letters,
    exporting,
    processes,
    replay,
    retention,
    rules,
    timeline,
    token,
    what_if,
)
from app.cli.annotating import annotate, kubernetes
from app.cli.importing.command import import_
from app.cli.output import printable
from app.cli.simulating.command import simulate
from app.errors import PacelineError

EXIT_REFUSED = 2


class _Commands(TyperGroup):
    """Reports every expected error in one line, with an exit status."""

    @override
    def invoke(self, ctx: Any) -> Any:
        try:
            value = super().invoke(ctx)
            sys.stdout.flush()
        except PacelineError as error:
            raise _refusal(str(error)) from error
        except OSError as error:
            # An unwritable directory or a full disk needs no traceback.
            if error.filename is not None:
                raise _refusal(f"{error.filename}: {error.strerror}") from error
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO):
                raise
            # Else Python would try to flush the rest at exit, and fail again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise _refusal(f"standard output cannot be written: {error.strerror}") from error
        return value


# Text in quotes is a user's own, or is to be typed as it is: its colons stay.
_QUOTED_OR_COLON = re.compile(r"(?<!\w)'[^']*'(?!\w)|`[^`]*`|(: )")


def one_colon(message: str) -> str:
    """The message with a single colon, after its subject.

    Each layer that passes an error on puts its own place before it: "FILE: column x: row 3 is null:
    give a value" reads "FILE: column x, row 3 is null; give a value".
    """
    colons = [match.start() for match in _QUOTED_OR_COLON.finditer(message) if match.group(1)]
    for number, at in reversed(list(enumerate(colons[1:]))):
        mark = ";" if number == len(colons) - 2 else ","
        message = f"{message[:at]}{mark}{message[at + 1 :]}"
    return message


def _refusal(message: str) -> typer.Exit:
    one_line = printable(" ".join(message.split()))
    typer.echo(f"paceline: {one_colon(one_line)}", err=True)
    return typer.Exit(EXIT_REFUSED)


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Shows why a large-model training job is slow, while it runs.",
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"paceline {version('paceline')}")
        raise typer.Exit


@app.callback()
def _root(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None: ...


_RUN = "Run the service"
_ANALYSE = "Analyse a trace"
_MOVE = "Import, export, annotate and simulate"
_ADMINISTER = "Administration"

app.command("demo", rich_help_panel=_RUN)(processes.demo)
app.command("serve", rich_help_panel=_RUN)(processes.serve)
app.command("api", rich_help_panel=_RUN)(processes.api)
app.command("consumer", rich_help_panel=_RUN)(processes.consumer)
app.command("demo-jobs", hidden=True)(processes.demo_jobs_command)
app.command("analyze", rich_help_panel=_ANALYSE)(analyze.analyze)
app.command("advise", rich_help_panel=_ANALYSE)(advise.advise)
app.command("timeline", rich_help_panel=_ANALYSE)(timeline.timeline)
app.command("critical-path", rich_help_panel=_ANALYSE)(critical_path.critical_path)
app.command("what-if", rich_help_panel=_ANALYSE)(what_if.what_if)
app.command("import", rich_help_panel=_MOVE)(import_)
app.add_typer(exporting.app, name="export", rich_help_panel=_MOVE)
app.command("replay", rich_help_panel=_MOVE)(replay.replay)
app.command("annotate", rich_help_panel=_MOVE)(annotate.annotate)
app.command("watch-kubernetes", rich_help_panel=_MOVE)(kubernetes.watch_kubernetes)
app.command("simulate", rich_help_panel=_MOVE)(simulate)
app.add_typer(token.app, name="token", rich_help_panel=_ADMINISTER)
app.add_typer(data.secrets_app, name="secrets", rich_help_panel=_ADMINISTER)
app.add_typer(rules.app, name="rules", rich_help_panel=_ADMINISTER)
app.command("migrate", rich_help_panel=_ADMINISTER)(data.migrate)
app.command("backup", rich_help_panel=_ADMINISTER)(data.backup)
app.command("restore", rich_help_panel=_ADMINISTER)(data.restore)
app.add_typer(retention.app, name="retention", rich_help_panel=_ADMINISTER)
app.add_typer(dead_letters.app, name="dead-letters", rich_help_panel=_ADMINISTER)


def main() -> None:
    """Run the command line of this process."""
    app()
