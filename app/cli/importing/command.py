"""`paceline import`: traces and scores of other tools, into a file or to a server."""

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from app.cli.files import printable
from app.cli.recorded import shown_as_they_are

if TYPE_CHECKING:
    from app.cli.importing.target import Target
    from app.trace.readers.foreign import Import, ScoreImport


def import_(
    format_: Annotated[
        str,
        typer.Argument(
            help="What the files are; `paceline import formats` lists them.", metavar="FORMAT"
        ),
    ],
    named: Annotated[
        list[Path] | None,
        typer.Argument(help="All files of one run, plain or packed by gzip.", metavar="FILES..."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Write the trace here, its meta file beside it.", metavar="TRACE.parquet"
        ),
    ] = None,
    url: Annotated[str | None, typer.Option(help="Push to this server instead.")] = None,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="PACELINE_TOKEN", help="Its token; left out: the one in the data directory."
        ),
    ] = None,
    job: Annotated[
        str | None, typer.Option(help="Id of the new job; left out: the name in the files.")
    ] = None,
    run_key: Annotated[
        str | None,
        typer.Option(help="Push as a new run of a job that is known already and does not run."),
    ] = None,
    mapped: Annotated[
        list[str] | None,
        typer.Option(
            "--map",
            help="Names that match REGEX are operations of this type; its groups mb, chunk and "
            "step are read as numbers. May be repeated, the first match counts.",
            metavar="REGEX=OPTYPE",
        ),
    ] = None,
    meta: Annotated[
        Path | None, typer.Option(help="Meta file with sizes and own op types.")
    ] = None,
    dp: Annotated[int | None, typer.Option(min=1, help="Data-parallel size.")] = None,
    pp: Annotated[int | None, typer.Option(min=1, help="Pipeline stages.")] = None,
    tp: Annotated[int | None, typer.Option(min=1, help="Tensor-parallel size.")] = None,
    vpp: Annotated[int | None, typer.Option(min=1, help="Model chunks on a stage.")] = None,
    dsp: Annotated[
        int | None, typer.Option(min=1, help="Ranks that share a sequence (context parallel).")
    ] = None,
    ep: Annotated[int | None, typer.Option(min=1, help="Expert-parallel size.")] = None,
) -> None:
    """Turn a trace of another tool into one of Paceline's, or push it to a server.

    Says what the files do not tell, and what that costs. Example:

    paceline import kineto rank*.json.gz --dp 4 --pp 2 --map '^fwd (?P<mb>[0-9]+)$=forward-compute'
    --out trace-mine.parquet
    """
    from app.cli.importing import screen
    from app.cli.importing.options import options_of
    from app.cli.importing.target import Target, files, refuse_conflicts, refuse_for_scores
    from app.trace.readers import registry

    if format_ == "formats":
        typer.echo(screen.formats())
        return
    chosen = registry.named(format_)
    paths = files(named)
    sizes = {"dp_size": dp, "pp_size": pp, "tp_size": tp, "vpp_size": vpp, "dsp_size": dsp}
    if not isinstance(chosen, registry.Format):
        told = {"--run-key": run_key, "--map": mapped, "--meta": meta, "--dp": dp, "--pp": pp}
        axes = {"--tp": tp, "--vpp": vpp, "--dsp": dsp, "--ep": ep}
        refuse_for_scores(chosen.name, {**told, **axes})
    options = options_of(mapped or (), {**sizes, "ep_size": ep}, meta, job)
    target = Target(out, url, token, job, run_key)
    refuse_conflicts(target, paths, meta)
    with shown_as_they_are():
        if isinstance(chosen, registry.Format):
            _import_ops(chosen.opened(paths, options), target, paths[0])
        else:
            _import_scores(chosen.opened(paths, options), target)


def _import_ops(opened: "Import", target: "Target", first: Path) -> None:
    from app.cli.console import notes
    from app.cli.importing import screen
    from app.engine.memory import give_large_memory_back
    from app.trace.readers.meta import trace_name

    give_large_memory_back()  # a file's size must not show in what is held
    with closing(opened):
        with notes().status("reading"):
            described = opened.describe()
        job = described.job(target.job or trace_name(target.out or first))
        typer.echo(screen.found(described, job), err=True)
        if target.out is not None:
            from app.cli.importing.saving import save

            save(opened, described, job, target.out)
            typer.echo(f"{printable(str(target.out))}")
        elif target.url is not None:
            from app.cli.importing.pushed import push

            typer.echo(push(opened, described, job, target))
        else:
            _look(opened)


def _look(opened: "Import") -> None:
    """Nothing, if what is only looked at could be written, too.

    Raises:
        InvalidTrace: rows are wrong, as those of a file that is given twice.
    """
    from app.cli.console import notes

    with notes().status("checking"):
        for _ in opened.chunks():
            pass


def _import_scores(opened: "ScoreImport", target: "Target") -> None:
    from app.cli.console import notes
    from app.cli.importing.scores import show_or_push

    with closing(opened):
        with notes().status("reading"):
            opened.describe()
        show_or_push(opened, target)
