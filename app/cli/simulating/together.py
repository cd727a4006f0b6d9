"""Options of `paceline simulate` that would be ignored beside others are refused."""

from pathlib import Path

import typer

from app.errors import InvalidRequest

_STUDY = ("json_out", "chart")
_OF_TO = ("pace", "token", "job")
_SUFFIX = ".parquet"


def refuse_ignored(context: typer.Context) -> None:
    """Nothing, if every option that was typed has something to say.

    Raises:
        InvalidRequest: one has not; the message names it.
    """
    given = _typed(context)
    for alone, with_it in (("straggler_study", _STUDY), ("list_faults", ())):
        if alone in given:
            others = [name for name in given if name not in (alone, *with_it)]
            _refuse(context, others, f"says nothing beside {_called(context, alone)}")
            return
    if "straggler_study" not in given:
        others = [name for name in given if name in _STUDY]
        _refuse(context, others, "is of --straggler-study: give it too")
    if "to" not in given:
        _refuse(context, [name for name in given if name in _OF_TO], "is of --to")


def refuse_no_parquet(out: Path) -> None:
    """Nothing, if a trace may be written under this name.

    Raises:
        InvalidRequest: the name is that of something else.
    """
    if out.suffix != _SUFFIX:
        raise InvalidRequest(f"--out {out}: name a FILE{_SUFFIX}")


def _typed(context: typer.Context) -> list[str]:
    """Parameters that stand on the command line, not those of the environment."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return [name for name, source in sources.items() if source and source.name == "COMMANDLINE"]


def _refuse(context: typer.Context, names: list[str], why: str) -> None:
    if names:
        raise InvalidRequest(f"{_called(context, names[0])} {why}")


def _called(context: typer.Context, name: str) -> str:
    return next(each.opts[0] for each in context.command.params if each.name == name)
