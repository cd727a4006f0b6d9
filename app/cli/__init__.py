"""What can be done with Paceline from a terminal?

Commands import what is heavy (numba, pyarrow, fastapi) when they run, so that `--help` is quick.
"""

import errno
import os
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typing_extensions import override

from app.cli import (
    analyze,
    bench,
    critical_path,
    data,
    dead_letters,
    exporting,
    perfetto,
    processes,
    replay,
    retention,
    rules,
    token,
    what_if,
)
from app.cli.files import printable
from app.cli.importing.command import import_
from app.cli.simulating.command import simulate
from app.errors import PacelineError

EXIT_REFUSED = 2


class _Commands(TyperGroup):
    """Turns every refusal into one line and an exit status."""

    @override
    def invoke(self, ctx: Any) -> Any:
        try:
            value = super().invoke(ctx)
            sys.stdout.flush()
        except PacelineError as error:
            raise _refusal(str(error)) from error
        except OSError as error:
            # A directory that cannot be written to, a disk that is full: no news for a traceback.
            if error.filename is not None:
                raise _refusal(f"{error.filename}: {error.strerror}") from error
            if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO):
                raise
            _give_up_standard_output()
            raise _refusal(f"standard output cannot be written: {error.strerror}") from error
        return value


def _refusal(message: str) -> typer.Exit:
    typer.echo(f"paceline: {printable(' '.join(message.split()))}", err=True)
    return typer.Exit(EXIT_REFUSED)


def _give_up_standard_output() -> None:
    # What is still held for it would be tried once more, and fail once more, at the very end.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


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


app.command("demo")(processes.demo)
app.command("serve")(processes.serve)
app.command("api")(processes.api)
app.command("consumer")(processes.consumer)
app.command("demo-jobs", hidden=True)(processes.demo_jobs_command)
app.command("analyze")(analyze.analyze)
app.command("timeline")(perfetto.timeline)
app.command("critical-path")(critical_path.critical_path)
app.command("what-if")(what_if.what_if)
app.command("import")(import_)
app.command("replay")(replay.replay)
app.command("simulate")(simulate)
app.command("migrate")(data.migrate)
app.command("backup")(data.backup)
app.command("restore")(data.restore)
app.add_typer(exporting.app, name="export")
app.add_typer(token.app, name="token")
app.add_typer(dead_letters.app, name="dead-letters")
app.add_typer(retention.app, name="retention")
app.add_typer(rules.app, name="rules")
app.add_typer(bench.app, name="bench")


def main() -> None:
    """Run the command line of this process."""
    app()
